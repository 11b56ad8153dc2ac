// conv_transpose1d's forward pass and its gradient of the input on CUDA: which kernel, and its memory.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/ConvTranspose1dDepthwise.cuh>
#include <ATen/native/cuda/ConvTranspose1dThin.cuh>
#include <ATen/native/cuda/ConvTranspose1dThinGrad.h>

#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAMacros.h>
#include <c10/cuda/CUDAStream.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

#include <array>
#include <atomic>

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
  const Workspace<Shape> workspace(p, tiling);
  if (tiling.weight_slots < 2 || workspace.weight_blocks + workspace.source_blocks >= (int64_t(1) << 31)) {
    return false; // too little shared memory, or too large a grid
  }
  const auto memory = at::empty({workspace.bytes}, options.dtype(kByte));
  launch_gemm<Shape>(
      p, tiling, t, static_cast<char*>(memory.mutable_data_ptr()), device, c10::cuda::getCurrentCUDAStream());
  return true;
}

template <typename Shape>
bool try_thin(
    const Problem& p,
    const Tensors<typename Shape::Format::scalar_t>& t,
    const Device& device,
    const TensorOptions& options) {
  const auto tiling = make_thin_tiling<Shape>(p, device);
  if (!fits_thin<Shape>(p, tiling, t.out, device)) {
    return false;
  }
  const auto memory = at::empty({thin_bytes<Shape>(tiling)}, options.dtype(kByte));
  launch_thin<Shape>(
      p, tiling, t, static_cast<char*>(memory.mutable_data_ptr()), device, c10::cuda::getCurrentCUDAStream());
  return true;
}

template <typename Format>
bool run_gemm(const Problem& p, const Tensors<typename Format::scalar_t>& t, const TensorOptions& options) {
  const auto device = current_device();
  // 32 or 64 source channels.
  constexpr int kChunks = 8 / Format::kBlock;
  if (try_thin<ThinShape<Format, kChunks>>(p, t, device, options) ||
      try_thin<ThinShape<Format, 2 * kChunks>>(p, t, device, options)) {
    return true;
  }
  const auto rows = p.out_channels * p.phases;
  if (rows <= kGroupRows) {
    return try_gemm<TileShape<Format, 1, 2, 128>>(p, t, device, options);
  }
  if constexpr (!Format::kExact) {
    // A wide tile takes as long as 1.6 others, by measurement.
    using Wide = TileShape<Format, 2, 1, 256>;
    const auto rounds = [&](int64_t tiles) { return static_cast<double>(ceil_div(tiles, device.processors)); };
    if (1.6 * rounds(make_tiling<Wide>(p, device).tiles) <=
        rounds(make_tiling<TileShape<Format, 2, 1, 128>>(p, device).tiles)) {
      return try_gemm<Wide>(p, t, device, options);
    }
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
  return fits_gemm(p) && p.depth() >= 8 && p.out_channels * p.phases >= 8;
}

template <typename scalar_t>
void launch_direct(const Problem& p, const Tensors<scalar_t>& t, cudaStream_t stream) {
  if (fits_depthwise(p)) {
    launch_depthwise(p, t, stream);
  } else {
    launch_plain(p, t, stream);
  }
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
      launch_direct(p, t, stream);
    }
  } else if (out.scalar_type() == kHalf) {
    const auto t = as_tensors<__half, at::Half>(source, weight, bias, out);
    if (!(gemm && run_gemm<HalfFormat>(p, t, options))) {
      launch_direct(p, t, stream);
    }
  } else {
    const auto t = as_tensors<__nv_bfloat16, at::BFloat16>(source, weight, bias, out);
    if (!(gemm && run_gemm<BFloat16Format>(p, t, options))) {
      launch_direct(p, t, stream);
    }
  }
}

// Of the compiled variants of this, the driver takes the same as of the others; its bounds tell which.
constexpr int kProbeThreads = 256;
__global__ void __launch_bounds__(CONV_TRANSPOSE1D_WGMMA ? kProbeThreads : kProbeThreads / 2) wgmma_probe() {}

} // namespace

bool conv_transpose1d_has_wgmma_cuda() {
  enum Answer : uint8_t { Unknown, No, Yes };
  static std::array<std::atomic<Answer>, C10_COMPILE_TIME_MAX_GPUS> answers{};
  auto& answer = answers[c10::cuda::current_device()];
  if (answer == Unknown) {
    cudaFuncAttributes attributes{};
    C10_CUDA_CHECK(cudaFuncGetAttributes(&attributes, wgmma_probe));
    answer = attributes.maxThreadsPerBlock == kProbeThreads ? Yes : No;
  }
  return answer == Yes;
}

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
  if (grad_input.numel() > 0 && thin_grad_input(grad_input, grad_output, weight, params, math)) {
    return;
  }
  const auto p = grad_input_problem(grad_input.sizes(), weight.sizes(), grad_output.size(2), params);
  run(p, grad_output, weight, Tensor(), grad_input, math);
}

} // namespace at::native
