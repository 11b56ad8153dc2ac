// Registers the CUDA kernels of convolution and convolution_backward, as a build's RegisterCUDA.cpp does by the edits of
// native_functions.yaml. The wheel has a CUDA kernel of the second, and the dispatcher warns that it is overridden.
#include "override_is_meant.h"

#include <ATen/DeviceGuard.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace at::native {

// In a build, ATen/ops/convolution_native.h and its like declare them.
Tensor convolution_cuda(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups);

std::tuple<Tensor, Tensor, Tensor> convolution_backward_cuda(
    const Tensor& grad_output,
    const Tensor& input,
    const Tensor& weight,
    OptionalIntArrayRef bias_sizes,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> output_mask);

} // namespace at::native

namespace {

at::Tensor wrapper_CUDA__convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  const at::OptionalDeviceGuard guard(at::device_of(input));
  return at::native::convolution_cuda(
      input,
      weight,
      bias,
      C10_AS_INTARRAYREF_SLOW(stride),
      C10_AS_INTARRAYREF_SLOW(padding),
      C10_AS_INTARRAYREF_SLOW(dilation),
      transposed,
      C10_AS_INTARRAYREF_SLOW(output_padding),
      groups.guard_int(__FILE__, __LINE__));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> wrapper_CUDA__convolution_backward(
    const at::Tensor& grad_output,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::OptionalSymIntArrayRef bias_sizes,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups,
    std::array<bool, 3> output_mask) {
  std::optional<at::Device> device;
  c10::impl::check_and_update_common_device(device, grad_output, __func__, "grad_output");
  c10::impl::check_and_update_common_device(device, input, __func__, "input");
  c10::impl::check_and_update_common_device(device, weight, __func__, "weight");
  const at::OptionalDeviceGuard guard(at::device_of(grad_output));
  return at::native::convolution_backward_cuda(
      grad_output,
      input,
      weight,
      bias_sizes.has_value() ? at::OptionalIntArrayRef(C10_AS_INTARRAYREF_SLOW(*bias_sizes)) : std::nullopt,
      C10_AS_INTARRAYREF_SLOW(stride),
      C10_AS_INTARRAYREF_SLOW(padding),
      C10_AS_INTARRAYREF_SLOW(dilation),
      transposed,
      C10_AS_INTARRAYREF_SLOW(output_padding),
      groups.guard_int(__FILE__, __LINE__),
      output_mask);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  const OverrideIsMeant guard;
  m.impl("convolution", TORCH_FN(wrapper_CUDA__convolution));
  m.impl("convolution_backward", TORCH_FN(wrapper_CUDA__convolution_backward));
}
