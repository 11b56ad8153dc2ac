// causal_conv1d on Metal. Products and sums are float, in the order of the CPU's.
#include <ATen/native/mps/kernels/CausalConv1d.h>
#include <c10/metal/error.h>
#include <c10/metal/utils.h>
#include <metal_stdlib>

using namespace metal;

// z / (1 + exp(-z)): infinities and NaN go through as in torch.nn.functional.silu.
inline float silu(float z) {
  return z / (1 + precise::exp(-z));
}

inline float silu_slope(float z) {
  const float s = 1 / (1 + precise::exp(-z));
  return s * fma(z, 1 - s, 1.0f);
}

inline long index_at(constant void* data, bool wide, long offset) {
  return wide ? static_cast<constant long*>(data)[offset] : static_cast<constant int*>(data)[offset];
}

template <typename T>
inline float parameter_at(constant void* data, bool wide, long offset) {
  return wide ? static_cast<constant float*>(data)[offset] : static_cast<float>(static_cast<constant T*>(data)[offset]);
}

inline long offset_of(constant CausalConv1dStrides& strides, long row, long channel, long time) {
  return row * strides.row + channel * strides.channel + time * strides.time;
}

// A stretch of one row of the input that has a state of its own.
struct Segment {
  long state; // row of the states
  long start;
  long end;
};

// How a call's rows are divided, by seq_idx or cu_seqlens. Values out of range never lead out of bounds:
// segments are clamped to [0, T], and what no segment covers belongs to its neighbour.
struct Sequences {
  constant CausalConv1dParams& p;
  constant void* seq_idx;
  constant void* cu_seqlens;
  constant long* last; // with seq_idx: the last position of each row that is not padding

  long index(long b, long t) const {
    return index_at(seq_idx, p.wide_indices, b * p.seq_idx_row + t * p.seq_idx_time);
  }

  long bound(long n) const {
    return clamp(index_at(cu_seqlens, p.wide_indices, n * p.cu_seqlens_stride), long(0), long(p.time));
  }

  // Segment n as it is, possibly empty.
  Segment segment(long n) const {
    if (!p.cu_seqlens_given) {
      return {n, 0, p.time};
    }
    const long start = bound(n);
    return {n, start, max(start, bound(n + 1))};
  }

  // The segment of row b that position t is in.
  Segment find(long b, long t) const {
    if (!p.cu_seqlens_given) {
      return {b, 0, p.time};
    }
    long low = 0, high = p.sequences; // bound(low) <= t, or low is 0; bound(high) > t, or high is N
    while (high - low > 1) {
      const long middle = (low + high) / 2;
      if (bound(middle) <= t) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return {low, low == 0 ? 0 : bound(low), p.sequences == 0 ? p.time : bound(low + 1)};
  }

  // The same for a later position than the segment was found for.
  void advance(thread Segment& segment, long b, long t) const {
    if (t >= segment.end) {
      segment = find(b, t);
    }
  }

  // Whether output t counts at all, and sees the input at s <= t, which may lie in the state before.
  bool counts(long b, long t, long s) const {
    if (!p.seq_idx_given) {
      return true;
    }
    const long here = index(b, t);
    return here >= 0 && (s == t || index(b, max(s, long(0))) == here);
  }

  // The last position of a segment that is not padding, relative to its start.
  long end_of(long b, thread const Segment& segment) const {
    return p.seq_idx_given ? last[b] : segment.end - segment.start - 1;
  }

  // Whether place j of a segment's final state holds an input, and which: below 0, that place of the
  // initial state which is W-1 further on.
  bool final_source(long b, thread const Segment& segment, long j, thread long& source) const {
    const long end = end_of(b, segment);
    source = end - (p.width - 2) + j;
    if (!p.seq_idx_given || segment.end == segment.start) {
      return true;
    }
    return end >= 0 && index(b, max(source, long(0))) == index(b, end);
  }
};

// One channel of one row, as its outputs see it.
template <typename T>
struct Channel {
  constant CausalConv1dParams& p;
  thread const Sequences& sequences;
  constant T* input;
  constant T* initial_state;
  constant void* weight;
  constant void* bias;
  long b;
  long d;

  float weight_at(long k) const {
    return parameter_at<T>(weight, p.wide_parameters, d * p.weight_channel + k * p.weight_tap);
  }

  // The input at s as output t sees it.
  float tap(thread const Segment& segment, long t, long s) const {
    if (!sequences.counts(b, t, s)) {
      return 0;
    }
    if (s >= segment.start) {
      return static_cast<float>(input[offset_of(p.input, b, d, s)]);
    }
    if (!p.initial_state_given) {
      return 0;
    }
    const long place = p.width - 1 + s - segment.start;
    return static_cast<float>(initial_state[offset_of(p.initial_state, segment.state, d, place)]);
  }

  float preactivation(thread const Segment& segment, long t) const {
    float z = p.bias_given ? parameter_at<T>(bias, p.wide_parameters, d * p.bias_channel) : 0;
    for (long k = 0; k < p.width; ++k) {
      z = fma(weight_at(k), tap(segment, t, t + k - (p.width - 1)), z);
    }
    return z;
  }

  // The gradient of output t's pre-activation.
  float preactivation_grad(constant T* grad_output, thread const Segment& segment, long t) const {
    if (!p.grad_output_given || !sequences.counts(b, t, t)) {
      return 0;
    }
    const float grad = static_cast<float>(grad_output[offset_of(p.output, b, d, t)]);
    return p.silu ? grad * silu_slope(preactivation(segment, t)) : grad;
  }
};

// A thread's row, channel and first position. The first coordinate of the grid is contiguous in memory.
struct Place {
  long b;
  long d;
  long t;

  Place(constant CausalConv1dParams& p, uint3 position)
      : b(position.z),
        d(p.time_contiguous ? position.y : position.x),
        t(long(p.time_contiguous ? position.x : position.y) * kCausalConv1dPositions) {}
};

// Grid: blocks of kCausalConv1dPositions positions, channels, rows; or channels first.
template <typename T>
kernel void causal_conv1d_forward(
    device T* output [[buffer(0)]],
    constant T* input [[buffer(1)]],
    constant void* weight [[buffer(2)]],
    constant void* bias [[buffer(3)]],
    constant T* initial_state [[buffer(4)]],
    constant void* seq_idx [[buffer(5)]],
    constant void* cu_seqlens [[buffer(6)]],
    constant CausalConv1dParams& p [[buffer(7)]],
    uint3 position [[thread_position_in_grid]]) {
  const Place place(p, position);
  const Sequences sequences{p, seq_idx, cu_seqlens, nullptr};
  const Channel<T> channel{p, sequences, input, initial_state, weight, bias, place.b, place.d};
  const long end = min(place.t + kCausalConv1dPositions, long(p.time));
  Segment segment = sequences.find(place.b, place.t);
  for (long t = place.t; t < end; ++t) {
    sequences.advance(segment, place.b, t);
    float y = 0;
    if (sequences.counts(place.b, t, t)) {
      const float z = channel.preactivation(segment, t);
      y = p.silu ? silu(z) : z;
    }
    output[offset_of(p.output, place.b, place.d, t)] = static_cast<T>(y);
  }
}

// The last position of each row that is not padding, or -1. Grid: 32 lanes, rows.
kernel void causal_conv1d_last(
    device long* last [[buffer(0)]],
    constant void* seq_idx [[buffer(1)]],
    constant CausalConv1dParams& p [[buffer(2)]],
    uint2 position [[thread_position_in_grid]]) {
  const long b = position.y;
  for (long end = p.time; end > 0; end -= c10::metal::simdgroup_size) {
    const long t = end - 1 - position.x;
    const bool found = t >= 0 && index_at(seq_idx, p.wide_indices, b * p.seq_idx_row + t * p.seq_idx_time) >= 0;
    const int lane = simd_min(found ? int(position.x) : int(c10::metal::simdgroup_size));
    if (lane < int(c10::metal::simdgroup_size)) {
      if (position.x == 0) {
        last[b] = end - 1 - lane;
      }
      return;
    }
  }
  if (position.x == 0) {
    last[b] = -1;
  }
}

// Grid: places, channels, sequences.
template <typename T>
kernel void causal_conv1d_final_state(
    device T* final_state [[buffer(0)]],
    constant T* input [[buffer(1)]],
    constant T* initial_state [[buffer(2)]],
    constant void* seq_idx [[buffer(3)]],
    constant void* cu_seqlens [[buffer(4)]],
    constant long* last [[buffer(5)]],
    constant CausalConv1dParams& p [[buffer(6)]],
    uint3 position [[thread_position_in_grid]]) {
  const long j = position.x, d = position.y, n = position.z;
  const Sequences sequences{p, seq_idx, cu_seqlens, last};
  const Segment segment = sequences.segment(n);
  const long b = p.cu_seqlens_given ? 0 : n;
  long source;
  T value = T(0);
  if (sequences.final_source(b, segment, j, source)) {
    if (source >= 0) {
      value = input[offset_of(p.input, b, d, segment.start + source)];
    } else if (p.initial_state_given) {
      value = initial_state[offset_of(p.initial_state, n, d, p.width - 1 + source)];
    }
  }
  final_state[offset_of(p.final_state, n, d, j)] = value;
}

// Grid: as the forward's.
template <typename T>
kernel void causal_conv1d_backward_input(
    device T* grad_input [[buffer(0)]],
    constant T* grad_output [[buffer(1)]],
    constant T* grad_final_state [[buffer(2)]],
    constant T* input [[buffer(3)]],
    constant void* weight [[buffer(4)]],
    constant void* bias [[buffer(5)]],
    constant T* initial_state [[buffer(6)]],
    constant void* seq_idx [[buffer(7)]],
    constant void* cu_seqlens [[buffer(8)]],
    constant long* last [[buffer(9)]],
    constant CausalConv1dParams& p [[buffer(10)]],
    uint3 position [[thread_position_in_grid]]) {
  const Place place(p, position);
  const Sequences sequences{p, seq_idx, cu_seqlens, last};
  const Channel<T> channel{p, sequences, input, initial_state, weight, bias, place.b, place.d};
  const long end = min(place.t + kCausalConv1dPositions, long(p.time));

  // The outputs that read these positions, as long as the filter is not wider than 4.
  float grads[kCausalConv1dPositions + 3];
  const bool few = p.width <= 4;
  if (few) {
    Segment segment = sequences.find(place.b, place.t);
    for (long t = place.t; t < min(end + p.width - 1, long(p.time)); ++t) {
      sequences.advance(segment, place.b, t);
      grads[t - place.t] = channel.preactivation_grad(grad_output, segment, t);
    }
  }

  Segment segment = sequences.find(place.b, place.t);
  for (long s = place.t; s < end; ++s) {
    sequences.advance(segment, place.b, s);
    float sum = 0;
    for (long k = 0; k < p.width; ++k) {
      const long t = s + p.width - 1 - k;
      if (t < segment.end && sequences.counts(place.b, t, s)) {
        const float grad = few ? grads[t - place.t] : channel.preactivation_grad(grad_output, segment, t);
        sum = fma(channel.weight_at(k), grad, sum);
      }
    }
    if (p.grad_final_state_given) {
      // The place of the final state that holds s, if one does.
      const long j = s - segment.start - sequences.end_of(place.b, segment) + p.width - 2;
      long source;
      if (j >= 0 && j < p.width - 1 && sequences.final_source(place.b, segment, j, source)) {
        sum += static_cast<float>(grad_final_state[offset_of(p.final_state, segment.state, place.d, j)]);
      }
    }
    grad_input[offset_of(p.grad_input, place.b, place.d, s)] = static_cast<T>(sum);
  }
}

// Grid: places, channels, sequences.
template <typename T>
kernel void causal_conv1d_backward_initial_state(
    device T* grad_initial_state [[buffer(0)]],
    constant T* grad_output [[buffer(1)]],
    constant T* grad_final_state [[buffer(2)]],
    constant T* input [[buffer(3)]],
    constant void* weight [[buffer(4)]],
    constant void* bias [[buffer(5)]],
    constant T* initial_state [[buffer(6)]],
    constant void* seq_idx [[buffer(7)]],
    constant void* cu_seqlens [[buffer(8)]],
    constant long* last [[buffer(9)]],
    constant CausalConv1dParams& p [[buffer(10)]],
    uint3 position [[thread_position_in_grid]]) {
  const long place = position.x, d = position.y, n = position.z;
  const long b = p.cu_seqlens_given ? 0 : n;
  const Sequences sequences{p, seq_idx, cu_seqlens, last};
  const Segment segment = sequences.segment(n);
  const Channel<T> channel{p, sequences, input, initial_state, weight, bias, b, d};
  float sum = 0;
  for (long k = 0; k <= place; ++k) {
    const long t = segment.start + place - k;
    if (t < segment.end && sequences.counts(b, t, segment.start - 1)) {
      sum += channel.weight_at(k) * channel.preactivation_grad(grad_output, segment, t);
    }
  }
  if (p.grad_final_state_given) {
    for (long j = 0; j < p.width - 1; ++j) {
      long source;
      if (sequences.final_source(b, segment, j, source) && source < 0 && p.width - 1 + source == place) {
        sum += static_cast<float>(grad_final_state[offset_of(p.final_state, n, d, j)]);
      }
    }
  }
  grad_initial_state[offset_of(p.grad_initial_state, n, d, place)] = static_cast<T>(sum);
}

// partials[stretch, d, k]: the sum over a stretch of a row of tap k times the pre-activation's gradient; k = W
// is the bias. Threadgroups of kCausalConv1dLanes * kCausalConv1dChannels threads; groups: stretches, channels.
template <typename T>
kernel void causal_conv1d_backward_partials(
    device float* partials [[buffer(0)]],
    constant T* grad_output [[buffer(1)]],
    constant T* input [[buffer(2)]],
    constant void* weight [[buffer(3)]],
    constant void* bias [[buffer(4)]],
    constant T* initial_state [[buffer(5)]],
    constant void* seq_idx [[buffer(6)]],
    constant void* cu_seqlens [[buffer(7)]],
    constant CausalConv1dParams& p [[buffer(8)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup float sums[kCausalConv1dLanes * kCausalConv1dChannels];
  const uint lane = p.time_contiguous ? thread_index % kCausalConv1dLanes : thread_index / kCausalConv1dChannels;
  const uint c = p.time_contiguous ? thread_index / kCausalConv1dLanes : thread_index % kCausalConv1dChannels;
  const long d = long(group.y) * kCausalConv1dChannels + c;
  const long stretches = c10::metal::ceil_div(long(p.time), long(kCausalConv1dStretch));
  const long b = group.x / stretches;
  const long start = group.x % stretches * kCausalConv1dStretch;
  const long end = min(start + kCausalConv1dStretch, long(p.time));
  const Sequences sequences{p, seq_idx, cu_seqlens, nullptr};
  const Channel<T> channel{p, sequences, input, initial_state, weight, bias, b, d};

  // Five sums at a time, in registers: all of a filter of width 4.
  for (long first = 0; first <= p.width; first += 5) {
    float sum[5] = {0, 0, 0, 0, 0};
    if (d < p.channels) {
      Segment segment = sequences.find(b, start + lane);
      for (long t = start + lane; t < end; t += kCausalConv1dLanes) {
        sequences.advance(segment, b, t);
        const float grad = channel.preactivation_grad(grad_output, segment, t);
#pragma unroll
        for (uint i = 0; i < 5; ++i) {
          const long k = first + i;
          if (k < p.width) {
            sum[i] = fma(grad, channel.tap(segment, t, t + k - (p.width - 1)), sum[i]);
          } else if (k == p.width) {
            sum[i] += grad;
          }
        }
      }
    }
#pragma unroll
    for (uint i = 0; i < 5; ++i) {
      if (first + i > p.width) {
        break;
      }
      sums[c * kCausalConv1dLanes + lane] = sum[i];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (lane == 0 && d < p.channels) {
        float total = sum[i];
        for (uint j = 1; j < kCausalConv1dLanes; ++j) {
          total += sums[c * kCausalConv1dLanes + j];
        }
        partials[(group.x * p.channels + d) * (p.width + 1) + first + i] = total;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}

// The partial sums in order, into [D, W] and [D], either of which may be absent. Grid: W+1, channels.
template <typename T>
kernel void causal_conv1d_backward_parameters(
    device void* grad_weight [[buffer(0)]],
    device void* grad_bias [[buffer(1)]],
    constant float* partials [[buffer(2)]],
    constant CausalConv1dParams& p [[buffer(3)]],
    constant long& num_partials [[buffer(4)]],
    constant bool2& wanted [[buffer(5)]], // weight, bias
    uint2 position [[thread_position_in_grid]]) {
  const long k = position.x, d = position.y;
  const bool is_bias = k == p.width;
  if (is_bias ? !wanted.y : !wanted.x) {
    return;
  }
  float sum = 0;
  for (long i = 0; i < num_partials; ++i) {
    sum += partials[(i * p.channels + d) * (p.width + 1) + k];
  }
  device void* to = is_bias ? grad_bias : grad_weight;
  const long offset = is_bias ? d : d * p.width + k;
  if (p.wide_parameters) {
    static_cast<device float*>(to)[offset] = sum;
  } else {
    static_cast<device T*>(to)[offset] = static_cast<T>(sum);
  }
}

// Reports what the CPU refuses. Grid: N+1.
kernel void causal_conv1d_check_cu_seqlens(
    constant void* cu_seqlens [[buffer(0)]],
    constant CausalConv1dParams& p [[buffer(1)]],
    device c10::metal::ErrorMessages* errors [[buffer(2)]],
    uint n [[thread_position_in_grid]]) {
  const long here = index_at(cu_seqlens, p.wide_indices, n * p.cu_seqlens_stride);
  if ((n == 0 && here != 0) || (n == p.sequences && here != p.time)) {
    TORCH_REPORT_ERROR(
        errors,
        "causal_conv1d(): expected cu_seqlens to run from 0 to T = ",
        long(p.time),
        ", but got ",
        here,
        " at ",
        long(n));
    return;
  }
  if (n > 0) {
    const long before = index_at(cu_seqlens, p.wide_indices, (n - 1) * p.cu_seqlens_stride);
    if (before > here) {
      TORCH_REPORT_ERROR(
          errors, "causal_conv1d(): expected cu_seqlens not to decrease, but got ", before, " before ", here);
    }
  }
}

// A thread takes one channel of one row through the new positions. It alone touches that channel of the state,
// and reads all it needs before it writes. Grid: channels, rows.
template <typename T>
kernel void causal_conv1d_update(
    device T* output [[buffer(0)]],
    device T* state [[buffer(1)]],
    constant T* input [[buffer(2)]],
    constant void* weight [[buffer(3)]],
    constant void* bias [[buffer(4)]],
    constant void* state_indices [[buffer(5)]],
    constant void* cache_seqlens [[buffer(6)]],
    constant CausalConv1dUpdateParams& p [[buffer(7)]],
    device c10::metal::ErrorMessages* errors [[buffer(8)]],
    uint2 position [[thread_position_in_grid]]) {
  const long d = position.x, b = position.y;
  long row = p.state_indices_given ? index_at(state_indices, p.wide_state_indices, b * p.state_indices_stride) : b;
  if (row >= p.states) {
    if (d == 0) {
      TORCH_REPORT_ERROR(
          errors,
          "causal_conv1d_update(): expected state_indices below S = ",
          long(p.states),
          ", but got ",
          row,
          " at ",
          b);
    }
    row = p.states - 1;
  }
  if (row < 0) {
    for (long t = 0; t < p.time; ++t) {
      output[offset_of(p.output, b, d, t)] = T(0);
    }
    return;
  }
  long before = p.cache_seqlens_given ? index_at(cache_seqlens, p.wide_cache_seqlens, b * p.cache_seqlens_stride) : 0;
  if (before < 0) {
    if (d == 0) {
      TORCH_REPORT_ERROR(
          errors,
          "causal_conv1d_update(): expected cache_seqlens to count tokens from 0 on, but got ",
          before,
          " at ",
          b);
    }
    before = 0;
  }
  const float offset = p.bias_given ? parameter_at<T>(bias, p.wide_parameters, d * p.bias_channel) : 0;
  for (long t = 0; t < p.time; ++t) {
    float z = offset;
    for (long k = 0; k < p.width; ++k) {
      const long s = t + k - (p.width - 1);
      float tap = 0;
      if (s >= 0) {
        tap = static_cast<float>(input[offset_of(p.input, b, d, s)]);
      } else if (!p.cache_seqlens_given) {
        tap = static_cast<float>(state[offset_of(p.state, row, d, p.places + s)]);
      } else if (before + s >= 0) {
        tap = static_cast<float>(state[offset_of(p.state, row, d, (before + s) % p.places)]);
      }
      z = fma(parameter_at<T>(weight, p.wide_parameters, d * p.weight_channel + k * p.weight_tap), tap, z);
    }
    output[offset_of(p.output, b, d, t)] = static_cast<T>(p.silu ? silu(z) : z);
  }

  if (p.cache_seqlens_given) {
    // Place of token i: i modulo L, taken apart so that no sum overflows.
    const long first = max(long(p.time) - long(p.places), long(0));
    for (long t = first; t < p.time; ++t) {
      const long place = (before % p.places + t % p.places) % p.places;
      state[offset_of(p.state, row, d, place)] = input[offset_of(p.input, b, d, t)];
    }
  } else {
    for (long j = 0; j < p.places; ++j) {
      const long from = j + p.time;
      if (from < p.places) {
        state[offset_of(p.state, row, d, j)] = state[offset_of(p.state, row, d, from)];
      } else {
        state[offset_of(p.state, row, d, j)] = input[offset_of(p.input, b, d, from - p.places)];
      }
    }
  }
}

#define REGISTER_CAUSAL_CONV1D(T)                                                          \
  template [[host_name("causal_conv1d_forward_" #T)]] kernel void causal_conv1d_forward<T>( \
      device T * output,                                                                   \
      constant T * input,                                                                  \
      constant void* weight,                                                               \
      constant void* bias,                                                                 \
      constant T* initial_state,                                                           \
      constant void* seq_idx,                                                              \
      constant void* cu_seqlens,                                                           \
      constant CausalConv1dParams& p,                                                      \
      uint3 position);                                                                     \
  template [[host_name("causal_conv1d_final_state_" #T)]] kernel void                      \
  causal_conv1d_final_state<T>(                                                            \
      device T * final_state,                                                              \
      constant T * input,                                                                  \
      constant T * initial_state,                                                          \
      constant void* seq_idx,                                                              \
      constant void* cu_seqlens,                                                           \
      constant long* last,                                                                 \
      constant CausalConv1dParams& p,                                                      \
      uint3 position);                                                                     \
  template [[host_name("causal_conv1d_backward_input_" #T)]] kernel void                   \
  causal_conv1d_backward_input<T>(                                                         \
      device T * grad_input,                                                               \
      constant T * grad_output,                                                            \
      constant T * grad_final_state,                                                       \
      constant T * input,                                                                  \
      constant void* weight,                                                               \
      constant void* bias,                                                                 \
      constant T* initial_state,                                                           \
      constant void* seq_idx,                                                              \
      constant void* cu_seqlens,                                                           \
      constant long* last,                                                                 \
      constant CausalConv1dParams& p,                                                      \
      uint3 position);                                                                     \
  template [[host_name("causal_conv1d_backward_initial_state_" #T)]] kernel void           \
  causal_conv1d_backward_initial_state<T>(                                                 \
      device T * grad_initial_state,                                                       \
      constant T * grad_output,                                                            \
      constant T * grad_final_state,                                                       \
      constant T * input,                                                                  \
      constant void* weight,                                                               \
      constant void* bias,                                                                 \
      constant T* initial_state,                                                           \
      constant void* seq_idx,                                                              \
      constant void* cu_seqlens,                                                           \
      constant long* last,                                                                 \
      constant CausalConv1dParams& p,                                                      \
      uint3 position);                                                                     \
  template [[host_name("causal_conv1d_backward_partials_" #T)]] kernel void                \
  causal_conv1d_backward_partials<T>(                                                      \
      device float* partials,                                                              \
      constant T* grad_output,                                                             \
      constant T* input,                                                                   \
      constant void* weight,                                                               \
      constant void* bias,                                                                 \
      constant T* initial_state,                                                           \
      constant void* seq_idx,                                                              \
      constant void* cu_seqlens,                                                           \
      constant CausalConv1dParams& p,                                                      \
      uint2 group,                                                                         \
      uint thread_index);                                                                  \
  template [[host_name("causal_conv1d_backward_parameters_" #T)]] kernel void              \
  causal_conv1d_backward_parameters<T>(                                                    \
      device void* grad_weight,                                                            \
      device void* grad_bias,                                                              \
      constant float* partials,                                                            \
      constant CausalConv1dParams& p,                                                      \
      constant long& num_partials,                                                         \
      constant bool2& wanted,                                                              \
      uint2 position);                                                                     \
  template [[host_name("causal_conv1d_update_" #T)]] kernel void causal_conv1d_update<T>(  \
      device T * output,                                                                   \
      device T * state,                                                                    \
      constant T * input,                                                                  \
      constant void* weight,                                                               \
      constant void* bias,                                                                 \
      constant void* state_indices,                                                        \
      constant void* cache_seqlens,                                                        \
      constant CausalConv1dUpdateParams& p,                                                \
      device c10::metal::ErrorMessages* errors,                                            \
      uint2 position)

REGISTER_CAUSAL_CONV1D(float);
REGISTER_CAUSAL_CONV1D(half);
REGISTER_CAUSAL_CONV1D(bfloat);
