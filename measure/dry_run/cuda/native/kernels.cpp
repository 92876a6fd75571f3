// What operators do on the pretended card: nothing, but outputs of the right size; and the true values where these are few.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <iterator>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "memory.h"
#include "operators.h"

namespace dry {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;
using at::Tensor;

using Said = void (*)(const char* what, const char* op);
Said on_guess = nullptr;
Said on_refusal = nullptr;

template <typename Visit>
void each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& each : value.toTensorVector()) visit(each);
  } else if (value.isList()) {
    for (const IValue& each : value.toListRef()) each_tensor(each, visit);
  }
}

bool is_small(const Tensor& tensor, bool marked = false) {
  const bool whole = marked || (!tensor.is_floating_point() && !tensor.is_complex());
  return tensor.numel() <= (whole ? MOST_INTEGERS : MOST_FLOATS);
}

// Whether the values of a tensor are there to compute with.
bool has_values(const Tensor& tensor) {
  const Block* block = block_of(tensor);
  if (block == nullptr) return !tensor.is_meta() && (tensor.device().is_cpu() || tensor.numel() == 0);
  return block->known;
}

bool is_hollow(const Tensor& tensor) {
  const Block* block = block_of(tensor);
  return block != nullptr && !block->on_card && tensor.is_floating_point();
}

Tensor on_host(const Tensor& tensor) {
  if (!tensor.is_cuda()) return tensor;
  const auto options = tensor.options().device(at::kCPU).requires_grad(false);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto alias = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  return alias;
}

// A number of Python stays one on the host: shape functions in Python take it from there (torch/csrc/jit/python/pybind_utils.cpp).
Tensor on_meta(const Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.device().is_cpu()) return tensor;
  auto alias = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  Tensor made(alias);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

template <typename Change>
IValue changed(const IValue& value, const Change& change, at::Device device) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(each.defined() ? change(each) : each);
    return list;
  }
  if (value.isOptionalTensorList() || (value.isList() && value.toListRef().size() > 0 &&
                                       *value.toList().elementType() == *c10::OptionalType::ofTensor())) {
    c10::List<std::optional<Tensor>> list;
    for (const IValue& each : value.toListRef())
      list.push_back(each.isTensor() && each.toTensor().defined() ? std::optional<Tensor>(change(each.toTensor())) : std::nullopt);
    return list;
  }
  if (value.isDevice()) return device;
  if (value.isGenerator()) return IValue();
  return value;
}

// One in so many is chosen where the program asks which elements are special; 0: none is.
int64_t chosen_share = 0;

void write_guess(const Tensor& tensor, const Operator& op, int64_t choices, bool of_no) {
  Block* block = block_of(tensor);
  if (block == nullptr || !block->on_card) return;
  block->all_no = of_no || (tensor.scalar_type() == at::kBool && op.name != "aten::all" && chosen_share == 0);
  if (!block->real || !is_small(tensor)) {
    block->known = false;
    return;
  }
  Tensor values = on_host(tensor);
  if (CHOOSING.count(op.name) && tensor.scalar_type() == at::kLong && choices > 0) {
    values.copy_(at::arange(values.numel(), values.options()).remainder_(choices).view(values.sizes()));
  } else if (values.scalar_type() == at::kBool) {
    values.fill_(op.name == "aten::all");
    if (chosen_share > 0) {
      // Whole columns of a matrix, or elements of a row.
      const int64_t n_columns = values.dim() > 0 ? values.size(-1) : 1;
      values.view({-1, n_columns}).narrow(1, 0, (n_columns + chosen_share - 1) / chosen_share).fill_(true);
    }
  } else {
    values.fill_(!of_no);
  }
  block->known = block->guessed = true;
}

void note_values(const Tensor& tensor, bool guessed, bool fresh) {
  Block* block = block_of(tensor);
  if (block == nullptr || !block->on_card) return;
  const bool whole = tensor.numel() * static_cast<int64_t>(tensor.element_size()) >= block->n_bytes;
  block->guessed = (fresh || whole ? false : block->guessed) || guessed;
  block->known = block->known || fresh || whole;
}

// Whether the size had to change.
bool resize_like(const Tensor& tensor, const Tensor& model) {
  if (tensor.sizes() == model.sizes() && (tensor.numel() > 0 || tensor.strides() == model.strides())) return false;
  auto* self = tensor.unsafeGetTensorImpl();
  const auto needed = at::detail::computeStorageNbytes(model.sizes(), model.strides(), tensor.element_size(), tensor.storage_offset());
  if (needed > tensor.storage().nbytes()) {
    auto storage = tensor.storage();
    const c10::DeviceGuard guard(tensor.device());
    storage.set_data_ptr_noswap((tensor.is_cuda() ? card_allocator() : host_allocator())->allocate(needed));
    storage.set_nbytes(needed);
  }
  self->set_sizes_and_strides(model.sizes(), model.strides());
  return true;
}

Tensor made_like(const Tensor& model, at::Device device) {
  return at::empty_strided(model.sizes(), model.strides(), model.options().device(device));
}

struct Call {
  const OperatorHandle& handle;
  const Operator& op;
  std::vector<IValue> arguments;
  at::Device device;
  bool guessed = false;
};

// Arguments that were written to, by position, with what they became.
IValue result_of(Call& call, const c10::Argument& said, const IValue& value, const std::vector<IValue>& given, bool values) {
  if (said.alias_info() != nullptr) {
    const auto& arguments = call.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].alias_info() != nullptr && *arguments[i].alias_info() == *said.alias_info()) return call.arguments[i];
    }
  }
  const auto make = [&](const Tensor& model) {
    Tensor made = made_like(model, call.device);
    if (values && is_small(made, call.op.marks) && block_of(made) != nullptr && block_of(made)->real) {
      on_host(made).copy_(model);
      note_values(made, call.guessed, true);
    }
    return made;
  };
  return changed(value, make, call.device);
}

void finish(Call& call, Stack* stack, const std::vector<IValue>& given, bool values) {
  const auto& schema = call.handle.schema();
  const size_t n_returns = schema.returns().size();
  std::vector<IValue> results(stack->end() - n_returns, stack->end());
  stack->resize(stack->size() - n_returns);
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (!call.op.is_written[i] || !call.arguments[i].isTensor() || !call.arguments[i].toTensor().defined()) continue;
    const Tensor& written = call.arguments[i].toTensor();
    if (!resize_like(written, given[i].toTensor())) continue;
    if (values && is_small(written, call.op.marks) && block_of(written) != nullptr && block_of(written)->real) {
      on_host(written).copy_(given[i].toTensor());
    }
  }
  for (size_t i = 0; i < n_returns; ++i) stack->push_back(result_of(call, schema.returns()[i], results[i], given, values));
}

bool run_on(Call& call, Stack* stack, DispatchKey key) {
  const bool values = key == DispatchKey::CPU;
  const at::Device device(values ? at::kCPU : at::kMeta);
  std::vector<IValue> given;
  Stack own;
  for (const IValue& value : call.arguments) {
    given.push_back(changed(value, values ? on_host : on_meta, device));
    own.push_back(given.back());
  }
  {
    c10::impl::ExcludeDispatchKeyGuard no_front(DispatchKeySet(DispatchKey::Fake));
    at::AutoDispatchBelowADInplaceOrView below;
    call.handle.redispatchBoxed(DispatchKeySet(key), &own);
  }
  finish(call, &own, given, values);
  for (auto& each : own) stack->push_back(std::move(each));
  return true;
}

int64_t choices_of(const Call& call) {
  if (call.arguments.empty()) return 0;
  const IValue& first = call.arguments[0];
  return first.isTensor() && first.toTensor().dim() > 0 ? first.toTensor().size(-1) : 0;
}

// Whether the result only sums up answers that are all no: nobody found a NaN.
bool sums_up_no(const Call& call) {
  if (!SUMS_UP.count(call.op.name)) return false;
  bool any = false, all = true;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (call.op.is_out[i]) continue;
    each_tensor(call.arguments[i], [&](const Tensor& each) {
      const Block* block = block_of(each);
      any = true, all = all && block != nullptr && block->all_no;
    });
  }
  return any && all;
}

void guess_results(const Call& call, Stack* stack, size_t first) {
  if (LEAVES_VALUES.count(call.op.name)) return;
  const int64_t choices = choices_of(call);
  const bool of_no = sums_up_no(call);
  const auto guess = [&](const Tensor& each) { write_guess(each, call.op, choices, of_no); };
  for (size_t i = first; i < stack->size(); ++i) each_tensor((*stack)[i], guess);
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (call.op.is_written[i]) each_tensor(call.arguments[i], guess);
  }
}

// Whether the operator can be computed: all that it reads has values and is small, and so is all that it writes.
bool computable(Call& call) {
  bool yes = true, guessed = false;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    each_tensor(call.arguments[i], [&](const Tensor& each) {
      yes = yes && is_small(each, call.op.marks) && (call.op.is_out[i] || has_values(each));
      const Block* block = block_of(each);
      yes = yes && (block == nullptr || block->real);
      guessed = guessed || (!call.op.is_out[i] && block != nullptr && block->guessed);
    });
  }
  call.guessed = guessed;
  return yes;
}

// How many elements of a mask are chosen: all of them where nobody knows.
int64_t n_chosen(const Tensor& mask, const Operator& op) {
  if (mask.is_cuda()) wait_for_card();
  const Block* block = block_of(mask);
  if (has_values(mask) && (block == nullptr || block->real)) {
    if (block != nullptr && block->guessed && on_guess != nullptr) on_guess("how many elements are chosen", op.name.c_str());
    c10::impl::ExcludeDispatchKeyGuard no_front(DispatchKeySet(DispatchKey::Fake));
    return on_host(mask).ne(0).sum().item<int64_t>();
  }
  if (on_guess != nullptr) on_guess("how many elements are chosen", op.name.c_str());
  return mask.numel();
}

// The mask of an index, and how many indices are before it.
std::pair<Tensor, int64_t> mask_of(const IValue& indices) {
  int64_t position = 0;
  for (const IValue& each : indices.toListRef()) {
    if (each.isTensor() && each.toTensor().defined()) {
      const Tensor& index = each.toTensor();
      return {index.scalar_type() == at::kBool ? index : Tensor(), position};
    }
    ++position;
  }
  return {Tensor(), 0};
}

// Values that nobody has are not the same.  CUDA compares each, and waits (aten/src/ATen/native/cuda/Equal.cpp, cuda_equal).
bool equal(const Tensor& self, const Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  if (self.is_alias_of(other) && self.storage_offset() == other.storage_offset() && self.strides() == other.strides()) return true;
  if (self.is_cuda()) {
    self.eq(other).all();
    wait_for_card();
  }
  if (on_guess != nullptr) on_guess("a value", "aten::equal");
  return false;
}

// Results that depend on values: `equal`; in their size `nonzero`, `masked_select`, an index by a mask.
bool by_values(const Call& call, Stack* stack) {
  const std::string& name = call.op.name;
  if (name == "aten::equal") {
    stack->push_back(equal(call.arguments[0].toTensor(), call.arguments[1].toTensor()));
    return true;
  }
  if (name != "aten::index" && name != "aten::nonzero" && name != "aten::masked_select") return false;
  const Tensor& source = call.arguments[0].toTensor();
  const auto options = source.options();
  if (name == "aten::nonzero") {
    stack->push_back(at::empty({n_chosen(source, call.op), source.dim()}, options.dtype(at::kLong)));
  } else if (name == "aten::masked_select") {
    const Tensor& mask = call.arguments[1].toTensor();
    const auto sizes = at::infer_size(source.sizes(), mask.sizes());
    stack->push_back(at::empty({n_chosen(mask.expand(sizes), call.op)}, options));
  } else {
    const auto [mask, before] = mask_of(call.arguments[1]);
    if (!mask.defined()) return false;
    std::vector<int64_t> sizes(source.sizes().begin(), source.sizes().begin() + before);
    sizes.push_back(n_chosen(mask, call.op));
    sizes.insert(sizes.end(), source.sizes().begin() + before + mask.dim(), source.sizes().end());
    stack->push_back(at::empty(sizes, options));
  }
  return true;
}

at::Device device_of(const std::vector<IValue>& arguments) {
  at::Device found(at::kCPU);
  bool any = false;
  for (const IValue& value : arguments) {
    each_tensor(value, [&](const Tensor& each) {
      if (!any || (each.is_cuda() && !found.is_cuda())) found = each.device(), any = true;
    });
    if (value.isDevice()) found = value.toDevice(), any = true;
  }
  return found;
}

// Copies of arguments that have gaps, which a kernel takes after its outputs and gives back.
void take_copies(const Call& call) {
  std::vector<Tensor> copies;
  for (const IValue& value : call.arguments) {
    each_tensor(value, [&](const Tensor& each) {
      if (each.is_cuda() && !each.is_contiguous()) copies.push_back(at::empty(each.sizes(), each.options()));
    });
  }
}

void pretend(const OperatorHandle& handle, Stack* stack) {
  const Operator& op = about(handle);
  const size_t n = handle.schema().arguments().size();
  Call call{handle, op, std::vector<IValue>(stack->end() - n, stack->end()), at::Device(at::kCPU)};
  call.device = device_of(call.arguments);
  stack->resize(stack->size() - n);
  const size_t first = stack->size();
  if (call.device.is_cuda() && computable(call)) {
    try {
      run_on(call, stack, DispatchKey::CPU);
      for (size_t i = 0; i < n; ++i) {
        if (op.is_written[i]) each_tensor(call.arguments[i], [&](const Tensor& each) { note_values(each, call.guessed, false); });
      }
      return;
    } catch (const c10::Error&) {
      stack->resize(first);  // no kernel for this dtype on the CPU, or the program's own mistake: the shapes will tell
    }
  }
  bool sized = op.only_writes;
  for (size_t i = 0; i < n && sized; ++i) {
    if (op.is_out[i]) each_tensor(call.arguments[i], [&](const Tensor& each) { sized = sized && each.numel() > 0; });
  }
  if (sized) {
    for (const auto& result : handle.schema().returns()) stack->push_back(result_of(call, result, IValue(), {}, false));
  } else if (!by_values(call, stack)) {
    try {
      run_on(call, stack, DispatchKey::Meta);
    } catch (const c10::NotImplementedError&) {
      if (on_refusal != nullptr) on_refusal("has no shape function", op.name.c_str());
      throw;
    }
  }
  guess_results(call, stack, first);
  if (op.reads_copies) take_copies(call);
}

void on_card(const OperatorHandle& handle, Stack* stack) { pretend(handle, stack); }

int64_t product_workspace = 0;
// Cards on which this thread multiplied: each thread has a handle of cuBLAS with a workspace, also that of autograd's engine
// (CublasHandlePool.cpp, myPoolWindow).
thread_local std::unordered_set<int64_t> with_workspace;

int64_t source_of(const Stack& stack, size_t n) {
  if (n == 0 || !stack[stack.size() - n].isTensor()) return -1;
  const Block* block = block_of(stack[stack.size() - n].toTensor());
  return block != nullptr && block->on_card ? block->id : -1;
}

// The card that an operator runs on: that of its first tensor (torch's own code for each operator, DeviceGuard).
std::optional<c10::Device> card_of(const Stack& stack, size_t n) {
  std::optional<c10::Device> found;
  for (size_t i = stack.size() - n; i < stack.size() && !found; ++i) {
    each_tensor(stack[i], [&](const Tensor& each) {
      if (!found && each.is_cuda()) found = each.device();
    });
  }
  return found;
}

// Sees every operator below autograd: names it for the log, and keeps the CPU from touching large host tensors.
void front(const OperatorHandle& handle, DispatchKeySet keys, Stack* stack) {
  const Operator& op = about(handle);
  const size_t n = handle.schema().arguments().size();
  InOperator scope(op.number, source_of(*stack, n));
  const c10::OptionalDeviceGuard guard(card_of(*stack, n));
  if (op.is_product && product_workspace > 0 && (*stack)[stack->size() - n].toTensor().is_cuda() &&
      with_workspace.insert(current_device()).second) {
    take(product_workspace, number_of_operator("cuBLAS workspace"));
  }
  if (op.runs_on_host && !op.is_view) {
    bool hollow = false, card = false;
    for (size_t i = stack->size() - n; i < stack->size(); ++i) {
      each_tensor((*stack)[i], [&](const Tensor& each) {
        hollow = hollow || is_hollow(each);
        card = card || each.is_cuda();
      });
    }
    if (hollow && !card && op.name != "aten::set_" && op.name != "aten::resize_") return pretend(handle, stack);
  }
  handle.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::Fake), stack);
}

Tensor card_empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                  std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, card_allocator(), DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

Tensor card_empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, card_allocator(), DispatchKeySet(DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

const Tensor& card_resize(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  resize_like(self, at::detail::empty_meta(size, self.scalar_type()));
  return self;
}

// The host waits for a copy from it or to it, unless it is told not to (aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda).
Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.numel() == 0) return self;
  if (!non_blocking && !(self.is_cuda() && source.is_cuda())) wait_for_card();
  Block *to = block_of(self), *from = block_of(source);
  // Whole numbers may come from marks in floating point, which many elements carry.
  const bool marked = !self.is_floating_point();
  const bool readable = has_values(source) && is_small(source, marked) && (from == nullptr || from->real);
  if (readable && is_small(self) && (to == nullptr || to->real)) {
    const bool guessed = from != nullptr && from->guessed;
    c10::impl::ExcludeDispatchKeyGuard no_front(DispatchKeySet(DispatchKey::Fake));
    Tensor target = on_host(self);
    target.copy_(on_host(source).expand_as(target));
    note_values(self, guessed, false);
    if (guessed && self.is_cpu() && on_guess != nullptr) on_guess("values copied to the host", "aten::copy_");
  } else if (self.is_cuda()) {
    if (to == nullptr) return self;
    to->known = false;
    to->all_no = from != nullptr && from->all_no;
    if (readable && source.scalar_type() == at::kBool) {
      c10::impl::ExcludeDispatchKeyGuard no_front(DispatchKeySet(DispatchKey::Fake));
      to->all_no = !on_host(source).any().item<bool>();
    }
  } else if (to == nullptr) {
    if (on_guess != nullptr) on_guess("values copied to the host", "aten::copy_");
    self.fill_(self.scalar_type() != at::kBool);
  }
  return self;
}

at::Scalar scalar_of(const Tensor& self) {
  if (self.is_cuda()) wait_for_card();
  const Block* block = block_of(self);
  if ((block == nullptr || block->guessed || !block->known) && on_guess != nullptr) on_guess("a value", "aten::item");
  if (block == nullptr || !block->real || !block->known) return at::isFloatingType(self.scalar_type()) ? at::Scalar(1.0) : at::Scalar(1);
  return on_host(self).item();
}

// What a factorisation says of values that nobody has: all is well.  CUDA's waits to be told.
void no_errors(const Tensor&, std::string_view, bool) {
  wait_for_card();
  if (on_guess != nullptr) on_guess("a value", "aten::_linalg_check_errors");
}

Tensor& set_source(Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* implementation = self.unsafeGetTensorImpl();
  implementation->set_storage_keep_dtype(source);
  implementation->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) implementation->set_sizes_contiguous(size);
  else implementation->set_sizes_and_strides(size, stride);
  return self;
}

// FSDP1 gives its flat parameters their shards so: without this they would stay whole.
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_source(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  return set_source(self, source, 0, {static_cast<int64_t>(source.nbytes() / self.element_size())}, {});
}

Tensor& set_empty(Tensor& self) {
  return set_storage(self, at::Storage(at::Storage::use_byte_size_t(), 0, card_allocator(), true));
}

void record_on_stream(Tensor& self, at::Stream stream) { record_stream(block_of(self), stream.id()); }
bool not_pinned(const Tensor&, std::optional<at::Device>) { return false; }

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_card>()); }
TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&front>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", card_empty);
  m.impl("empty_strided", card_empty_strided);
  m.impl("resize_", card_resize);
  m.impl("copy_", copy);
  m.impl("_local_scalar_dense", scalar_of);
  m.impl("_linalg_check_errors", no_errors);
  m.impl("set_.source_Storage_storage_offset", set_source);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_", set_empty);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("record_stream", record_on_stream);
  m.impl("is_pinned", not_pinned);
  // CUDA has kernels of its own for these, beside code that would stand in for them (torch 2.13 native_functions.yaml).
  // A convolution is cuDNN's there, in one piece; its workspace is left out.
  for (const char* name : {"addr", "addr.out", "convolution", "convolution_backward", "native_group_norm", "native_layer_norm", "_fused_rms_norm",
                           "silu_backward", "mish_backward", "_chunk_cat", "_chunk_cat.out", "_grouped_mm",
                           "split_with_sizes_copy.out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_card>());
  }
}

}  // namespace
}  // namespace dry

extern "C" {
void dry_choose(int64_t share) { dry::chosen_share = share; }
void dry_listen(void (*guess)(const char*, const char*), void (*refusal)(const char*, const char*)) {
  dry::on_guess = guess;
  dry::on_refusal = refusal;
}
void dry_see_thread() { c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, true); }
void dry_begin(int64_t product_workspace_bytes, const char* products, const char* reads_copies) {
  const auto names = [](const char* text) {
    std::istringstream words(text);
    return std::unordered_set<std::string>(std::istream_iterator<std::string>(words), {});
  };
  dry::products = names(products);
  dry::reads_copies = names(reads_copies);
  dry::product_workspace = product_workspace_bytes;
  dry_see_thread();
}
}
