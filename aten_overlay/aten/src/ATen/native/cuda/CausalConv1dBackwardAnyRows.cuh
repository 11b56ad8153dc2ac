// causal_conv1d's backward pass along rows of positions that CausalConv1dBackwardRows.cuh leaves.
#pragma once

#include <ATen/native/cuda/CausalConv1dBackwardRows.cuh>

namespace at::native {

namespace {

// The most spans of a warp.
constexpr int kSpans = 16;

// What the states add to the weight gradients, for the outputs t.. that see an initial state of cu_seqlens.
template <typename scalar_t, int W, typename acc_t, int kVec>
__device__ void add_state_sums(
    const BackwardParams<scalar_t>& p,
    int64_t b,
    int64_t d,
    int64_t t,
    const Values<acc_t, kVec>& dz,
    Values<acc_t, W + 1>& sums) {
  if (t >= p.time) {
    return;
  }
  auto segment = p.sequences.find(b, t);
#pragma unroll 1
  for (int j = 0; j < Row<scalar_t>::kVec && t + j < p.time; ++j) {
    p.sequences.advance(segment, t + j);
    const auto before = t + j - segment.start;
#pragma unroll
    for (int k = 0; k < W - 1; ++k) {
      if (before + k < W - 1) {
        const auto tap = static_cast<acc_t>(load_element(p.initial_state.at(segment.state, d, before + k)));
        sums[k] = multiply_add(get_element(dz, j), tap, sums[k]);
      }
    }
  }
}

// Writes the gradient of a row's initial state. Its places are the positions before the first: what the last lane's
// `carry` reaches, the dz from the row's start on; unless they do not begin there.
template <int W, typename scalar_t, typename acc_t>
__device__ __noinline__ void write_row_state_grad(
    const BackwardParams<scalar_t>& p,
    int64_t b,
    int64_t d,
    bool elsewhere,
    Values<acc_t, W> weight,
    Values<acc_t, W - 1> carry) {
  const int lane = threadIdx.x % kLanes;
  acc_t value = 0;
#pragma unroll
  for (int j = 0; j < W - 1; ++j) {
    acc_t sum = 0;
#pragma unroll
    for (int k = 0; k <= j; ++k) {
      const auto first_dz = __shfl_sync(kEveryLane, carry[j - k], kLanes - 1);
      const bool own = j - k < p.time && (!p.masks.data || p.masks.load(b, j - k) >> k & 1);
      sum = multiply_add(weight[k], own ? first_dz : acc_t(0), sum);
    }
    value = lane == j ? sum : value;
  }
  if (lane < W - 1) {
    if (elsewhere) {
      value = first_inputs_grad(p, {b, 0, p.time}, b, d, lane);
    }
    write_initial_state_grad(p, {b, 0, p.time}, b, d, lane, value);
  }
}

// What the final state of a row passes on to the vector at t.
template <int W, typename scalar_t, typename acc_t, int kVec>
__device__ void add_row_final_grad(
    const BackwardParams<scalar_t>& p, int64_t b, int64_t d, int64_t t, Values<acc_t, kVec>& dx) {
  const auto first = p.time - (W - 1) - t; // the element that place 0 holds
#pragma unroll 1
  for (int j = max(max(first, -t), int64_t(0)); j < min(int64_t(kVec), p.time - t); ++j) {
    const auto grad = static_cast<acc_t>(load_element(p.grad_final_state.at(b, d, j - first)));
    set_element(dx, j, get_element(dx, j) + grad);
  }
}

template <typename scalar_t, int W>
__global__ void __launch_bounds__(kThreads, 4)
backward_any_rows(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ RowChunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using row_t = Row<scalar_t>;
  using window_t = Window<scalar_t, W>;
  using vector_t = typename row_t::vector_t;
  constexpr int kVec = row_t::kVec;
  constexpr int kSpan = row_t::kSpan;
  constexpr int kBehind = window_t::kBefore; // vectors behind a vector that its inputs reach
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p, blockIdx.x - p.blocks);
    return;
  }
  int64_t b, d, chunk;
  if (!chunks.find<int64_t>(blockIdx.x, b, d, chunk)) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  const bool packed = p.masks.data, segments = p.sequences.cu_seqlens.data;
  const bool store = p.grad_input.data;

  // Vectors are aligned in grad_input; beside masks, in the row.
  const auto* data = p.input.at(b, d, 0);
  const auto* grad_data = p.grad_output.at(b, d, 0);
  auto* grad_in = store ? p.grad_input.at(b, d, 0) : nullptr;
  const int phase = packed ? 0 : reinterpret_cast<uintptr_t>(grad_in) / sizeof(scalar_t) % kVec;
  row_t x(data, p.time, phase);
  const row_t grad_out(grad_data, p.time, phase);
  if (p.initial_state.data && !segments) {
    x.set_state(p.initial_state.at(b, d, 0), p.initial_state.time, W);
  }
  const auto begin = chunk * chunks.spans * kSpan - phase;
  const int count = max(int64_t(0), min(int64_t(chunks.spans), ceil_div(p.time - begin, kSpan)));
  const auto end = begin + count * kSpan;
  int low, high, grad_high;
  grad_out.straight_spans(begin, count, low, grad_high);
  x.straight_spans(begin, count, low, high);
  high = reinterpret_cast<uintptr_t>(grad_in - phase) % 16 == 0 ? min(high, grad_high) : 0;
  if (packed && p.grad_final_state.data) {
    high = min(int64_t(high), (p.time - (W - 1) - begin) / kSpan);
  }

  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
  Values<acc_t, W + 1> sums;
#pragma unroll
  for (int k = 0; k <= W; ++k) {
    sums[k] = 0;
  }
  // For the last lanes: the dz behind the span.
  Values<acc_t, W - 1> carry;
  bool behind_straight = true; // whether the outputs there see all their taps
  {
    acc_t value = 0;
    const auto t = end + lane;
    if (lane < W - 1 && t < p.time) {
      value = preactivation_grad(p, p.sequences.find(b, t), b, d, t);
    }
    if (packed) {
      const bool straight = lane >= W - 1 || t >= p.time || p.masks.load(b, t) == every_mask<W, 1>().words[0];
      behind_straight = __all_sync(kEveryLane, straight);
    }
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      carry[j] = __shfl_sync(kEveryLane, value, (j - (kLanes - 1 - lane) * kVec) & (kLanes - 1));
    }
  }
  // Appends the dz behind a lane's vector to its own; the last lanes' are those that the first have now, a span later.
  const auto exchange = [&](Values<acc_t, kVec + W - 1>& dz) {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const int lanes = 1 + j / kVec;
      const auto next = __shfl_sync(kEveryLane, dz[j % kVec], (lane + lanes) & (kLanes - 1));
      dz[kVec + j] = lane + lanes >= kLanes ? carry[j] : next;
      carry[j] = next;
    }
  };
  int span = count - 1;
  // The straight way down from `span`: whole vectors, of which every tap counts, as of the outputs that their inputs
  // reach; the next span is on its way.
  const auto go_straight = [&] {
    const auto lane_begin = begin + lane * kVec;
    const auto* x_from = data + lane_begin;
    const auto* grad_from = grad_data + lane_begin;
    auto* to = grad_in + lane_begin;
    settle(x_from);
    settle(grad_from);
    settle(to);
    const int floor = chunk == 0 ? -static_cast<int>(lane_begin) : -kSpan; // the start of the row, or before
    const int left = min(p.time - lane_begin, int64_t(kSpans * kSpan)); // positions from the lane's first on
    // From these spans on, some lanes are behind the row's end; what is left passes something on to the input.
    const int cut = min((p.time - begin) / kSpan, int64_t(kSpans));
    const int ending = !packed && p.grad_final_state.data
        ? min((p.time - (W - 1) - begin) / kSpan, int64_t(kSpans))
        : kSpans;
    window_t window;
    vector_t grad_vector;
    // What lies outside reads the first span or the last vector again, whose values are not used.
    const auto fetch = [&](int span) {
      const int offset = min(max(span, low) * kSpan, left - kVec);
      window.load(x_from, offset, floor);
      grad_vector = load_vector<scalar_t, kVec>(grad_from + offset);
    };
    fetch(span);
#pragma unroll 1
    for (; span >= low; --span) {
      const bool inside = span * kSpan < left;
      if (packed) {
        const bool every = !inside || every_tap<W>(p.masks.template load<kVec>(b, lane_begin + span * kSpan));
        if (!__all_sync(kEveryLane, every) || !behind_straight) {
          return;
        }
      }
      auto inputs = window.widen();
      Values<acc_t, kVec> grad;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        grad[j] = grad_vector.widen(j);
      }
      settle(inputs);
      settle(grad);
      fetch(span - 1);
      if (chunk == 0 && span == 0) {
        see_row_start<scalar_t, W>(x, lane, inputs);
      }
      Values<acc_t, kVec + W - 1> dz;
      if (p.silu) {
        const auto z = sum_inputs<W>(weight, bias, inputs);
        grad = Silu<scalar_t>::times_slopes(grad, z);
      }
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        dz[j] = grad[j];
      }
      if (span >= cut) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          dz[j] = inside ? dz[j] : acc_t(0);
        }
#pragma unroll
        for (int j = 0; j < window_t::kInputs; ++j) {
          inputs[j] = inside ? inputs[j] : acc_t(0);
        }
      }
      exchange(dz);
      auto dx = sum_row_dz<W>(weight, inputs, dz, sums);
      if (span >= ending) {
        add_row_final_grad<W>(p, b, d, lane_begin + span * kSpan, dx);
      }
      if (store && inside) {
        store_vector(to + span * kSpan, narrow<scalar_t>(dx));
      }
    }
  };
#pragma unroll 1
  while (true) {
    if (span >= low && span < high) {
      go_straight();
    }
    if (span < 0) {
      break;
    }
    // The masked way, one span.
    const auto t = begin + span * kSpan + lane * kVec;
    window_t window;
    window.load(x, t);
    const auto inputs = window.widen();
    const auto grad_vector = grad_out.load(t);
    Values<Vector<uint8_t, kVec>, kBehind + 1> masks; // of the vector and those behind it
#pragma unroll
    for (int i = 0; i <= kBehind; ++i) {
      masks[i] = packed ? p.masks.template load<kVec>(b, t + i * kVec) : every_mask<W, kVec>();
    }
    const auto counts = [&](int j, int k) { return masks[j / kVec].bits(j % kVec) >> k & 1; };
    if (packed) {
      const auto straight = __ballot_sync(kEveryLane, every_tap<W>(masks[0]));
      behind_straight = (~straight & ((1u << kBehind) - 1)) == 0;
    }
    auto z = masked_sums<scalar_t, W>(masks[0], weight, bias, inputs);
    see_states<scalar_t, W>(p, b, d, t, z);
    Values<acc_t, kVec + W - 1> dz;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const bool own = t + j >= 0 && t + j < p.time && counts(j, W - 1);
      const auto grad = static_cast<acc_t>(grad_vector.widen(j));
      dz[j] = !own ? acc_t(0) : p.silu ? Silu<scalar_t>::times_slope(grad, z[j]) : grad;
    }
    if (segments && p.initial_state.data) {
      add_state_sums<scalar_t, W>(p, b, d, t, dz, sums);
    }
    exchange(dz);
    auto dx = sum_row_dz<W>(weight, inputs, dz, sums, counts);
    if (p.grad_final_state.data && packed) {
#pragma unroll 1
      for (int j = 0; j < kVec && t + j < p.time; ++j) {
        set_element(dx, j, get_element(dx, j) + final_state_grad(p, b, d, t + j));
      }
    } else if (p.grad_final_state.data) {
      add_row_final_grad<W>(p, b, d, t, dx);
    }
    if (store) {
      store_masked(grad_in, p.time, t, narrow<scalar_t>(dx));
    }
    --span;
  }

  const auto sum = LaneSums<W + 1>::sum(sums);
  if (auto* to = LaneSums<W + 1>::to(p, b * chunks.per_row + chunk, d)) {
    *to = sum;
  }
  if (p.grad_initial_state.data && !segments && chunk == 0) {
    write_row_state_grad<W>(p, b, d, phase != 0, weight, carry);
  }
}

} // namespace

} // namespace at::native
