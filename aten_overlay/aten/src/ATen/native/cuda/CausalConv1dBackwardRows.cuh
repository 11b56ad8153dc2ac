// causal_conv1d's backward pass along rows of positions.
#pragma once

#include <ATen/native/cuda/CausalConv1dBackwardParams.cuh>
#include <ATen/native/cuda/CausalConv1dRows.cuh>

namespace at::native {

namespace {

// The most spans of a chunk, so that offsets in it fit into 32 bits; blocks of a multiprocessor.
constexpr int64_t kMostSpans = 1 << 20;
constexpr int kRowBlocks = 6;

// What backward_rows is compiled for: rows with states, or divided, or neither.
enum class RowKind { kPlain, kStates, kPacked };

// Writes a warp's sums for the parameters of a channel.
template <typename scalar_t, typename acc_t, int kSums>
__device__ void write_row_partials(
    const BackwardParams<scalar_t>& p, int64_t unit, int64_t d, Values<acc_t, kSums>& sums) {
  if (!p.partials) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  acc_t sum = 0;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      sums[k] += __shfl_xor_sync(kEveryLane, sums[k], offset);
    }
    sum = lane == k ? sums[k] : sum;
  }
  if (lane < kSums) {
    *p.partial(unit, lane, d) = sum;
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

// The dz of W-1 positions from t on, one a lane.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> dz_behind(
    const BackwardParams<scalar_t>& p, int64_t b, int64_t d, int64_t t) {
  t += threadIdx.x % kLanes;
  return threadIdx.x % kLanes < p.width - 1 && t < p.time ? preactivation_grad(p, p.sequences.find(b, t), b, d, t) : 0;
}

// Rows that consist of aligned vectors. A warp goes through its chunk from the end on, with the next span on its way.
template <typename scalar_t, int W, RowKind kKind>
__global__ void __launch_bounds__(kThreads, kKind == RowKind::kPlain && W <= 4 ? kRowBlocks : kRowBlocks - 1)
backward_rows(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ RowChunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using window_t = Window<scalar_t, W>;
  using vector_t = typename window_t::vector_t;
  constexpr int kVec = window_t::kVec;
  constexpr int kSpan = Row<scalar_t>::kSpan;
  constexpr int kBehind = window_t::kBefore; // vectors behind a vector that its inputs reach
  constexpr bool kStates = kKind == RowKind::kStates, kPacked = kKind == RowKind::kPacked;
  int64_t b, d, chunk;
  if (!chunks.find(b, d, chunk)) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  const auto begin = chunk * chunks.spans * kSpan, first = begin + lane * kVec;
  const int count = min(int64_t(chunks.spans), ceil_div(p.time - begin, kSpan)); // spans
  const auto* x = p.input.at(b, d, first);
  const auto* grad_out = p.grad_output.at(b, d, first);
  auto* grad_in = p.grad_input.at(b, d, first);
  settle(x);
  settle(grad_out);
  settle(grad_in);

  // The spans that are stored; that before which there are no inputs, that which sees the initial state, and the first
  // that the final state reaches, each only if there is one.
  const bool inside = first + (count - 1) * kSpan < p.time;
  int stores = p.grad_input.data ? (inside ? count : count - 1) : 0;
  int row_start = chunk == 0 ? 0 : -1;
  int state_start = p.initial_state.data ? row_start : -1;
  int ending = p.grad_final_state.data ? max(p.time - (W - 1) - begin, int64_t(0)) / kSpan : count;
  int left = p.time - first; // positions of the row from the lane's first on
  settle(stores);
  settle(row_start);
  if (kStates) {
    settle(state_start);
    settle(ending);
    settle(left);
  }

  // A lane whose last vector is behind the row's end computes with zeros there.
  window_t window{};
  vector_t grad_vector{};
  const auto fetch = [&](int span) {
    window.load(x + span * kSpan, span == row_start ? lane : kBehind);
    grad_vector = load_vector<scalar_t, kVec>(grad_out + span * kSpan);
  };
  if (inside) {
    fetch(count - 1);
  }
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
  // Of the states, a place a lane.
  acc_t state = 0, final_grad = 0;
  if (kStates && lane < W - 1 && state_start == 0) {
    state = static_cast<acc_t>(load_element(p.initial_state.at(b, d, lane)));
  }
  if (kStates && lane < W - 1 && ending < count) {
    final_grad = static_cast<acc_t>(load_element(p.grad_final_state.at(b, d, lane)));
  }
  // Which vectors see all their taps: of the span with the lane's number, modulo their number, and of that behind.
  unsigned straight = kEveryLane, straight_behind = kEveryLane;
  if (kPacked) {
    wait_for_previous(); // which found the masks
    straight_behind = p.masks.template straight_lanes<kVec>(b, begin + count * kSpan);
  }
  Values<acc_t, W + 1> sums{};
  // For the last lanes: the dz behind the span.
  Values<acc_t, W - 1> carry{};
  if (begin + count * kSpan < p.time) {
    const auto value = dz_behind(p, b, d, begin + count * kSpan);
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      carry[j] = __shfl_sync(kEveryLane, value, (j - (kLanes - 1 - lane) * kVec) & (kLanes - 1));
    }
  }

#pragma unroll 1
  for (int span = count - 1; span >= 0; --span) {
    auto inputs = window.widen();
    Values<acc_t, kVec> grad;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      grad[j] = grad_vector.widen(j);
    }
    settle(inputs);
    settle(grad);
    if (span > 0) {
      fetch(span - 1);
    }
    if (kStates && span == state_start) {
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        const auto value = __shfl_sync(kEveryLane, state, i);
#pragma unroll
        for (int q = 0; q * kVec <= i; ++q) {
          inputs[i - q * kVec] = lane == q ? value : inputs[i - q * kVec];
        }
      }
    }
    bool masked = false;
    Vector<uint8_t, kVec> masks[kBehind + 1]; // of the vector and those behind it
    if (kPacked) {
      if (span == count - 1 || span % kLanes == kLanes - 1) {
        straight = p.masks.template straight_lanes<kVec>(b, begin + (span / kLanes * kLanes + lane) * kSpan);
      }
      const auto own = __shfl_sync(kEveryLane, straight, span % kLanes);
      auto every = own;
#pragma unroll
      for (int i = 1; i <= kBehind; ++i) {
        every &= __funnelshift_r(own, straight_behind, i);
      }
      straight_behind = own;
      masked = !(every >> lane & 1);
    }
    const auto counts = [&](int j, int k) { return masks[j / kVec].bits(j % kVec) >> k & 1; };
    Values<acc_t, kVec> z;
    if (masked) {
#pragma unroll
      for (int i = 0; i <= kBehind; ++i) {
        masks[i] = p.masks.template load<kVec>(b, begin + span * kSpan + (lane + i) * kVec);
      }
      z = masked_sums<scalar_t, W>(masks[0], weight, bias, inputs);
    } else {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        z[j] = bias;
#pragma unroll
        for (int k = 0; k < W; ++k) {
          z[j] = multiply_add(weight[k], inputs[j + k], z[j]);
        }
      }
    }
    if (p.silu) {
      grad = Silu<scalar_t>::times_slopes(grad, z);
    }
    if (masked) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        grad[j] = counts(j, W - 1) ? grad[j] : acc_t(0);
      }
    }
    // The dz behind a lane's vector after its own. The last lanes' are those that the first have now, a span later.
    Values<acc_t, kVec + W - 1> dz;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      dz[j] = grad[j];
    }
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const int lanes = 1 + j / kVec;
      const auto next = __shfl_sync(kEveryLane, dz[j % kVec], (lane + lanes) & (kLanes - 1));
      dz[kVec + j] = lane + lanes >= kLanes ? carry[j] : next;
      carry[j] = next;
    }
    Values<acc_t, kVec> dx{};
    if (masked) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
#pragma unroll
        for (int k = 0; k < W; ++k) {
          const int after = j + W - 1 - k;
          sums[k] = multiply_add(dz[j], counts(j, k) ? inputs[j + k] : acc_t(0), sums[k]);
          dx[j] = multiply_add(weight[k], counts(after, k) ? dz[after] : acc_t(0), dx[j]);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
#pragma unroll
        for (int k = 0; k < W; ++k) {
          sums[k] = multiply_add(dz[j], inputs[j + k], sums[k]);
          dx[j] = multiply_add(weight[k], dz[j + W - 1 - k], dx[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      sums[W] += dz[j];
    }
    if (kStates && span >= ending) {
      const int place = span * kSpan - (left - (W - 1)); // of the vector's first element
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        const auto value = __shfl_sync(kEveryLane, final_grad, (place + j) & (kLanes - 1));
        dx[j] += place + j >= 0 && place + j < W - 1 ? value : acc_t(0);
      }
    }
    if (span < stores) {
      store_vector(grad_in + span * kSpan, narrow<scalar_t>(dx));
    }
  }

  chunks.find(b, d, chunk);
  write_row_partials(p, b * chunks.per_row + chunk, d, sums);
  if (kStates && p.grad_initial_state.data && chunk == 0) {
    write_row_state_grad<W>(p, b, d, false, weight, carry);
  }
}

} // namespace

} // namespace at::native
