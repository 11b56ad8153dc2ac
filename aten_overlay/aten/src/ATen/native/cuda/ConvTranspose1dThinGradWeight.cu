// conv_transpose1d's gradient of the weight on CUDA straight from the tensors: which kernel, and its memory.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/ConvTranspose1dThinGrad.h>
#include <ATen/native/cuda/ConvTranspose1dThinGradWeight.cuh>

#include <c10/cuda/CUDAStream.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

namespace at::native::conv_transpose1d {

namespace {

template <typename scalar_t>
struct GradWeightTensors {
  const scalar_t* input;
  const scalar_t* grad_output;
  scalar_t* grad_weight;
  scalar_t* grad_bias; // or null
};

template <typename Shape>
ThinGradWeight try_shape(
    const WeightGradProblems& p,
    const GradWeightTensors<typename Shape::scalar_t>& t,
    const Device& device,
    const TensorOptions& options) {
  const auto tiling = make_thin_grad_tiling<Shape>(p, device);
  // With more tiles, reading the same for each of them takes longer than packing it once.
  constexpr int kMaxTiles = 12;
  if (tiling.tiles > kMaxTiles * p.input.groups || !fits_thin_grad<Shape>(p, tiling)) {
    return ThinGradWeight::Nothing;
  }
  const bool with_bias = t.grad_bias && covers_bias<Shape>(p, tiling);
  const Tensor memory = at::empty({thin_grad_workspace<Shape>(tiling)}, options.dtype(kFloat));
  launch_thin_grad<Shape>(
      p,
      tiling,
      t.input,
      t.grad_output,
      t.grad_weight,
      with_bias ? t.grad_bias : nullptr,
      memory.mutable_data_ptr<float>(),
      c10::cuda::getCurrentCUDAStream());
  return with_bias ? ThinGradWeight::WeightAndBias : ThinGradWeight::Weight;
}

template <typename Format, typename scalar_t>
ThinGradWeight try_format(
    const WeightGradProblems& p,
    const Tensor& grad_weight,
    const Tensor& grad_bias,
    const Tensor& grad_output,
    const Tensor& input) {
  using device_t = typename Format::scalar_t;
  const GradWeightTensors<device_t> t{
      reinterpret_cast<const device_t*>(input.const_data_ptr<scalar_t>()),
      reinterpret_cast<const device_t*>(grad_output.const_data_ptr<scalar_t>()),
      reinterpret_cast<device_t*>(grad_weight.mutable_data_ptr<scalar_t>()),
      grad_bias.defined() ? reinterpret_cast<device_t*>(grad_bias.mutable_data_ptr<scalar_t>()) : nullptr};
  const auto device = current_device();
  const auto options = grad_weight.options();
  const auto attempt = [&](auto shape) { return try_shape<decltype(shape)>(p, t, device, options); };
  // As many blocks on a processor as registers allow.
  constexpr int kBlocks = Format::kExact ? 2 : 3, kMany = Format::kPlanes == 1 ? 4 : kBlocks;
  if (p.input.channels <= 32) {
    return p.grad_output.taps <= 3 ? attempt(ThinGradShape<Format, 32, 3, 8, 64, 3>())
                                   : attempt(ThinGradShape<Format, 32, 5, 16, 64, kMany>());
  }
  return p.grad_output.taps % 3 == 0 ? attempt(ThinGradShape<Format, 64, 3, 8, 64, kBlocks>())
                                     : attempt(ThinGradShape<Format, 64, 2, 8, 64, 3>());
}

} // namespace

ThinGradWeight thin_grad_weight(
    const Tensor& grad_weight,
    const Tensor& grad_bias,
    const Tensor& grad_output,
    const Tensor& input,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math) {
  const auto p = weight_grad_problems(input.sizes(), grad_weight.sizes(), grad_output.size(2), params);
  if (!conv_transpose1d_has_wgmma_cuda() || !fits_weight_grad(p) || p.input.depth() < 8 || p.grad_output.depth() < 8) {
    return ThinGradWeight::Nothing;
  }
  return with_grad_format(input.scalar_type(), math, [&](auto format, auto scalar) {
    return try_format<decltype(format), decltype(scalar)>(p, grad_weight, grad_bias, grad_output, input);
  });
}

} // namespace at::native::conv_transpose1d
