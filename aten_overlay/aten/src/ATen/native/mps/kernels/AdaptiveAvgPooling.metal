// Adaptive average pooling on Metal, in two and three dimensions, for all sizes. Sums are float.
#include <ATen/native/mps/kernels/AdaptiveAvgPooling.h>
#include <c10/metal/common.h>
#include <metal_stdlib>

using namespace metal;

struct Range {
  long start;
  long end;

  // Of the inputs that output `place` is the mean of. With `from` and `to` exchanged: of the outputs that input `place`
  // has a part in.
  Range(long place, long from, long to)
      : start(place * from / to), end(c10::metal::ceil_div((place + 1) * from, to)) {}

  long size() const {
    return end - start;
  }
};

// A thread's element of the tensor that it writes.
struct Element {
  long n;
  long c;
  long t;
  long h;
  long w;

  // Grid: W, T*H, N*C; or C, T*H*W, N.
  Element(constant AdaptiveAvgPoolParams& p, constant AdaptiveAvgPoolTensor& tensor, uint3 position) {
    long row = position.y;
    if (p.channels_last) {
      n = position.z;
      c = position.x;
      w = row % tensor.width;
      row /= tensor.width;
    } else {
      n = position.z / p.channels;
      c = position.z % p.channels;
      w = position.x;
    }
    h = row % tensor.height;
    t = row / tensor.height;
  }
};

inline long offset_of(constant AdaptiveAvgPoolTensor& tensor, long n, long c, long t, long h, long w) {
  return n * tensor.batch_stride + c * tensor.channel_stride + t * tensor.time_stride + h * tensor.height_stride +
      w * tensor.width_stride;
}

template <typename T>
kernel void adaptive_avg_pool(
    device T* output [[buffer(0)]],
    constant T* input [[buffer(1)]],
    constant AdaptiveAvgPoolParams& p [[buffer(2)]],
    uint3 position [[thread_position_in_grid]]) {
  const Element out(p, p.output, position);
  const Range times(out.t, p.input.time, p.output.time);
  const Range heights(out.h, p.input.height, p.output.height);
  const Range widths(out.w, p.input.width, p.output.width);
  float sum = 0;
  for (long t = times.start; t < times.end; ++t) {
    for (long h = heights.start; h < heights.end; ++h) {
      for (long w = widths.start; w < widths.end; ++w) {
        sum += static_cast<float>(input[offset_of(p.input, out.n, out.c, t, h, w)]);
      }
    }
  }
  const float mean = sum / times.size() / heights.size() / widths.size();
  output[offset_of(p.output, out.n, out.c, out.t, out.h, out.w)] = static_cast<T>(mean);
}

// Every input gathers from the outputs that it has a part in, so that the order of the sum is fixed.
template <typename T>
kernel void adaptive_avg_pool_backward(
    device T* grad_input [[buffer(0)]],
    constant T* grad_output [[buffer(1)]],
    constant AdaptiveAvgPoolParams& p [[buffer(2)]],
    uint3 position [[thread_position_in_grid]]) {
  const Element in(p, p.input, position);
  const Range times(in.t, p.output.time, p.input.time);
  const Range heights(in.h, p.output.height, p.input.height);
  const Range widths(in.w, p.output.width, p.input.width);
  float sum = 0;
  for (long t = times.start; t < times.end; ++t) {
    const long depth = Range(t, p.input.time, p.output.time).size();
    for (long h = heights.start; h < heights.end; ++h) {
      const long height = Range(h, p.input.height, p.output.height).size();
      for (long w = widths.start; w < widths.end; ++w) {
        const long width = Range(w, p.input.width, p.output.width).size();
        const float grad = static_cast<float>(grad_output[offset_of(p.output, in.n, in.c, t, h, w)]);
        sum += grad / depth / height / width;
      }
    }
  }
  grad_input[offset_of(p.input, in.n, in.c, in.t, in.h, in.w)] = static_cast<T>(sum);
}

#define REGISTER_ADAPTIVE_AVG_POOL(T)                                                                       \
  template [[host_name("adaptive_avg_pool_" #T)]] kernel void adaptive_avg_pool<T>(                         \
      device T * output, constant T * input, constant AdaptiveAvgPoolParams & p, uint3 position);           \
  template [[host_name("adaptive_avg_pool_backward_" #T)]] kernel void adaptive_avg_pool_backward<T>(       \
      device T * grad_input, constant T * grad_output, constant AdaptiveAvgPoolParams & p, uint3 position)

REGISTER_ADAPTIVE_AVG_POOL(float);
REGISTER_ADAPTIVE_AVG_POOL(half);
REGISTER_ADAPTIVE_AVG_POOL(bfloat);
