// conv_transpose1d's gradients of the weight and the bias on CUDA.
//
// grad_weight[ic, oc, k] = sum over samples n and positions i of input[n, ic, i] * grad_output[n, oc, o], where
// o = stride * i + dilation * k - padding. Sums over positions are split among blocks, each of which leaves a partial
// sum of its own; these are added up in a fixed order, so that the result is the same on every run.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/ConvTranspose1dGradWeightGemm.cuh>
#include <ATen/native/cuda/ConvTranspose1dThinGrad.h>

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

constexpr int kSumThreads = 256;

// Of all threads of a block, for thread 0, in a fixed order.
template <int kValues>
__device__ void sum_block(float (&values)[kValues]) {
  __shared__ float shared[kValues][kSumThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
      values[i] += __shfl_xor_sync(0xFFFFFFFFu, values[i], half);
    }
    if (lane == 0) {
      shared[i][warp] = values[i];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = shared[i][0];
#pragma unroll
      for (int other = 1; other < kSumThreads / 32; ++other) {
        values[i] += shared[i][other];
      }
    }
  }
  __syncthreads();
}

// ---- Weight --------------------------------------------------------------------------------

constexpr int kTapsAtOnce = 8;

template <typename scalar_t>
struct WeightGradParams {
  const scalar_t* input;
  const scalar_t* grad_output;
  scalar_t* grad_weight;
  int64_t batch, in_channels, length, channels, out_channels, kernel, out_length; // channels: of a group's output
  ConvTranspose1dParams conv;
};

// A block sums kTapsAtOnce taps of one pair of channels.
template <typename scalar_t>
__global__ void __launch_bounds__(kSumThreads)
weight_grads(const __grid_constant__ WeightGradParams<scalar_t> p, int64_t blocks) {
  const auto tap_blocks = ceil_div(p.kernel, kTapsAtOnce);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const auto first = block % tap_blocks * kTapsAtOnce;
    const auto oc = block / tap_blocks % p.channels, ic = block / tap_blocks / p.channels;
    const auto channel = ic / (p.in_channels / p.conv.groups) * p.channels + oc;
    float sums[kTapsAtOnce] = {};
    for (int64_t n = 0; n < p.batch; ++n) {
      const auto* input = p.input + (n * p.in_channels + ic) * p.length;
      const auto* grad = p.grad_output + (n * p.out_channels + channel) * p.out_length;
      for (int64_t i = threadIdx.x; i < p.length; i += kSumThreads) {
        const auto x = widen(input[i]);
#pragma unroll
        for (int k = 0; k < kTapsAtOnce; ++k) {
          const auto o = p.conv.stride * i + p.conv.dilation * (first + k) - p.conv.padding;
          if (first + k < p.kernel && o >= 0 && o < p.out_length) {
            sums[k] = __fmaf_rn(x, widen(grad[o]), sums[k]);
          }
        }
      }
    }
    sum_block(sums);
    if (threadIdx.x == 0) {
      for (int k = 0; k < kTapsAtOnce && first + k < p.kernel; ++k) {
        p.grad_weight[(ic * p.channels + oc) * p.kernel + first + k] = narrow<scalar_t>(sums[k]);
      }
    }
  }
}

// On tensor cores, unless the problem does not suit them.
template <typename Format>
bool try_gemm(
    const Tensor& grad_weight,
    const WeightGradParams<typename Format::scalar_t>& params,
    const WeightGradProblems& p) {
  using Shape = WeightGradShape<Format>;
  // With few channels, most of the tensor cores' work would be on zeros.
  if (!fits_weight_grad(p) || p.input.depth() < 8 || p.grad_output.depth() < 8) {
    return false;
  }
  const auto attribute = [](cudaDeviceAttr name) {
    int value = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, c10::cuda::current_device()));
    return value;
  };
  const Device device{attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
  const auto tiling = make_weight_grad_tiling<Shape>(p, device);
  const WeightGradWorkspace<Shape> workspace(p, tiling);
  constexpr auto kMaxGrid = (int64_t(1) << 31) - 1;
  if (tiling.slots < 2 || tiling.blocks > kMaxGrid ||
      workspace.input_blocks + workspace.grad_output_blocks > kMaxGrid ||
      (workspace.flags - workspace.sums) / 4 > tiling.parts * kMaxGrid) {
    return false; // too little shared memory, or too large a grid
  }
  const auto memory = at::empty({workspace.bytes}, grad_weight.options().dtype(kByte));
  launch_weight_grad<Shape>(
      p,
      tiling,
      params.input,
      params.grad_output,
      params.grad_weight,
      static_cast<char*>(memory.mutable_data_ptr()),
      c10::cuda::getCurrentCUDAStream());
  return true;
}

template <typename Format, typename scalar_t>
void grad_weight(
    const Tensor& grad_weight, const Tensor& grad_output, const Tensor& input, const ConvTranspose1dParams& params) {
  using device_t = typename Format::scalar_t;
  if (grad_weight.numel() == 0) {
    return;
  }
  const WeightGradParams<device_t> p{
      reinterpret_cast<const device_t*>(input.const_data_ptr<scalar_t>()),
      reinterpret_cast<const device_t*>(grad_output.const_data_ptr<scalar_t>()),
      reinterpret_cast<device_t*>(grad_weight.mutable_data_ptr<scalar_t>()),
      input.size(0),
      input.size(1),
      input.size(2),
      grad_weight.size(1),
      grad_output.size(1),
      grad_weight.size(2),
      grad_output.size(2),
      params};
  const auto problems =
      weight_grad_problems(input.sizes(), grad_weight.sizes(), grad_output.size(2), params);
  if (try_gemm<Format>(grad_weight, p, problems)) {
    return;
  }
  const auto blocks = p.in_channels * p.channels * ceil_div(p.kernel, kTapsAtOnce);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 30));
  weight_grads<device_t><<<grid, kSumThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(p, blocks);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// ---- Bias ----------------------------------------------------------------------------------

// A block sums a stretch of one row of grad_output [N * C, L]; partials are [N * stretches, C].
template <typename scalar_t>
__global__ void __launch_bounds__(kSumThreads) bias_partials(
    const scalar_t* grad_output, float* partials, int64_t channels, int64_t length, int64_t stretches, int64_t blocks) {
  const auto stretch = ceil_div(length, stretches);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const auto part = block % stretches, row = block / stretches;
    const auto* grad = grad_output + row * length;
    const auto end = std::min(length, (part + 1) * stretch);
    float sums[1] = {};
#pragma unroll 8
    for (int64_t o = part * stretch + threadIdx.x; o < end; o += kSumThreads) {
      sums[0] += widen(grad[o]);
    }
    sum_block(sums);
    if (threadIdx.x == 0) {
      partials[(row / channels * stretches + part) * channels + row % channels] = sums[0];
    }
  }
}

template <typename scalar_t>
__global__ void __launch_bounds__(kSumThreads)
bias_sums(const float* partials, scalar_t* grad_bias, int64_t channels, int64_t parts) {
  const auto channel = static_cast<int64_t>(blockIdx.x);
  float sums[1] = {};
  for (auto part = static_cast<int64_t>(threadIdx.x); part < parts; part += kSumThreads) {
    sums[0] += partials[part * channels + channel];
  }
  sum_block(sums);
  if (threadIdx.x == 0) {
    grad_bias[channel] = narrow<scalar_t>(sums[0]);
  }
}

constexpr int64_t kStretch = 16 * 1024;

template <typename device_t, typename scalar_t>
void grad_bias(const Tensor& grad_bias, const Tensor& grad_output) {
  const auto batch = grad_output.size(0), channels = grad_output.size(1), length = grad_output.size(2);
  const auto stretches = std::max<int64_t>(1, ceil_div(length, kStretch));
  const auto partials = at::empty({batch * stretches, channels}, grad_output.options().dtype(kFloat));
  const auto blocks = batch * channels * stretches;
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if (blocks > 0) {
    bias_partials<device_t><<<static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 30)), kSumThreads, 0, stream>>>(
        reinterpret_cast<const device_t*>(grad_output.const_data_ptr<scalar_t>()),
        partials.mutable_data_ptr<float>(),
        channels,
        length,
        stretches,
        blocks);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  if (channels > 0) {
    bias_sums<device_t><<<static_cast<unsigned>(channels), kSumThreads, 0, stream>>>(
        partials.const_data_ptr<float>(),
        reinterpret_cast<device_t*>(grad_bias.mutable_data_ptr<scalar_t>()),
        channels,
        batch * stretches);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

} // namespace

void conv_transpose1d_grad_weight_out_cuda(
    const Tensor& grad,
    const Tensor& grad_bias,
    const Tensor& grad_output,
    const Tensor& input,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math) {
  const c10::cuda::CUDAGuard guard(grad.device());
  const auto done = thin_grad_weight(grad, grad_bias, grad_output, input, params, math);
  if (grad_bias.defined() && done != ThinGradWeight::WeightAndBias) {
    conv_transpose1d_grad_bias_out_cuda(grad_bias, grad_output);
  }
  if (done != ThinGradWeight::Nothing) {
    return;
  }
  if (grad.scalar_type() == kFloat && math == ConvTranspose1dMath::TF32) {
    grad_weight<TwoTermFormat, float>(grad, grad_output, input, params);
  } else if (grad.scalar_type() == kFloat) {
    grad_weight<ExactFormat, float>(grad, grad_output, input, params);
  } else if (grad.scalar_type() == kHalf) {
    grad_weight<HalfFormat, at::Half>(grad, grad_output, input, params);
  } else {
    grad_weight<BFloat16Format, at::BFloat16>(grad, grad_output, input, params);
  }
}

void conv_transpose1d_grad_bias_out_cuda(const Tensor& grad, const Tensor& grad_output) {
  const c10::cuda::CUDAGuard guard(grad.device());
  if (grad.scalar_type() == kFloat) {
    grad_bias<float, float>(grad, grad_output);
  } else if (grad.scalar_type() == kHalf) {
    grad_bias<__half, at::Half>(grad, grad_output);
  } else {
    grad_bias<__nv_bfloat16, at::BFloat16>(grad, grad_output);
  }
}

} // namespace at::native
