// A device guard for CUDA and the hooks that torch asks for one, in a build without CUDA: streams and events have names and an order.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <atomic>
#include <cstdlib>

#include "memory.h"

namespace {
constexpr int MOST_DEVICES = 64;
thread_local c10::DeviceIndex device = 0;
thread_local c10::StreamId streams[MOST_DEVICES] = {0};
std::atomic<int64_t> next_stream{1};
std::atomic<intptr_t> n_events{0};

c10::DeviceIndex n_devices() {
  const char* said = std::getenv("DRY_RUN_DEVICES");
  return static_cast<c10::DeviceIndex>(said == nullptr ? 1 : std::atoi(said));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Stream = c10::Stream;
  static Device cuda(c10::DeviceIndex index) { return {c10::DeviceType::CUDA, index < 0 ? device : index}; }
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  Device exchangeDevice(Device to) const override {
    const auto before = device;
    setDevice(to);
    return cuda(before);
  }
  Device getDevice() const override { return cuda(device); }
  void setDevice(Device to) const override {
    if (to.index() >= 0) device = to.index();
  }
  void uncheckedSetDevice(Device to) const noexcept override { setDevice(to); }
  Stream getStream(Device of) const noexcept override {
    const auto index = of.index() < 0 ? device : of.index();
    return Stream(Stream::UNSAFE, cuda(index), streams[index]);
  }
  Stream getDefaultStream(Device of) const override { return Stream(Stream::DEFAULT, cuda(of.index())); }
  Stream getStreamFromGlobalPool(Device of, bool = false) const override { return getNewStream(of); }
  Stream getNewStream(Device of, int = 0) const override { return Stream(Stream::UNSAFE, cuda(of.index()), next_stream++); }
  Stream exchangeStream(Stream to) const noexcept override {
    const auto index = to.device_index();
    const auto before = streams[index];
    streams[index] = to.id();
    return Stream(Stream::UNSAFE, cuda(index), before);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return n_devices(); }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }
  void record(void** event, const Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = reinterpret_cast<void*>(++n_events);
    dry::record_event(number(*event));
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void* event) const override { return dry::has_come(number(event)); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { dry::forget_event(number(event)); }
  bool queryStream(const Stream&) const override {
    dry::wait_for_card();
    return true;
  }
  void synchronizeStream(const Stream&) const override { dry::wait_for_card(); }
  void synchronizeEvent(void* event) const override { dry::wait_for_event(number(event)); }
  void synchronizeDevice(const c10::DeviceIndex) const override { dry::wait_for_card(); }
  static int64_t number(void* event) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(event)); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    dry::record_stream(data.get_context(), stream.id());
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1.0; }
};
}  // namespace

namespace dry {
int64_t current_stream() { return streams[device]; }
int64_t current_device() { return device; }
}  // namespace dry

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

namespace c10d {
namespace {
// DDP asks for one on its device; nothing takes time here.
struct NoTimer final : Timer {
  explicit NoTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, NoTimer);
}  // namespace
}  // namespace c10d

namespace at {
namespace {
// The registry finds the class by this very name (ATen/detail/CUDAHooksInterface.cpp).
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return n_devices(); }
  int getNumGPUs() const override { return n_devices(); }
  DeviceIndex current_device() const override { return ::device; }
  DeviceIndex getCurrentDevice() const override { return ::device; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return detail::getDefaultCPUGenerator(); }
  Generator getNewGenerator(DeviceIndex) const override { return detail::createCPUGenerator(); }
  // Host memory is all alike here, and DDP insists that what it asked for is pinned (reducer.cpp, prepare_for_backward).
  bool isPinnedPtr(const void*) const override { return true; }
  Allocator* getPinnedMemoryAllocator() const override { return dry::host_allocator(); }
  Allocator* getCUDADeviceAllocator() const override { return dry::card_allocator(); }
  void deviceSynchronize(DeviceIndex) const override { dry::wait_for_card(); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace
}  // namespace at

extern "C" {
int64_t dry_stream() { return streams[device]; }
void dry_set_stream(int64_t stream) { streams[device] = stream; }
int64_t dry_new_stream() { return next_stream++; }
int64_t dry_new_event() { return ++n_events; }
int64_t dry_device() { return device; }
void dry_set_device(int64_t index) { device = static_cast<c10::DeviceIndex>(index); }
}
