// conv_transpose1d's forward pass and its gradient of the input on CUDA: which kernel, and its memory.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/ConvTranspose1dGemm.cuh>

#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

namespace at::native {

namespace {

using namespace conv_transpose1d;

Device current_device() {
  const auto attribute = [](cudaDeviceAttr name) {
    int value = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, c10::cuda::current_device()));
    return value;
  };
  return {attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

template <typename Shape>
bool try_gemm(
    const Problem& p,
    const Tensors<typename Shape::Format::scalar_t>& t,
    const Device& device,
    const TensorOptions& options) {
  const auto tiling = make_tiling<Shape>(p, device);
  if (tiling.weight_slots < 2) {
    return false; // too little shared memory
  }
  const auto memory = at::empty({Workspace<Shape>(p, tiling).bytes}, options.dtype(kByte));
  launch_gemm<Shape>(
      p, tiling, t, static_cast<char*>(memory.mutable_data_ptr()), device, c10::cuda::getCurrentCUDAStream());
  return true;
}

template <typename Format>
bool run_gemm(const Problem& p, const Tensors<typename Format::scalar_t>& t, const TensorOptions& options) {
  const auto device = current_device();
  const auto rows = p.out_channels * p.phases;
  if (rows <= kGroupRows) {
    return try_gemm<TileShape<Format, 1, 2, 128>>(p, t, device, options);
  }
  // Wide tiles read less, if there are enough of them for all processors.
  using Wide = TileShape<Format, 2, 1, 256>;
  if (make_tiling<Wide>(p, device).tiles >= device.processors) {
    return try_gemm<Wide>(p, t, device, options);
  }
  return try_gemm<TileShape<Format, 2, 1, 128>>(p, t, device, options);
}

template <typename device_t, typename scalar_t>
Tensors<device_t> as_tensors(const Tensor& source, const Tensor& weight, const Tensor& bias, const Tensor& out) {
  static_assert(sizeof(device_t) == sizeof(scalar_t));
  const auto data = [](const Tensor& tensor) {
    return reinterpret_cast<const device_t*>(tensor.const_data_ptr<scalar_t>());
  };
  return {
      data(source),
      data(weight),
      bias.defined() ? data(bias) : nullptr,
      reinterpret_cast<device_t*>(out.mutable_data_ptr<scalar_t>())};
}

// With little depth, or few rows, most of the tensor cores' work would be on zeros.
bool uses_gemm(const Problem& p) {
  return fits_gemm(p) && p.depth() * p.taps >= 16 && p.out_channels * p.phases >= 8;
}

void run(
    const Problem& p,
    const Tensor& source,
    const Tensor& weight,
    const Tensor& bias,
    const Tensor& out,
    ConvTranspose1dMath math) {
  if (out.numel() == 0) {
    return;
  }
  const c10::cuda::CUDAGuard guard(out.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto options = out.options();
  const bool gemm = uses_gemm(p);
  if (out.scalar_type() == kFloat) {
    const auto t = as_tensors<float, float>(source, weight, bias, out);
    if (!(gemm && (math == ConvTranspose1dMath::TF32 ? run_gemm<TF32Format>(p, t, options)
                                                     : run_gemm<ExactFormat>(p, t, options)))) {
      launch_plain(p, t, stream);
    }
  } else if (out.scalar_type() == kHalf) {
    const auto t = as_tensors<__half, at::Half>(source, weight, bias, out);
    if (!(gemm && run_gemm<HalfFormat>(p, t, options))) {
      launch_plain(p, t, stream);
    }
  } else {
    const auto t = as_tensors<__nv_bfloat16, at::BFloat16>(source, weight, bias, out);
    if (!(gemm && run_gemm<BFloat16Format>(p, t, options))) {
      launch_plain(p, t, stream);
    }
  }
}

} // namespace

void conv_transpose1d_out_cuda(
    const Tensor& output,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& bias,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math) {
  const auto p = forward_problem(input.sizes(), weight.sizes(), output.size(2), params);
  run(p, input, weight, bias, output, math);
}

void conv_transpose1d_grad_input_out_cuda(
    const Tensor& grad_input,
    const Tensor& grad_output,
    const Tensor& weight,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math) {
  const auto p = grad_input_problem(grad_input.sizes(), weight.sizes(), grad_output.size(2), params);
  run(p, grad_output, weight, Tensor(), grad_input, math);
}

bool conv_transpose1d_is_faster_cuda(
    ConvTranspose1dPass pass,
    ScalarType dtype,
    ConvTranspose1dMath math,
    IntArrayRef input_sizes,
    IntArrayRef weight_sizes,
    const ConvTranspose1dParams& params) {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c10::cuda::current_device()));
  if (major != 9) {
    return false; // not measured
  }
  const auto out_length = (input_sizes[2] - 1) * params.stride - 2 * params.padding +
      params.dilation * (weight_sizes[2] - 1) + params.output_padding + 1;
  if (out_length <= 0 || input_sizes[0] == 0 || (pass != ConvTranspose1dPass::Forward && pass != ConvTranspose1dPass::GradInput)) {
    return false;
  }
  const auto p = pass == ConvTranspose1dPass::Forward
      ? forward_problem(input_sizes, weight_sizes, out_length, params)
      : grad_input_problem(input_sizes, weight_sizes, out_length, params);
  return dtype == kFloat && math == ConvTranspose1dMath::Exact && uses_gemm(p) && p.multiply_adds() >= 2e9;
}

} // namespace at::native
