// The CUDA kernels of aten::convolution and aten::convolution_backward: a 1-D transposed convolution may go to the kernels
// of ConvTranspose1d.h, every other call goes where it went without them, errors included.
#include <ATen/native/cuda/ConvTranspose1d.h>

#include <ATen/Context.h>
#include <ATen/native/ConvTranspose1dSwitch.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

namespace at::native {

#if !defined(USE_ROCM) // the kernels have not been ported to HIP

namespace {

// Before 2.9, float32 precision was not set per operation.
template <typename Op>
bool allow_tf32(bool (Context::*getter)(std::optional<Op>) const) {
  return (globalContext().*getter)(Op::CONV);
}

[[maybe_unused]] bool allow_tf32(bool (Context::*getter)() const) {
  return (globalContext().*getter)();
}

bool is_like(const Tensor& tensor, const Tensor& input) {
  return tensor.device() == input.device() && tensor.scalar_type() == input.scalar_type() &&
      tensor.layout() == kStrided;
}

bool between(int64_t value, int64_t low) {
  return value >= low && value <= std::numeric_limits<int32_t>::max();
}

// A 1-D transposed convolution that is right in every respect, of a kind that our kernels take.
class Call {
 public:
  Call(
      const Tensor& input,
      const Tensor& weight,
      IntArrayRef stride,
      IntArrayRef padding,
      IntArrayRef dilation,
      bool transposed,
      IntArrayRef output_padding,
      int64_t groups)
      : input_(input), weight_(weight) {
    if (!transposed || input.dim() != 3 || weight.dim() != 3 || !input.is_cuda() || !is_like(input, input) ||
        !is_like(weight, input)) {
      return;
    }
    const auto dtype = input.scalar_type();
    if (dtype != kFloat && dtype != kHalf && dtype != kBFloat16) {
      return;
    }
    if (stride.size() != 1 || padding.size() != 1 || dilation.size() != 1 || output_padding.size() != 1) {
      return;
    }
    params_ = {stride[0], padding[0], output_padding[0], dilation[0], groups};
    if (!between(stride[0], 1) || !between(padding[0], 0) || !between(dilation[0], 1) || !between(groups, 1) ||
        output_padding[0] < 0 || output_padding[0] >= std::max(stride[0], dilation[0])) {
      return;
    }
    for (const auto sizes : {input.sizes(), weight.sizes()}) {
      if (!std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return between(size, 1); })) {
        return;
      }
    }
    if (input.size(1) != weight.size(0) || weight.size(0) % groups != 0 || lies_channels_last(weight)) {
      return;
    }
    output_sizes_ = {
        input.size(0),
        weight.size(1) * groups,
        (input.size(2) - 1) * stride[0] - 2 * padding[0] + dilation[0] * (weight.size(2) - 1) + output_padding[0] + 1};
    eligible_ = between(output_sizes_[1], 1) && between(output_sizes_[2], 1);
  }

  bool eligible() const {
    return eligible_;
  }

  bool takes_bias(const std::optional<Tensor>& bias) const {
    return !bias.has_value() || !bias->defined() ||
        (is_like(*bias, input_) && bias->dim() == 1 && bias->size(0) == output_sizes_[1]);
  }

  bool takes_grad_output(const Tensor& grad_output) const {
    return is_like(grad_output, input_) && grad_output.sizes() == IntArrayRef(output_sizes_);
  }

  // What the switch says about it. The device is the current one.
  bool goes_native(ConvTranspose1dPass pass) const {
    const auto kernel = conv_transpose1d_kernel();
    if (kernel == ConvTranspose1dKernel::Cudnn || capability() < 80) {
      return false;
    }
    // What was measured is cuDNN: where it cannot be used, or shall not be, nothing is known.
    const bool instead_of_cudnn = globalContext().userEnabledCuDNN() && params_.output_padding < params_.stride;
    return kernel == ConvTranspose1dKernel::Native ||
        (instead_of_cudnn &&
         conv_transpose1d_is_faster_cuda(
             pass, input_.scalar_type(), math(), input_.sizes(), weight_.sizes(), params_));
  }

  ConvTranspose1dMath math() const {
    return input_.scalar_type() == kFloat && allow_tf32(&Context::allowTF32CuDNN) ? ConvTranspose1dMath::TF32
                                                                                  : ConvTranspose1dMath::Exact;
  }

  const ConvTranspose1dParams& params() const {
    return params_;
  }

  IntArrayRef output_sizes() const {
    return output_sizes_;
  }

  static int64_t capability() {
    const auto device = c10::cuda::current_device();
    int major = 0;
    int minor = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return 10 * major + minor;
  }

 private:
  // cuDNN's output would lie likewise, which shows in its strides.
  static bool lies_channels_last(const Tensor& weight) {
    return !weight.is_contiguous() && weight.unsqueeze(2).suggest_memory_format() != MemoryFormat::Contiguous;
  }

  const Tensor& input_;
  const Tensor& weight_;
  ConvTranspose1dParams params_{};
  std::array<int64_t, 3> output_sizes_{};
  bool eligible_ = false;
};

} // namespace

bool conv_transpose1d_is_faster_cuda(
    ConvTranspose1dPass pass,
    ScalarType dtype,
    ConvTranspose1dMath math,
    IntArrayRef input_sizes,
    IntArrayRef weight_sizes,
    const ConvTranspose1dParams& params) {
  return conv_transpose1d_has_wgmma_cuda() &&
      conv_transpose1d_was_faster(Call::capability(), pass, dtype, math, input_sizes, weight_sizes, params);
}

#endif

Tensor convolution_cuda(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups) {
#if !defined(USE_ROCM)
  const Call call(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  if (call.eligible() && call.takes_bias(bias)) {
    const c10::cuda::CUDAGuard guard(input.device());
    if (call.goes_native(ConvTranspose1dPass::Forward)) {
      const auto output = at::empty(call.output_sizes(), input.options());
      const auto dense_bias = bias.has_value() && bias->defined() ? bias->contiguous() : Tensor();
      conv_transpose1d_out_cuda(
          output, input.contiguous(), weight.contiguous(), dense_bias, call.params(), call.math());
      conv_transpose1d_count(ConvTranspose1dPass::Forward);
      return output;
    }
  }
#endif
  return at::native::convolution(
      input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

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
    std::array<bool, 3> output_mask) {
  Tensor grad_input, grad_weight, grad_bias;
  auto rest = output_mask;
#if !defined(USE_ROCM)
  const Call call(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  if (call.eligible() && call.takes_grad_output(grad_output)) {
    const c10::cuda::CUDAGuard guard(input.device());
    const std::array<ConvTranspose1dPass, 3> passes = {
        ConvTranspose1dPass::GradInput, ConvTranspose1dPass::GradWeight, ConvTranspose1dPass::GradBias};
    std::array<bool, 3> ours{};
    for (const auto i : c10::irange(3)) {
      ours[i] = output_mask[i] && call.goes_native(passes[i]);
      rest[i] = output_mask[i] && !ours[i];
      if (ours[i]) {
        conv_transpose1d_count(passes[i]);
      }
    }
    if (ours[0] || ours[1] || ours[2]) {
      const auto grad = grad_output.contiguous();
      if (ours[0]) {
        grad_input = at::empty(input.sizes(), input.options());
        conv_transpose1d_grad_input_out_cuda(grad_input, grad, weight.contiguous(), call.params(), call.math());
      }
      if (ours[2]) {
        grad_bias = at::empty({grad.size(1)}, grad.options());
      }
      if (ours[1]) {
        grad_weight = at::empty(weight.sizes(), weight.options());
        conv_transpose1d_grad_weight_out_cuda(
            grad_weight, grad_bias, grad, input.contiguous(), call.params(), call.math());
      } else if (ours[2]) {
        conv_transpose1d_grad_bias_out_cuda(grad_bias, grad);
      }
      if (!rest[0] && !rest[1] && !rest[2]) {
        return {grad_input, grad_weight, grad_bias};
      }
    }
  }
#endif
  auto [their_input, their_weight, their_bias] = at::native::convolution_backward(
      grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, rest);
  return {
      grad_input.defined() ? grad_input : their_input,
      grad_weight.defined() ? grad_weight : their_weight,
      grad_bias.defined() ? grad_bias : their_bias};
}

} // namespace at::native
