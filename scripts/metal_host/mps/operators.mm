// The operators that a backend cannot do without: memory, copies, views. All others fall back to the CPU, and are counted.
#include "commands.h"
#include "device.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/mps/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <map>

namespace metal_host {

using namespace at;

namespace {

std::mutex fallback_mutex;
std::map<std::string, int64_t> fallback_counts;

std::shared_ptr<DeviceMemory> memory_of_storage(const Tensor& tensor) {
  const void* handle = tensor.storage().data();
  return handle == nullptr ? nullptr : memory_of(handle);
}

// ---- Memory --------------------------------------------------------------------------------

const DispatchKeySet kKeys(DispatchKey::MPS);

ScalarType supported_dtype(std::optional<ScalarType> dtype) {
  const auto type = dtype_or_default(dtype);
  TORCH_CHECK_TYPE(
      type != kDouble && type != kComplexDouble,
      "Cannot convert a MPS Tensor to ", type, " dtype as the MPS framework doesn't support ", type,
      ". Please use float32 instead.");
  return type;
}

Tensor empty_mps(
    IntArrayRef size,
    std::optional<ScalarType> dtype,
    std::optional<Layout> layout,
    std::optional<Device>,
    std::optional<bool>,
    std::optional<MemoryFormat> format) {
  TORCH_CHECK(layout_or_default(layout) == kStrided, "only strided tensors are simulated");
  return at::detail::empty_generic(size, mps_allocator(), kKeys, supported_dtype(dtype), format);
}

Tensor empty_strided_mps(
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<ScalarType> dtype,
    std::optional<Layout> layout,
    std::optional<Device>,
    std::optional<bool>) {
  TORCH_CHECK(layout_or_default(layout) == kStrided, "only strided tensors are simulated");
  return at::detail::empty_strided_generic(size, stride, mps_allocator(), kKeys, supported_dtype(dtype));
}

void grow_storage(TensorImpl* tensor, size_t bytes) {
  auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  if (bytes <= storage->nbytes()) {
    return;
  }
  auto data = mps_allocator()->allocate(bytes);
  if (storage->data() != nullptr) {
    mps_allocator()->copy_data(data.get(), storage->data(), storage->nbytes());
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

const Tensor& resize_mps(const Tensor& self, IntArrayRef size, std::optional<MemoryFormat> format) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  grow_storage(tensor, (self.numel() + self.storage_offset()) * self.itemsize());
  if (format.has_value()) {
    tensor->empty_tensor_restride(*format);
  }
  return self;
}

Tensor& set_storage_mps(Tensor& self, Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(storage));
  tensor->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    tensor->set_sizes_contiguous(size);
  } else {
    tensor->set_sizes_and_strides(size, stride);
  }
  return self;
}

// ---- Copies --------------------------------------------------------------------------------

// What only the device takes part in, and what the host does not wait for, is done later.
Tensor& copy_mps(Tensor& self, const Tensor& source, bool non_blocking) {
  const bool from_host = !source.is_mps();
  if (from_host || !(self.is_mps() || non_blocking)) {
    synchronize();
    host_view(self).copy_(host_view(source));
    return self;
  }
  const auto keep = std::pair{memory_of_storage(source), self.is_mps() ? memory_of_storage(self) : nullptr};
  CommandQueue::instance().add([to = host_view(self), from = host_view(source), keep] {
    const c10::InferenceMode no_autograd;
    Tensor(to).copy_(from);
  });
  return self;
}

Tensor copy_from_mps(const Tensor& self, const Tensor& destination, bool non_blocking) {
  Tensor to = destination;
  copy_mps(to, self, non_blocking);
  return destination;
}

Tensor copy_from_and_resize_mps(const Tensor& self, const Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from_mps(self, destination, false);
}

Scalar local_scalar_dense_mps(const Tensor& self) {
  synchronize();
  return host_view(self).item();
}

// ---- Everything else -----------------------------------------------------------------------

void fallback_to_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  {
    const std::lock_guard lock(fallback_mutex);
    ++fallback_counts[op.schema().name()];
  }
  native::cpu_fallback(op, stack);
}

c10::Dict<std::string, int64_t> as_dict(const std::map<std::string, int64_t>& counts) {
  c10::Dict<std::string, int64_t> result;
  for (const auto& [name, count] : counts) {
    result.insert(name, count);
  }
  return result;
}

c10::Dict<std::string, int64_t> fallbacks() {
  const std::lock_guard lock(fallback_mutex);
  return as_dict(fallback_counts);
}

c10::Dict<std::string, int64_t> dispatches() {
  return as_dict(CommandQueue::instance().dispatches());
}

// Registers the fallback over the kernel of one overload.
void forget(std::string overload) {
  static std::vector<torch::Library> libraries;
  auto& library = libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::MPS, __FILE__, __LINE__);
  library.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback_to_cpu>());
}

void load_library(std::string path) {
  load_kernels(path);
}

void set_options(int64_t schedule, int64_t host_threads) {
  CommandQueue::instance().wait();
  CommandQueue::instance().options = {static_cast<int32_t>(schedule), static_cast<uint32_t>(host_threads)};
}

} // namespace

Tensor host_view(const Tensor& tensor) {
  if (!tensor.is_mps()) {
    return tensor;
  }
  const auto memory = memory_of_storage(tensor);
  const auto offset = tensor.storage_offset() * tensor.itemsize();
  char* data = memory ? memory->data + offset : nullptr;
  auto view = at::from_blob(data, tensor.sizes(), tensor.strides(), TensorOptions(tensor.scalar_type()));
  if (tensor.is_conj()) {
    view = view.conj();
  }
  return tensor.is_neg() ? view._neg_view() : view;
}

} // namespace metal_host

// What the generated registrations of structured operators make their outputs with.
namespace at::detail {

TensorBase empty_mps(IntArrayRef size, const TensorOptions& options) {
  return metal_host::empty_mps(
      size, optTypeMetaToScalarType(options.dtype_opt()), options.layout_opt(), options.device_opt(),
      options.pinned_memory_opt(), options.memory_format_opt());
}

TensorBase empty_strided_mps(IntArrayRef size, IntArrayRef stride, const TensorOptions& options) {
  return metal_host::empty_strided_mps(
      size, stride, optTypeMetaToScalarType(options.dtype_opt()), options.layout_opt(), options.device_opt(),
      options.pinned_memory_opt());
}

} // namespace at::detail

TORCH_LIBRARY_IMPL(_, MPS, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&metal_host::fallback_to_cpu>());
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", &metal_host::empty_mps);
  m.impl("empty_strided", &metal_host::empty_strided_mps);
  m.impl("resize_", &metal_host::resize_mps);
  m.impl("set_.source_Storage_storage_offset", &metal_host::set_storage_mps);
  m.impl("copy_", &metal_host::copy_mps);
  m.impl("_copy_from", &metal_host::copy_from_mps);
  m.impl("_copy_from_and_resize", &metal_host::copy_from_and_resize_mps);
  m.impl("_local_scalar_dense", &metal_host::local_scalar_dense_mps);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
}

TORCH_LIBRARY(metal_host, m) {
  m.def("load_kernels(str path) -> ()", &metal_host::load_library);
  m.def("forget(str overload) -> ()", &metal_host::forget);
  m.def("set_options(int schedule, int host_threads) -> ()", &metal_host::set_options);
  m.def("dispatches() -> Dict(str, int)", &metal_host::dispatches);
  m.def("fallbacks() -> Dict(str, int)", &metal_host::fallbacks);
}
