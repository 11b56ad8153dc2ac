// causal_conv1d's backward pass along rows of positions.
#pragma once

#include <ATen/native/cuda/CausalConv1dBackwardBorders.cuh>

namespace at::native {

namespace {

// Spans of a chunk of a long row; spans on their way; blocks of a multiprocessor.
constexpr int64_t kLongSpans = 16;
constexpr int kDepth = 4;
constexpr int kRowBlocks = 6;

// The gradients of neighbouring inputs, of which inputs[W-1] is the first, from the dz of the outputs there and behind
// them; and what the former outputs add to the sums for the parameters.
template <int W, typename acc_t, int kInputs, int kOutputs, typename F = EveryTap>
__device__ Values<acc_t, kOutputs - (W - 1)> sum_row_dz(
    const Values<acc_t, W>& weight,
    const Values<acc_t, kInputs>& inputs,
    const Values<acc_t, kOutputs>& dz,
    Values<acc_t, W + 1>& sums,
    const F& counts = {}) {
  Values<acc_t, kOutputs - (W - 1)> dx{};
#pragma unroll
  for (int j = 0; j < kOutputs - (W - 1); ++j) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const int after = j + W - 1 - k;
      sums[k] = multiply_add(dz[j], counts(j, k) ? inputs[j + k] : acc_t(0), sums[k]);
      dx[j] = multiply_add(weight[k], counts(after, k) ? dz[after] : acc_t(0), dx[j]);
    }
    sums[W] += dz[j];
  }
  return dx;
}

// The sums over a warp of several values: in how many lanes the same one ends up, and which one in a lane.
template <int kSums>
struct LaneSums {
  // Halves of the sums go to halves of the lanes, as long as there are several; so few need to be exchanged.
  static constexpr int kSize = kSums <= 2 ? 2 : kSums <= 4 ? 4 : kSums <= 8 ? 8 : 16;
  static constexpr int kStep = kLanes / kSize;

  template <typename acc_t>
  static __device__ acc_t sum(const Values<acc_t, kSums>& sums) {
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
    return parts[0];
  }

  // Where this lane writes its sum, or null.
  template <typename scalar_t>
  static __device__ at::opmath_type<scalar_t>* to(const BackwardParams<scalar_t>& p, int64_t unit, int64_t d) {
    const int lane = threadIdx.x % kLanes;
    return p.partials && lane % kStep == 0 && lane / kStep < kSums ? p.partial(unit, lane / kStep, d) : nullptr;
  }
};

// The dz of W-1 positions from t on, one a lane; their taps begin inside the row, and see no state.
template <int W, typename scalar_t, typename acc_t>
__device__ acc_t dz_behind(
    const BackwardParams<scalar_t>& p, int64_t b, int64_t d, int64_t t, const Values<acc_t, W>& weight, acc_t bias) {
  const int lane = threadIdx.x % kLanes;
  t += lane;
  if (lane >= W - 1 || t >= p.time) {
    return 0;
  }
  const auto* x = p.input.row(b, d) + (t - (W - 1));
  auto dz = static_cast<acc_t>(load_element(p.grad_output.row(b, d) + t));
  const unsigned mask = p.masks.data ? p.masks.load(b, t) : kEveryTap<W>;
  Values<acc_t, W> taps;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    taps[k] = static_cast<acc_t>(load_element(x + k));
  }
  const auto z = sum_inputs<W>(weight, bias, taps, [&](int, int k) { return mask >> k & 1; });
  if (p.silu) {
    dz = Silu<scalar_t>::times_slope(dz, z[0]);
  }
  return mask >> (W - 1) & 1 ? dz : acc_t(0);
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

// How a warp of backward_rows goes on: in steps of kDepth spans of its chunk; or, where it has `rows` short rows of two
// spans each, of neighbouring batches, in steps of a row.
struct RowSteps {
  static constexpr int kOfShort = kDepth / 2; // spans of a short row
  static constexpr int kMostRows = 4;
  int rows;
  int spans; // of a step
  int64_t input; // how far the next step is
  int64_t grad_output;
  int64_t grad_input;

  template <typename scalar_t>
  RowSteps(const BackwardParams<scalar_t>& p, int rows)
      : rows(rows),
        spans(rows > 1 ? kOfShort : kDepth),
        input(rows > 1 ? p.input.batch : -kDepth * Row<scalar_t>::kSpan),
        grad_output(rows > 1 ? p.grad_output.batch : -kDepth * Row<scalar_t>::kSpan),
        grad_input(rows > 1 ? p.grad_input.batch : -kDepth * Row<scalar_t>::kSpan) {}
};

// Rows that consist of aligned vectors. A warp goes through its chunk from the end on, with the next spans on their
// way. kBorders: rows may be divided or have states, not both; what is at a border is left to blocks of its own.
template <typename scalar_t, int W, bool kBorders>
__global__ void __launch_bounds__(kThreads, W <= 4 ? kRowBlocks : kRowBlocks - 1) backward_rows(
    const __grid_constant__ BackwardParams<scalar_t> p,
    const __grid_constant__ RowChunks chunks,
    const __grid_constant__ RowSteps steps,
    const __grid_constant__ RowBorders row_borders) {
  using acc_t = at::opmath_type<scalar_t>;
  using slot_t = SpanSlot<scalar_t, W>;
  using sums_t = LaneSums<W + 1>;
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kSpan = Row<scalar_t>::kSpan;
  constexpr int kBehind = slot_t::kBefore; // vectors behind a vector that its inputs reach
  constexpr int kOfShort = RowSteps::kOfShort;
  __shared__ slot_t slots[kDepth];
  __shared__ acc_t* to[kThreads]; // where a lane's sum goes, or null
  let_next_begin();
  unsigned block = blockIdx.x;
  if (kBorders && row_borders.own(block)) {
    backward_borders<W>(p, row_borders, block);
    return;
  }
  unsigned b, d, chunk;
  if (!chunks.find(block, b, d, chunk)) {
    return;
  }
  const auto unit = static_cast<int64_t>(b) * chunks.per_row + chunk;
  const bool together = steps.rows > 1;
  b *= steps.rows;
  const int lane = threadIdx.x % kLanes;
  const auto begin = static_cast<int64_t>(chunk) * (chunks.spans * kSpan);
  const int count = chunk + 1 == static_cast<unsigned>(chunks.per_row) ? chunks.last_spans : chunks.spans;
  // Spans are numbered from the last on.
  const auto first = begin + (count - 1) * kSpan + lane * kVec;
  const auto* x = p.input.row(b, d) + first;
  const auto* grad_out = p.grad_output.row(b, d) + first;
  auto* grad_in = p.grad_input.row(b, d) + first;
  settle(x);
  settle(grad_out);
  settle(grad_in);
  // From which span on there is something to load and to store, and that before which there are no inputs, if there is
  // one.
  const bool inside = first < p.time;
  int loads = inside ? 0 : 1;
  int stores = p.grad_input.data ? loads : count;
  int row_start = chunk == 0 ? count - 1 : -1;
  settle(loads);
  settle(stores);
  settle(row_start);

  const auto fetch = [&](slot_t& slot, int i) {
    slot.fetch(x - i * kSpan, grad_out - i * kSpan, i == row_start ? lane : kBehind);
  };
  // A lane whose last vector is behind the row's end computes with zeros there.
  if (!inside) {
    slots[0].clear();
    slots[kOfShort].clear();
  }
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    if (together && i >= kOfShort) {
      if (i == kOfShort) {
        x += steps.input;
        grad_out += steps.grad_output;
      }
      if (i - kOfShort >= loads) {
        fetch(slots[i], i - kOfShort);
      }
    } else if (i >= loads && i < count) {
      fetch(slots[i], i);
    }
    end_group();
  }
  to[threadIdx.x] = sums_t::to(p, unit, d);
  // A bit for each span from the step's first on: whether the lane's vector is at a border.
  unsigned at_border = 0;
  if constexpr (kBorders) {
    static_assert(kLongSpans <= kLanes && RowSteps::kMostRows * kOfShort <= kLanes);
    if (p.masks.data) {
      wait_for_previous(); // which found the masks
    }
    unsigned vectors = 0; // of the span whose number is the lane's
    const int span = together ? kOfShort - 1 - lane % kOfShort : count - 1 - lane;
    const int row = together ? lane / kOfShort : 0;
    if (span >= 0 && row < steps.rows) {
      vectors = border_vectors<W>(p, b + row, static_cast<int>(chunk) * chunks.spans + span);
    }
    for (auto spans = __ballot_sync(kEveryLane, vectors != 0); spans != 0; spans &= spans - 1) {
      const int number = __ffs(spans) - 1;
      at_border |= (__shfl_sync(kEveryLane, vectors, number) >> lane & 1) << number;
    }
  }
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
  Values<acc_t, W + 1> sums{};
  // For the last lanes: the dz behind the span.
  Values<acc_t, W - 1> carry{};
  if (begin + count * kSpan < p.time) {
    const auto value = dz_behind<W>(p, b, d, begin + count * kSpan, weight, bias);
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      carry[j] = __shfl_sync(kEveryLane, value, (j - (kLanes - 1 - lane) * kVec) & (kLanes - 1));
    }
  }

  // From here on, spans are numbered from the step's last on; `row_start` is in the step that is to be loaded next, as
  // are the pointers of what is read.
  int left = count; // spans
  int half = 0; // the first slot of the step
  const auto go_on = [&] {
    x += steps.input;
    grad_out += steps.grad_output;
    settle(x);
    settle(grad_out);
    if (!together) {
      row_start -= kDepth;
    }
  };
  go_on();
#pragma unroll 1
  for (int more = together ? steps.rows - 1 : (count - 1) / kDepth;; --more) {
    const int next = together ? (more > 1 ? kOfShort : 0) : left - kDepth; // spans to load
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (i >= left) {
        break;
      }
      auto& slot = slots[i < kOfShort ? half + i : i];
      wait_for_groups<kDepth - 1>();
      auto inputs = slot.window().widen();
      Values<acc_t, kVec> grad;
      const auto grad_vector = slot.grad[threadIdx.x];
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        grad[j] = grad_vector.widen(j);
      }
      settle(inputs);
      settle(grad);
      if (i < next && (i > 0 || !together || inside)) {
        fetch(slot, i);
      }
      end_group();
      const auto z = sum_inputs<W>(weight, bias, inputs);
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
        const auto after = __shfl_sync(kEveryLane, dz[j % kVec], (lane + lanes) & (kLanes - 1));
        dz[kVec + j] = lane + lanes >= kLanes ? carry[j] : after;
        carry[j] = after;
      }
      if (!kBorders || !(at_border >> i & 1)) {
        const auto dx = sum_row_dz<W>(weight, inputs, dz, sums);
        if (i >= stores) {
          store_vector(grad_in - i * kSpan, narrow<scalar_t>(dx));
        }
      }
    }
    if (more == 0) {
      break;
    }
    go_on();
    grad_in += steps.grad_input;
    settle(grad_in);
    at_border >>= steps.spans;
    if (together) {
      half = kOfShort - half;
      carry = {};
    } else {
      left -= kDepth;
      stores -= kDepth;
    }
  }
  const auto sum = sums_t::sum(sums);
  if (auto* partial = to[threadIdx.x]) {
    *partial = sum;
  }
}

} // namespace

} // namespace at::native
