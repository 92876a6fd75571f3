#include "memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace dry {
namespace {

std::mutex lock;
std::vector<Event> events;

// Freed while another stream may still use it; `moment`: so much had been given to the card.
struct Requested {
  int64_t id, n_bytes, moment;
};
std::deque<Requested> requested;
std::unordered_map<int64_t, int64_t> recorded;  // moments of the program's events, by their numbers
int64_t given = 0, done = 0;                    // to the card, and by it as far as the host knows
std::pair<int64_t, int64_t> asked{-1, -1};      // the event that was asked for last, and when

void wait_until(int64_t moment) { done = std::max(done, moment); }

int64_t moment_of(int64_t event) {
  const auto found = recorded.find(event);
  return found == recorded.end() ? 0 : found->second;
}
std::vector<std::string> operator_names{""};
std::unordered_map<std::string, int64_t> operator_numbers{{"", 0}};
std::unordered_map<const void*, Block*> live;
std::unordered_map<const void*, Block*> hollow;  // of the host, by address
std::atomic<int64_t> place{0};
int64_t next_id = 0;
thread_local int64_t running_op = 0, running_source = -1;
thread_local int64_t depth = 0;

// Addresses that nothing is mapped at: a kernel that reads or writes them stops the process instead of computing nonsense.
constexpr size_t ADDRESSES = size_t(64) << 40;
char* next_address = nullptr;
char* last_address = nullptr;
std::unordered_map<size_t, std::vector<void*>> freed_addresses;  // by size; a long run would use all of them up otherwise

size_t rounded(size_t n_bytes) { return (n_bytes + 511) / 512 * 512; }

void* unmapped(size_t n_bytes) {
  if (next_address == nullptr) {
    void* base = mmap(nullptr, ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(base != MAP_FAILED, "no addresses for the pretended card: is the virtual memory of this process limited?");
    next_address = static_cast<char*>(base);
    last_address = next_address + ADDRESSES;
  }
  const size_t size = rounded(n_bytes);
  auto& freed = freed_addresses[size];
  if (!freed.empty()) {
    void* again = freed.back();
    freed.pop_back();
    return again;
  }
  TORCH_CHECK(next_address + size < last_address, "the addresses of the pretended card are used up; run fewer steps");
  void* found = next_address;
  next_address += size;
  return found;
}

int64_t node_number() {
  auto node = torch::autograd::get_current_node();
  return node ? static_cast<int64_t>(node->sequence_nr()) : -2;
}

void log_locked(int64_t kind, int64_t id, int64_t n_bytes, int64_t stream, int64_t op) {
  ++given;
  events.push_back({kind, id, n_bytes, stream, place.load(), node_number(), op, running_source, current_device()});
}

// What the card is done with comes back when something is allocated (CUDACachingAllocator.cpp, process_events).
void log_done(int64_t op) {
  for (; !requested.empty() && requested.front().moment <= done; requested.pop_front()) {
    log_locked(FREE, requested.front().id, requested.front().n_bytes, 0, op);
  }
}

int64_t log_alloc(int64_t n_bytes, int64_t stream, int64_t op) {
  log_done(op);
  const int64_t id = next_id++;
  log_locked(ALLOC, id, n_bytes, stream, op);
  return id;
}

void free_on_card(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> hold(lock);
    log_locked(block->other_stream ? FREE_REQUESTED : FREE, block->id, block->n_bytes, block->stream, running_op);
    live.erase(block->data);
    if (block->other_stream) requested.push_back({block->id, block->n_bytes, given});
    if (!block->real) freed_addresses[rounded(static_cast<size_t>(block->n_bytes))].push_back(block->data);
  }
  if (block->real) std::free(block->data);
  delete block;
}

void free_hollow(void* data) {
  Block* block = nullptr;
  {
    std::lock_guard<std::mutex> hold(lock);
    const auto found = hollow.find(data);
    block = found->second;
    hollow.erase(found);
  }
  munmap(block->data, block->n_bytes);
  delete block;
}

void free_host(void* data) {
  bool is_hollow = false;
  {
    std::lock_guard<std::mutex> hold(lock);
    is_hollow = hollow.count(data) > 0;
  }
  is_hollow ? free_hollow(data) : c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

struct CardAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(current_device()));
    if (n == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    auto* block = new Block();
    block->on_card = true;
    block->n_bytes = static_cast<int64_t>(n);
    block->stream = current_stream();
    // What was just allocated counts as known: kernels write it before anything reads it.
    block->real = block->known = block->n_bytes <= REAL_BYTES;
    std::lock_guard<std::mutex> hold(lock);
    block->data = block->real ? std::calloc(n, 1) : unmapped(n);
    block->id = log_alloc(block->n_bytes, block->stream, running_op);
    live[block->data] = block;
    return {block->data, block, &free_on_card, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

// Host memory: small blocks as ever; large ones are pages of zeros that take no memory as long as nothing is written.
struct HostAllocator final : c10::Allocator {
  c10::Allocator* usual = c10::GetDefaultCPUAllocator();
  c10::DataPtr allocate(size_t n) override {
    if (static_cast<int64_t>(n) < HOLLOW_BYTES) return usual->allocate(n);
    void* data = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(data != MAP_FAILED, "no addresses for ", n, " bytes of host memory");
    auto* block = new Block();
    block->data = data;
    block->n_bytes = static_cast<int64_t>(n);
    block->real = block->known = true;
    std::lock_guard<std::mutex> hold(lock);
    hollow[data] = block;
    return {data, data, &free_hollow, c10::Device(c10::DeviceType::CPU)};
  }
  // oneDNN takes its memory without a tensor (aten/src/ATen/native/mkldnn/IDeepRegistration.cpp).
  c10::DeleterFnPtr raw_deleter() const override { return &free_host; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};

CardAllocator card;
HostAllocator host;
}  // namespace

Block* block_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const auto& pointer = tensor.storage().data_ptr();
  const auto deleter = pointer.get_deleter();
  if (deleter == &free_on_card) return static_cast<Block*>(pointer.get_context());
  if (deleter != &free_hollow) return nullptr;
  std::lock_guard<std::mutex> hold(lock);
  return hollow.at(pointer.get_context());
}

c10::Allocator* card_allocator() { return &card; }
c10::Allocator* host_allocator() { return &host; }

int64_t number_of_operator(const std::string& name) {
  std::lock_guard<std::mutex> hold(lock);
  const auto [found, is_new] = operator_numbers.emplace(name, static_cast<int64_t>(operator_names.size()));
  if (is_new) operator_names.push_back(name);
  return found->second;
}

InOperator::InOperator(int64_t number, int64_t source) {
  if (depth++ == 0) running_op = number, running_source = source;
}

InOperator::~InOperator() { --depth; }

int64_t take(int64_t n_bytes, int64_t op) {
  std::lock_guard<std::mutex> hold(lock);
  return log_alloc(n_bytes, current_stream(), op);
}

void give_back(int64_t id, int64_t n_bytes) {
  std::lock_guard<std::mutex> hold(lock);
  log_locked(FREE, id, n_bytes, 0, running_op);
}

void record_stream(const void* context, int64_t stream) {
  auto* block = static_cast<Block*>(const_cast<void*>(context));
  if (block != nullptr && block->stream != stream) block->other_stream = true;
}

void record_event(int64_t event) {
  std::lock_guard<std::mutex> hold(lock);
  recorded[event] = ++given;
}

void forget_event(int64_t event) {
  std::lock_guard<std::mutex> hold(lock);
  recorded.erase(event);
}

// A program that asks again and gives the card nothing in between waits for the answer yes.
bool has_come(int64_t event) {
  std::lock_guard<std::mutex> hold(lock);
  const std::pair<int64_t, int64_t> asks{event, given};
  if (asks == asked) wait_until(moment_of(event));
  asked = asks;
  return moment_of(event) <= done;
}

void wait_for_event(int64_t event) {
  std::lock_guard<std::mutex> hold(lock);
  wait_until(moment_of(event));
}

void wait_for_card() {
  std::lock_guard<std::mutex> hold(lock);
  wait_until(given);
}

}  // namespace dry

// What Python calls, through ctypes.
extern "C" {
int64_t dry_n_events() { return static_cast<int64_t>(dry::events.size()); }
const int64_t* dry_events() { return reinterpret_cast<const int64_t*>(dry::events.data()); }
const char* dry_operator(int64_t number) { return dry::operator_names.at(number).c_str(); }
void dry_set_place(int64_t number) { dry::place.store(number); }
void dry_empty_cache() {
  std::lock_guard<std::mutex> hold(dry::lock);
  dry::wait_until(dry::given);  // CUDACachingAllocator.cpp, synchronize_and_free_events
  dry::log_done(0);
  dry::log_locked(dry::EMPTY_CACHE, -1, 0, 0, 0);
}
void dry_record_event(int64_t event) { dry::record_event(event); }
void dry_forget_event(int64_t event) { dry::forget_event(event); }
int64_t dry_has_come(int64_t event) { return dry::has_come(event); }
void dry_wait_for_event(int64_t event) { dry::wait_for_event(event); }
void dry_wait_for_card() { dry::wait_for_card(); }
int64_t dry_take(int64_t n_bytes, const char* op) { return dry::take(n_bytes, dry::number_of_operator(op)); }
void dry_give_back(int64_t id, int64_t n_bytes) { dry::give_back(id, n_bytes); }
// The number of the block that begins at this address of the card, or -1.
int64_t dry_block_at(const void* address) {
  std::lock_guard<std::mutex> hold(dry::lock);
  const auto found = dry::live.find(address);
  return found == dry::live.end() ? -1 : found->second->id;
}
// A storage of the card with another size, as CUDA's has it: a new block, into which the old one is copied, then takes its place.
void dry_resize_storage(void* of, int64_t n_bytes) {
  auto* storage = static_cast<c10::StorageImpl*>(of);
  dry::InOperator scope(dry::number_of_operator("storage.resize_"), -1);
  const c10::DeviceGuard guard(storage->device());
  auto made = dry::card_allocator()->allocate(n_bytes);
  auto *from = static_cast<dry::Block*>(storage->data_ptr().get_context()), *to = static_cast<dry::Block*>(made.get_context());
  if (from != nullptr && to != nullptr && to->real) {
    to->known = from->known;
    to->guessed = from->guessed;
    if (from->real) std::memcpy(to->data, from->data, std::min(from->n_bytes, to->n_bytes));
  }
  storage->set_data_ptr_noswap(std::move(made));
  storage->set_nbytes(n_bytes);
}
// Another stream uses the block that begins at this address.
void dry_record_stream(const void* address, int64_t stream) {
  std::lock_guard<std::mutex> hold(dry::lock);
  const auto found = dry::live.find(address);
  if (found != dry::live.end()) dry::record_stream(found->second, stream);
}
void dry_spoil(const void* address) {
  std::lock_guard<std::mutex> hold(dry::lock);
  const auto found = dry::live.find(address);
  if (found != dry::live.end()) found->second->guessed = true;
}
int64_t dry_install() {
  c10::SetAllocator(c10::DeviceType::CUDA, dry::card_allocator(), 100);
  c10::SetCPUAllocator(dry::host_allocator(), 100);
  return 0;
}
}
