// conv_transpose1d's forward pass and its gradient of the input as one problem, on whose terms the kernels work.
//
// Forward, with g = gcd(stride, dilation): output o receives anything only where g divides o + padding, and there
// v = (o + padding) / g = (stride / g) * i + (dilation / g) * k. With m = o' / stride, o' = o + padding, a row of the
// product is a channel and a phase, v modulo stride / g, whose taps k are the same at all m; so every phase is a
// convolution of stride 1, and the phases of a channel lie interleaved in the output. Of each stretch of g outputs the
// first holds such a sum, the others (`gap` - 1) the bias alone.
// Gradient of the input: a convolution of that stride over grad_output. Its taps k, too, fall into classes modulo
// stride / g, in each of which it is one of stride 1 over every stride-th position; so a class of a channel is a source
// channel of its own.
//
// For sample n, tap j reads source[n, channel, position_stride * (column + shift * j) + class_step * class + base], or
// 0 outside of [0, length), times the weight at k = first_tap + tap_step * j (or with j from the end), or 0 for k >= K.
// The sum for (row channel, phase, column) goes to position out_stride * column + gap * phase + out_base.
#pragma once

#include <ATen/native/cuda/ConvTranspose1d.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace at::native::conv_transpose1d {

#if defined(__CUDACC__)
#define CONV_TRANSPOSE1D_HOST_DEVICE __host__ __device__
#else
#define CONV_TRANSPOSE1D_HOST_DEVICE
#endif

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Problem {
  int64_t batch;
  int64_t groups;

  // The source [batch, groups * channels, length], and how a channel is read.
  int64_t channels;
  int64_t classes;
  int64_t length;
  int64_t position_stride;
  int64_t class_step;
  int64_t base;

  int64_t taps;
  int64_t shift;
  int64_t columns; // of a sample

  // The destination [batch, groups * out_channels, out_length].
  int64_t out_channels;
  int64_t phases;
  int64_t gap;
  int64_t out_length;
  int64_t out_stride;
  int64_t out_base;

  // The weight [groups * Cin / groups, Cout / groups, K].
  int64_t kernel;
  int64_t weight_channel; // strides of a source channel and a row's channel
  int64_t weight_row;
  int64_t tap_step;
  bool reversed;
  int64_t dilation; // dilation / g
  int64_t inverse; // of `dilation` modulo phases

  // Columns of a sample in the flattened order of all samples: those after `columns` separate it from the next.
  CONV_TRANSPOSE1D_HOST_DEVICE int64_t pitch() const {
    return columns + shift * (taps - 1);
  }

  CONV_TRANSPOSE1D_HOST_DEVICE int64_t depth() const {
    return channels * classes;
  }

  CONV_TRANSPOSE1D_HOST_DEVICE int64_t weight_group() const {
    return std::max(weight_channel * channels, weight_row * out_channels);
  }

  CONV_TRANSPOSE1D_HOST_DEVICE int64_t first_tap(int64_t phase, int64_t klass) const {
    return phases == 1 ? klass : phase * inverse % phases;
  }

  // How far a phase's taps lie from those of phase 0; 0 for all phases unless both dilation and phases are above 1.
  CONV_TRANSPOSE1D_HOST_DEVICE int64_t phase_offset(int64_t phase) const {
    return phases == 1 ? 0 : (phase - dilation * first_tap(phase, 0)) / phases;
  }

  CONV_TRANSPOSE1D_HOST_DEVICE int64_t tap(int64_t first, int64_t j) const {
    return first + tap_step * (reversed ? taps - 1 - j : j);
  }

  bool has_phase_offsets() const {
    return phases > 1 && dilation > 1;
  }

  double multiply_adds() const {
    return static_cast<double>(batch) * groups * depth() * taps * out_channels * phases * columns;
  }
};

inline int64_t inverse_modulo(int64_t value, int64_t modulus) {
  int64_t r0 = modulus, r1 = value % modulus, t0 = 0, t1 = 1;
  while (r1 != 0) {
    const auto q = r0 / r1;
    r0 -= q * r1;
    std::swap(r0, r1);
    t0 -= q * t1;
    std::swap(t0, t1);
  }
  return t0 < 0 ? t0 + modulus : t0;
}

// sizes: input [N, Cin, L], weight [Cin, Cout / groups, K], output length.
inline Problem forward_problem(
    IntArrayRef input, IntArrayRef weight, int64_t out_length, const ConvTranspose1dParams& params) {
  const auto g = std::gcd(params.stride, params.dilation);
  const auto phases = params.stride / g, dilation = params.dilation / g, kernel = weight[2];
  const auto first = params.padding / params.stride;
  Problem p{};
  p.batch = input[0];
  p.groups = params.groups;
  p.channels = weight[0] / params.groups;
  p.classes = 1;
  p.length = input[2];
  p.position_stride = 1;
  p.class_step = 0;
  p.taps = ceil_div(kernel, phases);
  p.shift = dilation;
  p.base = first - dilation * (p.taps - 1);
  p.columns = out_length > 0 ? (out_length - 1 + params.padding) / params.stride - first + 1 : 0;
  p.out_channels = weight[1];
  p.phases = phases;
  p.gap = g;
  p.out_length = out_length;
  p.out_stride = params.stride;
  p.out_base = params.stride * first - params.padding;
  p.kernel = kernel;
  p.weight_channel = weight[1] * kernel;
  p.weight_row = kernel;
  p.tap_step = phases;
  p.reversed = true;
  p.dilation = dilation;
  p.inverse = phases == 1 ? 0 : inverse_modulo(dilation, phases);
  return p;
}

inline Problem grad_input_problem(
    IntArrayRef input, IntArrayRef weight, int64_t out_length, const ConvTranspose1dParams& params) {
  const auto g = std::gcd(params.stride, params.dilation);
  const auto step = params.stride / g, kernel = weight[2];
  Problem p{};
  p.batch = input[0];
  p.groups = params.groups;
  p.channels = weight[1];
  p.classes = std::min(kernel, step);
  p.length = out_length;
  p.position_stride = params.stride;
  p.class_step = params.dilation;
  p.base = -params.padding;
  p.taps = ceil_div(kernel, step);
  p.shift = params.dilation / g;
  p.columns = input[2];
  p.out_channels = weight[0] / params.groups;
  p.phases = 1;
  p.gap = 1;
  p.out_length = input[2];
  p.out_stride = 1;
  p.out_base = 0;
  p.kernel = kernel;
  p.weight_channel = kernel;
  p.weight_row = weight[1] * kernel;
  p.tap_step = step;
  p.reversed = false;
  p.dilation = params.dilation / g;
  p.inverse = 0;
  return p;
}

} // namespace at::native::conv_transpose1d
