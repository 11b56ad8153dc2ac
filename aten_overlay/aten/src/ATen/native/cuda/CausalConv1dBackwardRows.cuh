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

// The dz of W-1 positions from t on, one a lane.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> dz_behind(
    const BackwardParams<scalar_t>& p, int64_t b, int64_t d, int64_t t) {
  t += threadIdx.x % kLanes;
  return threadIdx.x % kLanes < p.width - 1 && t < p.time ? preactivation_grad(p, p.sequences.find(b, t), b, d, t) : 0;
}

// What a warp reads of the spans on their way to it.
template <typename scalar_t, int W>
struct SpanRing {
  using window_t = Window<scalar_t, W>;
  using vector_t = typename window_t::vector_t;
  static constexpr int kBefore = window_t::kBefore;
  static constexpr int kLoaded = window_t::kLoaded;
  vector_t own[kDepth][kThreads];
  vector_t grad[kDepth][kThreads];
  vector_t before[kBefore > 1 ? kBefore - 1 : 1][kBefore > 1 ? kDepth : 1][kBefore > 1 ? kThreads : 1]; // the nearest first
  Vector<scalar_t, kLoaded> last[kBefore > 0 ? kDepth : 1][kBefore > 0 ? kThreads : 1]; // of the furthest

  // Asks for a lane's vectors; of those before its own, for those up to `reach` back.
  __device__ void fetch(int slot, const scalar_t* x, const scalar_t* grad_out, int reach) {
    load_async(&own[slot][threadIdx.x], x);
    load_async(&grad[slot][threadIdx.x], grad_out);
#pragma unroll
    for (int q = 1; q < kBefore; ++q) {
      load_async(&before[q - 1][slot][threadIdx.x], x - q * window_t::kVec, reach >= q);
    }
    if constexpr (kBefore > 0) {
      load_async(
          &last[slot][threadIdx.x], x - (kBefore - 1) * window_t::kVec - kLoaded, reach >= kBefore);
    }
  }

  __device__ window_t window(int slot) const {
    window_t window;
    window.own = own[slot][threadIdx.x];
#pragma unroll
    for (int q = 1; q < kBefore; ++q) {
      window.before[q - 1] = before[q - 1][slot][threadIdx.x];
    }
    if constexpr (kBefore > 0) {
      const auto part = last[slot][threadIdx.x];
#pragma unroll
      for (int i = 0; i < part.kWords; ++i) {
        window.before[kBefore - 1].words[i + window.own.kWords - part.kWords] = part.words[i];
      }
    }
    return window;
  }

  __device__ void clear(int slot) {
    own[slot][threadIdx.x] = {};
    grad[slot][threadIdx.x] = {};
#pragma unroll
    for (int q = 1; q < kBefore; ++q) {
      before[q - 1][slot][threadIdx.x] = {};
    }
    if constexpr (kBefore > 0) {
      last[slot][threadIdx.x] = {};
    }
  }
};

// Of rows with borders, the vectors that see states, or not all of their taps: a bit for each vector of the span that
// begins `offset` positions from the row's start.
template <int W, typename scalar_t>
__device__ unsigned border_vectors(const BackwardParams<scalar_t>& p, int64_t b, int64_t offset) {
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kBehind = Window<scalar_t, W>::kBefore; // vectors behind a vector that its inputs reach
  constexpr unsigned kReached = (1u << kBehind) - 1;
  unsigned which = 0;
  if (p.masks.data) {
    const auto own = p.masks.template straight_lanes<kVec>(b, offset);
    const auto behind = p.masks.template straight_lanes<kVec>(b, offset + Row<scalar_t>::kSpan);
    which = ~own;
#pragma unroll
    for (int q = 1; q <= kBehind; ++q) {
      which |= ~__funnelshift_r(own, behind, q);
    }
  }
  if (p.initial_state.data && offset == 0) {
    which |= kReached;
  }
  const auto left = (p.time - offset) / kVec; // vectors of the row
  if (p.grad_final_state.data && left > 0 && left < kLanes + kBehind) {
    const int first = static_cast<int>(left) - kBehind;
    which |= first >= 0 ? kReached << first : kReached >> -first;
  }
  return which;
}

// Computes those vectors of up to kLanes spans, a position a lane; `which` is that of the span with the lane's number,
// the first of which begins at `begin`.
template <int W, typename scalar_t, typename acc_t>
__device__ void backward_borders(
    const BackwardParams<scalar_t>& p,
    int64_t b,
    int64_t d,
    int64_t begin,
    unsigned which,
    const Values<acc_t, W>& weight,
    acc_t bias,
    Values<acc_t, W + 1>& sums) {
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kVectors = (kLanes - 2 * (W - 1)) / kVec; // at once, with W-1 positions on either side
  const int lane = threadIdx.x % kLanes, place = lane - (W - 1);
  const auto first = begin + place;
  const auto* x = p.input.at(b, d, first);
  const auto* grad_out = p.grad_output.at(b, d, first);
  auto* grad_in = p.grad_input.at(b, d, first);
  const auto* masks = p.masks.data + b * p.masks.pitch + first;
  const int low = max(-first, int64_t(0)), high = min(p.time - first, int64_t(kLanes + 1) * Row<scalar_t>::kSpan);
  auto spans = __ballot_sync(kEveryLane, which != 0);
#pragma unroll 1
  for (; spans != 0; spans &= spans - 1) {
    const int span = __ffs(spans) - 1;
    auto vectors = __shfl_sync(kEveryLane, which, span);
#pragma unroll 1
    while (vectors != 0) {
      const int vector = __ffs(vectors) - 1;
      const int t = span * Row<scalar_t>::kSpan + vector * kVec; // from `first` on
      const bool inside = t >= low && t < high;
      acc_t input = 0, dz = 0;
      unsigned mask = 0;
      if (inside) {
        input = static_cast<acc_t>(load_element(x + t));
        dz = static_cast<acc_t>(load_element(grad_out + t));
        mask = p.masks.data ? masks[t] : (1u << W) - 1;
      } else if (t < low && p.initial_state.data) {
        input = static_cast<acc_t>(load_element(p.initial_state.at(b, d, lane)));
      }
      Values<acc_t, W> taps;
      auto z = bias;
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const auto tap = k == W - 1 ? input : __shfl_sync(kEveryLane, input, (place + k) & (kLanes - 1));
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
      if (inside && place >= 0 && place < kVectors * kVec && vectors >> vector >> place / kVec & 1) {
#pragma unroll
        for (int k = 0; k < W; ++k) {
          sums[k] = multiply_add(dz, taps[k], sums[k]);
        }
        sums[W] += dz;
        const auto final_place = first + t - (p.time - (W - 1));
        if (p.grad_final_state.data && final_place >= 0) {
          dx += static_cast<acc_t>(load_element(p.grad_final_state.at(b, d, final_place)));
        }
        if (p.grad_input.data) {
          store_element(grad_in + t, static_cast<scalar_t>(dx));
        }
      } else if (t < low && p.grad_initial_state.data) {
        write_initial_state_grad(p, {b, 0, p.time}, b, d, lane, dx);
      }
      vectors &= ~(((1u << kVectors) - 1) << vector);
    }
  }
}

// Rows that consist of aligned vectors. A warp goes through its chunk from the end on, with the next spans on their
// way. kBorders: rows are divided or have states, not both.
template <typename scalar_t, int W, bool kBorders>
__global__ void __launch_bounds__(kThreads, !kBorders && W <= 4 ? kRowBlocks : kRowBlocks - 1)
backward_rows(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ RowChunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using ring_t = SpanRing<scalar_t, W>;
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kSpan = Row<scalar_t>::kSpan;
  constexpr int kBehind = ring_t::kBefore; // vectors behind a vector that its inputs reach
  __shared__ ring_t ring;
  let_next_begin();
  int64_t b, d, chunk;
  if (!chunks.find(b, d, chunk)) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  const auto begin = chunk * chunks.spans * kSpan, first = begin + lane * kVec;
  const int count = min(int64_t(chunks.spans), ceil_div(p.time - begin, kSpan)); // spans
  // The spans are numbered from the chunk's beginning, and taken kDepth at a time, so that offsets are constants: those
  // from `group` on, to which the pointers point.
  int group = (count - 1) / kDepth * kDepth;
  const auto* x = p.input.at(b, d, first) + group * kSpan;
  const auto* grad_out = p.grad_output.at(b, d, first) + group * kSpan;
  auto* grad_in = p.grad_input.at(b, d, first) + group * kSpan;
  settle(x);
  settle(grad_out);
  settle(grad_in);

  // The spans that are stored, and that before which there are no inputs, if there is one.
  const bool inside = first + (count - 1) * kSpan < p.time;
  int stores = p.grad_input.data ? (inside ? count : count - 1) : 0;
  int row_start = chunk == 0 ? 0 : -1;
  settle(stores);
  settle(row_start);

  // A lane whose last vector is behind the row's end computes with zeros there.
  if (!inside) {
    ring.clear((count - 1) % kDepth);
  }
  const auto fetch = [&](int slot, int offset, int group) {
    ring.fetch(slot, x + offset, grad_out + offset, slot == 0 && group == row_start ? lane : kBehind);
  };
#pragma unroll
  for (int i = kDepth - 1; i >= 0; --i) {
    if (group + i < count) {
      if (group + i < count - 1 || inside) {
        fetch(i, i * kSpan, group);
      }
      end_group();
    }
  }
#pragma unroll
  for (int i = kDepth - 1; i >= 0; --i) {
    if (group + i >= count) {
      if (group > 0) {
        fetch(i, (i - kDepth) * kSpan, group - kDepth);
      }
      end_group();
    }
  }
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
  if (kBorders && p.masks.data) {
    wait_for_previous(); // which found the masks
  }
  unsigned borders = 0; // of the span with the lane's number, modulo their number
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
  for (; group >= 0; group -= kDepth) {
    if (kBorders && (group + kDepth >= count || (group + kDepth) % kLanes == 0)) {
      const int span = group / kLanes * kLanes + lane;
      borders = span < count ? border_vectors<W>(p, b, begin + span * kSpan) : 0;
    }
#pragma unroll
    for (int i = kDepth - 1; i >= 0; --i) {
      const int span = group + i;
      if (span >= count) {
        continue;
      }
      wait_for_groups<kDepth - 1>();
      auto inputs = ring.window(i).widen();
      Values<acc_t, kVec> grad;
      const auto grad_vector = ring.grad[i][threadIdx.x];
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        grad[j] = grad_vector.widen(j);
      }
      settle(inputs);
      settle(grad);
      if (group > 0) {
        fetch(i, (i - kDepth) * kSpan, group - kDepth);
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
        if (span < stores) {
          store_vector(grad_in + i * kSpan, narrow<scalar_t>(dx));
        }
      }
    }
    if (kBorders && group % kLanes == 0) {
      backward_borders<W>(p, b, d, begin + group * kSpan, borders, weight, bias, sums);
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
