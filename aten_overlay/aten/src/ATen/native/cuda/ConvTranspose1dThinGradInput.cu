// conv_transpose1d's gradient of the input on CUDA straight from grad_output: which kernel.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/ConvTranspose1dThinGrad.h>
#include <ATen/native/cuda/ConvTranspose1dThinGradInput.cuh>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace at::native::conv_transpose1d {

namespace {

template <typename Shape>
bool try_shape(const Problem& p, const Tensors<typename Shape::scalar_t>& t, const Device& device) {
  const auto tiling = make_thin_grad_input_tiling<Shape>(p, device);
  if (!fits_thin_grad_input<Shape>(p, tiling, device)) {
    return false;
  }
  launch_thin_grad_input<Shape>(p, tiling, t, c10::cuda::getCurrentCUDAStream());
  return true;
}

template <typename Format, typename scalar_t>
bool try_format(const Problem& p, const Tensor& grad_input, const Tensor& grad_output, const Tensor& weight) {
  using device_t = typename Format::scalar_t;
  const Tensors<device_t> t{
      reinterpret_cast<const device_t*>(grad_output.const_data_ptr<scalar_t>()),
      reinterpret_cast<const device_t*>(weight.const_data_ptr<scalar_t>()),
      nullptr,
      reinterpret_cast<device_t*>(grad_input.mutable_data_ptr<scalar_t>())};
  const auto device = current_device();
  constexpr int kFew = Format::kExact ? 2 : 3, kMany = Format::kPlanes == 1 ? 4 : 2; // blocks on a processor
  if (p.out_channels <= 32) {
    return p.taps == 2 ? try_shape<ThinGradInputShape<Format, 64, 32, 2, 8, kMany>>(p, t, device)
        : p.taps == 3  ? try_shape<ThinGradInputShape<Format, 64, 32, 3, 8, kMany>>(p, t, device)
                       : try_shape<ThinGradInputShape<Format, 64, 32, 5, 12, kMany>>(p, t, device);
  }
  return try_shape<ThinGradInputShape<Format, 64, 64, 2, 8, kFew>>(p, t, device);
}

} // namespace

bool thin_grad_input(
    const Tensor& grad_input,
    const Tensor& grad_output,
    const Tensor& weight,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math) {
  const c10::cuda::CUDAGuard guard(grad_input.device());
  const auto p = grad_input_problem(grad_input.sizes(), weight.sizes(), grad_output.size(2), params);
  if (!conv_transpose1d_has_wgmma_cuda() || !fits_gemm(p)) {
    return false;
  }
  return with_grad_format(grad_input.scalar_type(), math, [&](auto format, auto scalar) {
    return try_format<decltype(format), decltype(scalar)>(p, grad_input, grad_output, weight);
  });
}

} // namespace at::native::conv_transpose1d
