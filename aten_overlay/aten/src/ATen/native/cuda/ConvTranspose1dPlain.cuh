// conv_transpose1d's plain kernel: any Problem, each output by float32 multiply-adds.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dProblem.h>

#include <c10/cuda/CUDAException.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace at::native::conv_transpose1d {

__device__ inline float widen(float value) {
  return value;
}
__device__ inline float widen(__half value) {
  return __half2float(value);
}
__device__ inline float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <typename scalar_t>
__device__ scalar_t narrow(float value) {
  if constexpr (std::is_same_v<scalar_t, float>) {
    return value;
  } else if constexpr (std::is_same_v<scalar_t, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

template <typename scalar_t>
struct Tensors {
  const scalar_t* source;
  const scalar_t* weight;
  const scalar_t* bias; // [groups * out_channels], or null
  scalar_t* out;
};

// Terms that are added up in a chain; the chains' sums are added up in another. A single chain of many terms would be less
// accurate than the products of matrices are.
constexpr int kChain = 16;

// The sums for kRows channels from `row` on, of which `rows` exist.
template <int kRows, typename scalar_t>
__device__ void plain_sums(
    const Problem& p,
    const Tensors<scalar_t>& t,
    int64_t n,
    int64_t group,
    int64_t row,
    int rows,
    int64_t phase,
    int64_t column,
    float (&sums)[kRows]) {
  const auto* source = t.source + (n * p.groups + group) * p.channels * p.length;
  const auto* weight = t.weight + group * p.weight_group() + row * p.weight_row;
  const auto start = p.position_stride * column + p.base + p.phase_offset(phase);
  float chain[kRows] = {};
  int terms = 0;
  const auto end_chain = [&] {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sums[i] += chain[i];
      chain[i] = 0;
    }
    terms = 0;
  };
  for (int64_t channel = 0; channel < p.channels; ++channel) {
    for (int64_t klass = 0; klass < p.classes; ++klass) {
      const auto first = p.first_tap(phase, klass);
      for (int64_t j = 0; j < p.taps; ++j) {
        const auto k = p.tap(first, j);
        const auto u = start + p.position_stride * p.shift * j + p.class_step * klass;
        if (k >= p.kernel || u < 0 || u >= p.length) {
          continue;
        }
        const auto x = widen(source[channel * p.length + u]);
        const auto* w = weight + channel * p.weight_channel + k;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (i < rows) {
            chain[i] = __fmaf_rn(x, widen(w[i * p.weight_row]), chain[i]);
          }
        }
        if (++terms == kChain) {
          end_chain();
        }
      }
    }
  }
  end_chain();
}

constexpr int kPlainThreads = 256;

// A thread has one position of kRows channels.
template <int kRows, typename scalar_t>
__global__ void __launch_bounds__(kPlainThreads)
plain_kernel(const __grid_constant__ Problem p, const __grid_constant__ Tensors<scalar_t> t, int64_t blocks) {
  const auto along = ceil_div(p.out_length, kPlainThreads), row_blocks = ceil_div(p.out_channels, kRows);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const auto o = block % along * kPlainThreads + threadIdx.x;
    const auto row = block / along % row_blocks * kRows;
    const auto group = block / along / row_blocks % p.groups;
    const auto n = block / along / row_blocks / p.groups;
    if (o >= p.out_length) {
      continue;
    }
    const int rows = min(static_cast<int64_t>(kRows), p.out_channels - row);
    const auto place = o - p.out_base;
    const auto within = place % p.out_stride;
    float sums[kRows] = {};
    if (within % p.gap == 0) {
      plain_sums(p, t, n, group, row, rows, within / p.gap, place / p.out_stride, sums);
    }
    const auto channel = group * p.out_channels + row;
    auto* out = t.out + (n * p.groups * p.out_channels + channel) * p.out_length + o;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i < rows) {
        out[i * p.out_length] = narrow<scalar_t>(t.bias ? sums[i] + widen(t.bias[channel + i]) : sums[i]);
      }
    }
  }
}

template <typename scalar_t>
void launch_plain(const Problem& p, const Tensors<scalar_t>& t, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int rows) {
    const auto blocks =
        ceil_div(p.out_length, kPlainThreads) * ceil_div(p.out_channels, rows) * p.groups * p.batch;
    if (blocks > 0) {
      const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 30));
      kernel<<<grid, kPlainThreads, 0, stream>>>(p, t, blocks);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  };
  if (p.out_channels == 1) {
    launch(plain_kernel<1, scalar_t>, 1);
  } else {
    launch(plain_kernel<8, scalar_t>, 8);
  }
}

} // namespace at::native::conv_transpose1d
