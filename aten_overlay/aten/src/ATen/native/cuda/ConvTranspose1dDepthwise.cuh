// conv_transpose1d where a group has one channel on either side and few taps: memory is the limit. Like the plain kernel, but
// places are found in 32 bits, once for several samples.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dPlain.cuh>

#include <cstdlib>

namespace at::native::conv_transpose1d {

constexpr int kDepthwiseThreads = 256;

inline bool fits_depthwise(const Problem& p) {
  constexpr int64_t kLimit = int64_t(1) << 29;
  return p.channels == 1 && p.out_channels == 1 && p.classes * p.taps <= kChain && p.phases < (1 << 15) &&
      p.position_stride * (p.columns + p.shift * p.taps) + p.class_step * p.classes < kLimit && p.length < kLimit &&
      p.out_length < kLimit && std::abs(p.base) < kLimit && std::abs(p.out_base) < kLimit && p.dilation < kLimit &&
      ceil_div(p.out_length, kDepthwiseThreads) * p.groups < kLimit;
}

// A thread has one position of one group, of every gridDim.y-th sample.
template <typename scalar_t>
__global__ void __launch_bounds__(kDepthwiseThreads)
depthwise_kernel(const __grid_constant__ Problem p, const __grid_constant__ Tensors<scalar_t> t, int along) {
  const int group = static_cast<int>(blockIdx.x) / along;
  const int o = static_cast<int>(blockIdx.x) % along * kDepthwiseThreads + static_cast<int>(threadIdx.x);
  if (o >= p.out_length) {
    return;
  }
  const int stride = static_cast<int>(p.out_stride), gap = static_cast<int>(p.gap), phases = static_cast<int>(p.phases);
  const int taps = static_cast<int>(p.taps), classes = static_cast<int>(p.classes);
  const int step = static_cast<int>(p.position_stride), length = static_cast<int>(p.length);
  const int place = o - static_cast<int>(p.out_base), column = place / stride, within = place % stride;
  const int phase = within / gap;
  const int first_tap = phases == 1 ? 0 : phase * static_cast<int>(p.inverse) % phases;
  const int offset = phases == 1 ? 0 : (phase - static_cast<int>(p.dilation) * first_tap) / phases;
  const int start = step * column + static_cast<int>(p.base) + offset;
  const bool has_terms = within % gap == 0;
  const float bias = t.bias ? widen(t.bias[group]) : 0.0f;
  const auto* weight = t.weight + group * p.weight_group();
  const auto* source = t.source + group * p.length;
  auto* out = t.out + group * p.out_length + o;
  for (int64_t n = blockIdx.y; n < p.batch; n += gridDim.y) {
    const auto* sample = source + n * p.groups * p.length;
    float sum = 0;
    for (int klass = 0; klass < classes && has_terms; ++klass) {
      for (int j = 0; j < taps; ++j) {
        const auto k = static_cast<int>(p.tap(phases == 1 ? klass : first_tap, j));
        const int u = start + step * static_cast<int>(p.shift) * j + static_cast<int>(p.class_step) * klass;
        if (k < p.kernel && static_cast<unsigned>(u) < static_cast<unsigned>(length)) {
          sum = __fmaf_rn(widen(sample[u]), widen(weight[k]), sum);
        }
      }
    }
    out[n * p.groups * p.out_length] = narrow<scalar_t>(sum + bias);
  }
}

template <typename scalar_t>
void launch_depthwise(const Problem& p, const Tensors<scalar_t>& t, cudaStream_t stream) {
  const auto along = static_cast<int>(ceil_div(p.out_length, kDepthwiseThreads));
  const auto blocks = along * p.groups;
  const auto samples_at_once = std::min<int64_t>({p.batch, ceil_div(4096, blocks), 65535});
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(samples_at_once));
  depthwise_kernel<<<grid, kDepthwiseThreads, 0, stream>>>(p, t, along);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace at::native::conv_transpose1d
