// causal_conv1d's backward pass along rows of positions.
#pragma once

#include <ATen/native/cuda/CausalConv1dBackwardParams.cuh>
#include <ATen/native/cuda/CausalConv1dRows.cuh>

namespace at::native {

namespace {

// The most spans of a chunk, so that offsets in it fit into 32 bits; spans on their way; blocks of a multiprocessor.
constexpr int64_t kMostSpans = 1 << 20;
constexpr int kDepth = 4;
constexpr int kRowBlocks = 6;

// Writes a warp's sums for the parameters of a channel.
template <typename scalar_t, typename acc_t, int kSums>
__device__ void write_row_partials(
    const BackwardParams<scalar_t>& p, int64_t unit, int64_t d, const Values<acc_t, kSums>& sums) {
  if (!p.partials) {
    return;
  }
  // Halves of the sums go to halves of the lanes, as long as there are several; so few need to be exchanged.
  constexpr int kSize = kSums <= 2 ? 2 : kSums <= 4 ? 4 : kSums <= 8 ? 8 : 16;
  const int lane = threadIdx.x % kLanes;
  Values<acc_t, kSize> parts{};
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    parts[k] = sums[k];
  }
#pragma unroll
  for (int offset = kLanes / 2, size = kSize / 2; offset > 0; offset /= 2, size /= 2) {
#pragma unroll
    for (int k = 0; k < (size > 0 ? size : 1); ++k) {
      const bool high = size > 0 && lane & offset;
      const auto other = size > 0 ? (high ? parts[k] : parts[k + size]) : parts[0];
      parts[k] = (high ? parts[k + size] : parts[k]) + __shfl_xor_sync(kEveryLane, other, offset);
    }
  }
  constexpr int kStep = kLanes / kSize; // lanes with the same sum
  if (lane % kStep == 0 && lane / kStep < kSums) {
    *p.partial(unit, lane / kStep, d) = parts[0];
  }
}

// The dz of W-1 positions from t on, one a lane.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> dz_behind(
    const BackwardParams<scalar_t>& p, int64_t b, int64_t d, int64_t t) {
  t += threadIdx.x % kLanes;
  return threadIdx.x % kLanes < p.width - 1 && t < p.time ? preactivation_grad(p, p.sequences.find(b, t), b, d, t) : 0;
}

// What a warp reads of a span on its way to it.
template <typename scalar_t, int W>
struct SpanSlot {
  using window_t = Window<scalar_t, W>;
  using vector_t = typename window_t::vector_t;
  static constexpr int kBefore = window_t::kBefore;
  static constexpr int kLoaded = window_t::kLoaded;
  static constexpr int kFull = kBefore > 1 ? kBefore - 1 : 0; // vectors before the own, without the furthest
  vector_t own[kThreads];
  vector_t grad[kThreads];
  vector_t before[kFull > 0 ? kFull : 1][kFull > 0 ? kThreads : 1]; // the nearest first
  Vector<scalar_t, kLoaded> last[kBefore > 0 ? kThreads : 1]; // of the furthest

  // Asks for a lane's vectors; of those before its own, for those up to `reach` back.
  __device__ void fetch(const scalar_t* x, const scalar_t* grad_out, int reach) {
    load_async(&own[threadIdx.x], x);
    load_async(&grad[threadIdx.x], grad_out);
#pragma unroll
    for (int q = 1; q <= kFull; ++q) {
      load_async(&before[q - 1][threadIdx.x], x - q * window_t::kVec, reach >= q);
    }
    if constexpr (kBefore > 0) {
      load_async(&last[threadIdx.x], x - kFull * window_t::kVec - kLoaded, reach >= kBefore);
    }
  }

  __device__ window_t window() const {
    window_t window;
    window.own = own[threadIdx.x];
#pragma unroll
    for (int q = 1; q <= kFull; ++q) {
      window.before[q - 1] = before[q - 1][threadIdx.x];
    }
    if constexpr (kBefore > 0) {
      const auto part = last[threadIdx.x];
#pragma unroll
      for (int i = 0; i < part.kWords; ++i) {
        window.before[kBefore - 1].words[i + window.own.kWords - part.kWords] = part.words[i];
      }
    }
    return window;
  }

  __device__ void clear() {
    own[threadIdx.x] = {};
    grad[threadIdx.x] = {};
#pragma unroll
    for (int q = 1; q <= kFull; ++q) {
      before[q - 1][threadIdx.x] = {};
    }
    if constexpr (kBefore > 0) {
      last[threadIdx.x] = {};
    }
  }
};

// Of rows with borders, the vectors that see states, or not all of their taps: a bit for each vector of the span that
// begins at position t.
template <int W, typename scalar_t>
__device__ unsigned border_vectors(const BackwardParams<scalar_t>& p, int64_t b, int64_t t) {
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kBehind = Window<scalar_t, W>::kBefore; // vectors behind a vector that its inputs reach
  constexpr unsigned kReached = (1u << kBehind) - 1;
  unsigned which = 0;
  if (p.masks.data) {
    const auto own = p.masks.template straight_lanes<kVec>(b, t);
    const auto behind = p.masks.template straight_lanes<kVec>(b, t + Row<scalar_t>::kSpan);
    which = ~own;
#pragma unroll
    for (int q = 1; q <= kBehind; ++q) {
      which |= ~__funnelshift_r(own, behind, q);
    }
  }
  if (p.initial_state.data && t == 0) {
    which |= kReached;
  }
  const auto left = p.time - t;
  if (p.grad_final_state.data && left > 0 && left < (kLanes + kBehind) * kVec) {
    const int first = static_cast<int>(left) / kVec - kBehind;
    which |= first >= 0 ? kReached << first : kReached >> -first;
  }
  return which;
}

// Computes those vectors of up to kLanes spans, a position a lane. `which` is that of a span: lane i has that of span
// `last` - i. The pointers point to the lane's vector of span `here`.
template <int W, typename scalar_t, typename acc_t>
__device__ void backward_borders(
    const BackwardParams<scalar_t>& p,
    const RowChunks& chunks,
    const scalar_t* x,
    const scalar_t* grad_out,
    scalar_t* grad_in,
    int here,
    int last,
    unsigned which,
    const Values<acc_t, W>& weight,
    acc_t bias,
    Values<acc_t, W + 1>& sums) {
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kSpan = Row<scalar_t>::kSpan;
  constexpr int kGroup = kVec + 2 * (W - 1); // lanes for a vector, with W-1 positions on either side
  constexpr int kGroups = kLanes / kGroup;
  constexpr int kNone = -kLanes;
  auto spans = __ballot_sync(kEveryLane, which != 0);
  if (spans == 0) {
    return;
  }
  int64_t b, d, chunk;
  chunks.find(b, d, chunk);
  const auto begin = chunk * chunks.spans * kSpan;
  const int lane = threadIdx.x % kLanes, group = lane / kGroup, place = lane % kGroup - (W - 1);
  const int origin = here * kSpan + lane * kVec;
  // From where to where there is a row, from `begin` on.
  const int low = chunk == 0 ? 0 : kNone;
  const int high = min(p.time - begin, int64_t(1) << 30);
  const auto* masks = p.masks.data ? p.masks.data + b * p.masks.pitch + begin : nullptr;
  unsigned vectors = 0;
  int span = 0;
#pragma unroll 1
  while (vectors != 0 || spans != 0) {
    // The next vectors, one for each group of lanes.
    int t = kNone;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (vectors == 0 && spans != 0) {
        const int i = __ffs(spans) - 1;
        spans &= spans - 1;
        vectors = __shfl_sync(kEveryLane, which, i);
        span = last - i;
      }
      if (vectors != 0) {
        const int vector = __ffs(vectors) - 1;
        vectors &= vectors - 1;
        t = group == g ? span * kSpan + vector * kVec + place : t;
      }
    }
    acc_t input = 0, dz = 0;
    unsigned mask = 0;
    const bool inside = t >= low && t < high && t > kNone;
    const bool before = t < low && t > kNone;
    if (inside) {
      input = static_cast<acc_t>(load_element(x + (t - origin)));
      dz = static_cast<acc_t>(load_element(grad_out + (t - origin)));
      mask = masks ? masks[t] : (1u << W) - 1;
    } else if (before && p.initial_state.data) {
      input = static_cast<acc_t>(load_element(p.initial_state.at(b, d, W - 1 + t)));
    }
    Values<acc_t, W> taps;
    auto z = bias;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const auto tap =
          k == W - 1 ? input : __shfl_sync(kEveryLane, input, (lane - (W - 1) + k) & (kLanes - 1));
      taps[k] = mask >> k & 1 ? tap : acc_t(0);
      z = multiply_add(weight[k], taps[k], z);
    }
    if (p.silu) {
      dz = Silu<scalar_t>::times_slope(dz, z);
    }
    dz = mask >> (W - 1) & 1 ? dz : acc_t(0);
    acc_t dx = 0;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const int after = W - 1 - k;
      const auto seen = mask >> k & 1 ? dz : acc_t(0);
      const auto from = after == 0 ? seen : __shfl_sync(kEveryLane, seen, (lane + after) & (kLanes - 1));
      dx = multiply_add(weight[k], from, dx);
    }
    if (inside && place >= 0 && place < kVec) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        sums[k] = multiply_add(dz, taps[k], sums[k]);
      }
      sums[W] += dz;
      const int final_place = t - (high - (W - 1));
      if (p.grad_final_state.data && final_place >= 0) {
        dx += static_cast<acc_t>(load_element(p.grad_final_state.at(b, d, final_place)));
      }
      if (p.grad_input.data) {
        store_element(grad_in + (t - origin), static_cast<scalar_t>(dx));
      }
    } else if (before && t == place && p.grad_initial_state.data) { // beside the row's first vector
      write_initial_state_grad(p, {b, 0, p.time}, b, d, W - 1 + t, dx);
    }
  }
}

// Rows that consist of aligned vectors. A warp goes through its chunk from the end on, with the next spans on their
// way. kBorders: rows are divided or have states, not both.
template <typename scalar_t, int W, bool kBorders>
__global__ void __launch_bounds__(kThreads, !kBorders && W <= 4 ? kRowBlocks : kRowBlocks - 1)
backward_rows(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ RowChunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using slot_t = SpanSlot<scalar_t, W>;
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kSpan = Row<scalar_t>::kSpan;
  constexpr int kBehind = slot_t::kBefore; // vectors behind a vector that its inputs reach
  __shared__ slot_t slots[kDepth];
  let_next_begin();
  int64_t b, d, chunk;
  if (!chunks.find(b, d, chunk)) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  const auto begin = chunk * chunks.spans * kSpan;
  const int count = min(int64_t(chunks.spans), ceil_div(p.time - begin, kSpan)); // spans
  // The spans are numbered from the last on, to which the pointers point at first.
  const auto first = begin + (count - 1) * kSpan + lane * kVec;
  const auto* x = p.input.row(b, d) + first;
  const auto* grad_out = p.grad_output.row(b, d) + first;
  auto* grad_in = p.grad_input.row(b, d) + first;
  settle(x);
  settle(grad_out);
  settle(grad_in);

  // From which span on it is stored, and that before which there are no inputs, if there is one.
  const bool inside = first < p.time;
  int stores = p.grad_input.data ? (inside ? 0 : 1) : count;
  int row_start = chunk == 0 ? count - 1 : -1;
  settle(stores);
  settle(row_start);

  const auto fetch = [&](int slot, int span) {
    slots[slot].fetch(x - slot * kSpan, grad_out - slot * kSpan, span == row_start ? lane : kBehind);
  };
  // A lane whose last vector is behind the row's end computes with zeros there.
  if (inside) {
    fetch(0, 0);
  } else {
    slots[0].clear();
  }
  end_group();
#pragma unroll
  for (int i = 1; i < kDepth; ++i) {
    if (i < count) {
      fetch(i, i);
    }
    end_group();
  }
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
  Values<acc_t, W + 1> sums{};
  // For the last lanes: the dz behind the span.
  Values<acc_t, W - 1> carry{};
  if (begin + count * kSpan < p.time) {
    if (kBorders && p.masks.data) {
      wait_for_previous(); // which found the masks
    }
    const auto value = dz_behind(p, b, d, begin + count * kSpan);
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      carry[j] = __shfl_sync(kEveryLane, value, (j - (kLanes - 1 - lane) * kVec) & (kLanes - 1));
    }
  }
  unsigned borders = 0; // of the span with the lane's number, modulo their number

#pragma unroll 1
  for (int group = 0; group < count; group += kDepth) {
    if (kBorders && group % kLanes == 0) {
      if (p.masks.data) {
        wait_for_previous(); // which found the masks
      }
      chunks.find(b, d, chunk);
      const int from_start = count - 1 - group - lane;
      borders = from_start >= 0 ? border_vectors<W>(p, b, (chunk * chunks.spans + from_start) * kSpan) : 0;
    }
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int span = group + i;
      if (span >= count) {
        break;
      }
      wait_for_groups<kDepth - 1>();
      auto inputs = slots[i].window().widen();
      Values<acc_t, kVec> grad;
      const auto grad_vector = slots[i].grad[threadIdx.x];
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        grad[j] = grad_vector.widen(j);
      }
      settle(inputs);
      settle(grad);
      if (span + kDepth < count) {
        slots[i].fetch(
            x - (i + kDepth) * kSpan, grad_out - (i + kDepth) * kSpan, span + kDepth == row_start ? lane : kBehind);
      }
      end_group();
      Values<acc_t, kVec> z;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        z[j] = bias;
#pragma unroll
        for (int k = 0; k < W; ++k) {
          z[j] = multiply_add(weight[k], inputs[j + k], z[j]);
        }
      }
      if (p.silu) {
        grad = Silu<scalar_t>::times_slopes(grad, z);
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
      if (!kBorders || !(__shfl_sync(kEveryLane, borders, span % kLanes) >> lane & 1)) {
        Values<acc_t, kVec> dx{};
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
#pragma unroll
          for (int k = 0; k < W; ++k) {
            sums[k] = multiply_add(dz[j], inputs[j + k], sums[k]);
            dx[j] = multiply_add(weight[k], dz[j + W - 1 - k], dx[j]);
          }
          sums[W] += dz[j];
        }
        if (span >= stores) {
          store_vector(grad_in - i * kSpan, narrow<scalar_t>(dx));
        }
      }
    }
    if (kBorders && (group + kDepth >= count || (group + kDepth) % kLanes == 0)) {
      backward_borders<W>(
          p,
          chunks,
          x,
          grad_out,
          grad_in,
          count - 1 - group,
          count - 1 - group / kLanes * kLanes,
          borders,
          weight,
          bias,
          sums);
    }
    x -= kDepth * kSpan;
    grad_out -= kDepth * kSpan;
    grad_in -= kDepth * kSpan;
    settle(x);
    settle(grad_out);
    settle(grad_in);
  }

  chunks.find(b, d, chunk);
  write_row_partials(p, b * chunks.per_row + chunk, d, sums);
}

} // namespace

} // namespace at::native
