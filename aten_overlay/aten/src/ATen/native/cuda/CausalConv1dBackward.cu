// causal_conv1d's backward pass on CUDA: all gradients in one pass over input and grad_output, and a small sum.
//
// With dz the gradient of the sums before SiLU, which are computed again, grad_input[s] = sum_k weight[k] *
// dz[s + W-1 - k] and grad_weight[k] = sum_t dz[t] * tap k. The plans are those of the forward pass. Rows: a warp goes
// from the end of its share to the beginning, so that the dz behind a vector are those that a neighbour has just
// computed. Columns: a thread computes the dz of W-1 positions behind its stretch itself.
// Weight and bias gradients leave each share as one partial sum; a second kernel adds those up in a fixed order, so
// that they are the same on every run.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/CausalConv1dColumns.cuh>
#include <ATen/native/cuda/CausalConv1dRows.cuh>

#include <ATen/Dispatch.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/zeros.h>
#endif

namespace at::native {

namespace {

// Rows: the most spans of a warp: 4096 positions.
template <typename scalar_t>
constexpr int kSpans = 8 * sizeof(scalar_t);
// Columns: positions on their way; warps of a block, one behind the other in time; positions of a warp, the more the
// fewer partial sums, but fewer where there would be too few blocks.
constexpr int kSlots = 8;
constexpr int kWarps = 4;
constexpr int64_t kLongStretch = 128, kShortStretch = 32;
constexpr int64_t kManyBlocks = 1200;

template <typename scalar_t>
struct BackwardParams {
  using acc_t = at::opmath_type<scalar_t>;
  View<const scalar_t> input;
  View<const scalar_t> initial_state;
  View<const scalar_t> grad_output;
  View<const scalar_t> grad_final_state;
  View<scalar_t> grad_input;
  View<scalar_t> grad_initial_state;
  Parameters<scalar_t> parameters;
  Sequences sequences;
  TapMasks masks;
  int64_t channels;
  int64_t time;
  int64_t width;
  bool silu;
  acc_t* partials; // [units, W+1, partial_channels]: sums for the taps, then the bias; or null
  int64_t partial_channels;
  int64_t blocks; // after these come blocks that compute grad_initial_state, where the others do not

  __device__ acc_t* partial(int64_t unit, int64_t k, int64_t d) const {
    return partials + (unit * (width + 1) + k) * partial_channels + d;
  }
};

// dz at one position.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> preactivation_grad(
    const BackwardParams<scalar_t>& p, const Segment& segment, int64_t b, int64_t d, int64_t t) {
  using acc_t = at::opmath_type<scalar_t>;
  if (!p.sequences.counts(b, t, t)) {
    return 0;
  }
  const auto grad = static_cast<acc_t>(load_element(p.grad_output.at(b, d, t)));
  if (!p.silu) {
    return grad;
  }
  const Source<scalar_t> source{p.input, p.initial_state};
  return grad * Silu<scalar_t>::slope(source.preactivation(p.sequences, segment, p.parameters, b, d, p.width, t));
}

// What the first outputs of a segment pass on to place j of its initial state.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> first_inputs_grad(
    const BackwardParams<scalar_t>& p, const Segment& segment, int64_t b, int64_t d, int64_t j) {
  const auto places = p.width - 1;
  at::opmath_type<scalar_t> sum = 0;
  for (int64_t k = 0; k <= j; ++k) {
    const auto t = segment.start + j - k;
    if (t < segment.end && p.sequences.counts(b, t, segment.start + j - places)) {
      sum = multiply_add(p.parameters.tap(d, k), preactivation_grad(p, segment, b, d, t), sum);
    }
  }
  return sum;
}

// Writes that, with what a sequence shorter than W-1 leaves of the place in its final state.
template <typename scalar_t>
__device__ void write_initial_state_grad(
    const BackwardParams<scalar_t>& p,
    const Segment& segment,
    int64_t b,
    int64_t d,
    int64_t j,
    at::opmath_type<scalar_t> value) {
  const auto places = p.width - 1;
  if (p.grad_final_state.data && !(p.sequences.seq_idx.data == nullptr && segment.end - segment.start >= places)) {
    for (int64_t k = 0; k < places; ++k) {
      int64_t position;
      if (p.sequences.final_source(b, segment, p.width, k, position) && position == j - places) {
        value += static_cast<at::opmath_type<scalar_t>>(load_element(p.grad_final_state.at(segment.state, d, k)));
      }
    }
  }
  *p.grad_initial_state.at(segment.state, d, j) = static_cast<scalar_t>(value);
}

// The gradient of the initial state, a place a thread.
template <typename scalar_t>
__device__ __noinline__ void write_initial_state_grads(const BackwardParams<scalar_t>& p) {
  const auto places = p.width - 1;
  const auto i = (static_cast<int64_t>(blockIdx.x) - p.blocks) * blockDim.x + threadIdx.x;
  const auto n = i / (p.channels * places);
  if (n >= p.sequences.count) {
    return;
  }
  const auto d = i / places % p.channels;
  const auto j = i % places;
  const auto b = p.sequences.cu_seqlens.data ? 0 : n;
  const auto segment = p.sequences.segment(n);
  write_initial_state_grad(p, segment, b, d, j, first_inputs_grad(p, segment, b, d, j));
}

// What the final state passes on to the input at s.
template <typename scalar_t>
__device__ at::opmath_type<scalar_t> final_state_grad(
    const BackwardParams<scalar_t>& p, int64_t b, int64_t d, int64_t s) {
  int64_t state, j;
  return p.sequences.final_place(b, s, p.width, state, j)
      ? static_cast<at::opmath_type<scalar_t>>(load_element(p.grad_final_state.at(state, d, j)))
      : 0;
}

// ---- Rows ----------------------------------------------------------------------------------

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

// kPlain: rows are not divided, and consist of aligned vectors.
template <typename scalar_t, int W, bool kPlain>
__global__ void __launch_bounds__(kThreads, kPlain ? 6 : 4)
backward_rows(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ RowChunks chunks) {
  using acc_t = at::opmath_type<scalar_t>;
  using row_t = Row<scalar_t>;
  using window_t = Window<scalar_t, W>;
  using vector_t = typename row_t::vector_t;
  constexpr int kVec = row_t::kVec;
  constexpr int kSpan = row_t::kSpan;
  constexpr int kBehind = window_t::kBefore; // vectors behind a vector that its inputs reach
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  int64_t b, d, chunk;
  if (!chunks.find(b, d, chunk)) {
    return;
  }
  const int lane = threadIdx.x % kLanes;
  const bool packed = !kPlain && p.masks.data, segments = !kPlain && p.sequences.cu_seqlens.data;
  const bool store = p.grad_input.data;

  // Vectors are aligned in grad_input; beside masks, in the row.
  const auto* data = p.input.at(b, d, 0);
  const auto* grad_data = p.grad_output.at(b, d, 0);
  auto* grad_in = store ? p.grad_input.at(b, d, 0) : nullptr;
  const int phase = kPlain || packed ? 0 : reinterpret_cast<uintptr_t>(grad_in) / sizeof(scalar_t) % kVec;
  row_t x(data, p.time, phase);
  const row_t grad_out(grad_data, p.time, phase);
  if (p.initial_state.data && !segments) {
    x.set_state(p.initial_state.at(b, d, 0), p.initial_state.time, W);
  }
  const auto begin = chunk * chunks.spans * kSpan - phase;
  const int count = max(int64_t(0), min(int64_t(chunks.spans), ceil_div(p.time - begin, kSpan)));
  const auto end = begin + count * kSpan;
  int low = 0, high = count;
  if constexpr (!kPlain) {
    int grad_high;
    grad_out.straight_spans(begin, count, low, grad_high);
    x.straight_spans(begin, count, low, high);
    high = reinterpret_cast<uintptr_t>(grad_in - phase) % 16 == 0 ? min(high, grad_high) : 0;
    if (packed && p.grad_final_state.data) {
      high = min(int64_t(high), (p.time - (W - 1) - begin) / kSpan);
    }
  }

  Values<acc_t, W> weight;
  acc_t bias;
  if constexpr (!kPlain) {
    p.parameters.load(d, weight, bias);
  }
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
  // What the final state passes on to the vector at t, where rows are not divided.
  const auto add_final_state_grad = [&](int64_t t, Values<acc_t, kVec>& dx) {
    const auto first = p.time - (W - 1) - t; // the element that place 0 holds
    if (first < kVec) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        if (j >= first && t + j >= 0 && t + j < p.time) {
          dx[j] += static_cast<acc_t>(load_element(p.grad_final_state.at(b, d, j - first)));
        }
      }
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
    const int left = min(p.time - lane_begin, int64_t(kSpans<scalar_t> * kSpan)); // positions from the lane's first on
    // From these spans on, some lanes are behind the row's end; what is left passes something on to the input.
    const int cut = min((p.time - begin) / kSpan, int64_t(kSpans<scalar_t>));
    const int ending = !packed && p.grad_final_state.data
        ? min((p.time - (W - 1) - begin) / kSpan, int64_t(kSpans<scalar_t>))
        : kSpans<scalar_t>;
    window_t window;
    vector_t grad_vector;
    // What lies outside reads the first span or the last vector again, whose values are not used.
    const auto fetch = [&](int span) {
      const int offset = min(max(span, low) * kSpan, left - kVec);
      window.load(x_from, offset, floor);
      grad_vector = load_vector<scalar_t, kVec>(grad_from + offset);
    };
    fetch(span);
    if constexpr (kPlain) {
      p.parameters.load(d, weight, bias);
    }
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
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        dz[j] = grad[j];
      }
      if (p.silu) {
        Values<acc_t, kVec> z;
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          z[j] = bias;
#pragma unroll
          for (int k = 0; k < W; ++k) {
            z[j] = multiply_add(weight[k], inputs[j + k], z[j]);
          }
        }
        const auto slopes = Silu<scalar_t>::slopes(z);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          dz[j] *= slopes[j];
        }
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
      Values<acc_t, kVec> dx;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        dx[j] = 0;
#pragma unroll
        for (int k = 0; k < W; ++k) {
          sums[k] = multiply_add(dz[j], inputs[j + k], sums[k]);
          dx[j] = multiply_add(weight[k], dz[j + W - 1 - k], dx[j]);
        }
        sums[W] += dz[j];
      }
      if (span >= ending) {
        add_final_state_grad(lane_begin + span * kSpan, dx);
      }
      if (store && inside) {
        store_vector(to + span * kSpan, narrow<scalar_t>(dx));
      }
    }
  };
  if constexpr (kPlain) {
    go_straight();
  }
#pragma unroll 1
  while (!kPlain) {
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
    const auto z = masked_sums<scalar_t, W>(p, b, d, t, masks[0], weight, bias, inputs);
    Values<acc_t, kVec + W - 1> dz;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const bool own = t + j >= 0 && t + j < p.time && counts(j, W - 1);
      const auto grad = static_cast<acc_t>(grad_vector.widen(j));
      dz[j] = !own ? acc_t(0) : p.silu ? grad * Silu<scalar_t>::slope(z[j]) : grad;
    }
    if (segments && p.initial_state.data) {
      add_state_sums<scalar_t, W>(p, b, d, t, dz, sums);
    }
    exchange(dz);
    Values<acc_t, kVec> dx;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      dx[j] = 0;
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const int after = j + W - 1 - k;
        sums[k] = multiply_add(dz[j], counts(j, k) ? inputs[j + k] : acc_t(0), sums[k]);
        dx[j] = multiply_add(weight[k], counts(after, k) ? dz[after] : acc_t(0), dx[j]);
      }
      sums[W] += dz[j];
    }
    if (p.grad_final_state.data && packed) {
#pragma unroll 1
      for (int j = 0; j < kVec && t + j < p.time; ++j) {
        set_element(dx, j, get_element(dx, j) + final_state_grad(p, b, d, t + j));
      }
    } else if (p.grad_final_state.data) {
      add_final_state_grad(t, dx);
    }
    if (store) {
      store_masked(grad_in, p.time, t, narrow<scalar_t>(dx));
    }
    --span;
  }

  if (p.partials) {
    acc_t sum = 0;
#pragma unroll
    for (int k = 0; k <= W; ++k) {
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        sums[k] += __shfl_xor_sync(kEveryLane, sums[k], offset);
      }
      sum = lane == k ? sums[k] : sum;
    }
    if (lane <= W) {
      *p.partial(b * chunks.per_row + chunk, lane, d) = sum;
    }
  }
  // The places of the initial state are the positions before the first: what `carry` reaches.
  if (!segments && p.grad_initial_state.data && chunk == 0) {
    acc_t value = 0;
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      acc_t sum = 0;
#pragma unroll
      for (int k = 0; k <= j; ++k) {
        const auto first_dz = __shfl_sync(kEveryLane, carry[j - k], kLanes - 1);
        const bool own = j - k < p.time && (!packed || p.masks.load(b, j - k) >> k & 1);
        sum = multiply_add(weight[k], own ? first_dz : acc_t(0), sum);
      }
      value = lane == j ? sum : value;
    }
    if (lane < W - 1) {
      if (phase != 0) {
        value = first_inputs_grad(p, {b, 0, p.time}, b, d, lane);
      }
      write_initial_state_grad(p, {b, 0, p.time}, b, d, lane, value);
    }
  }
}

// ---- Columns -------------------------------------------------------------------------------

template <typename acc_t, int kSize, int W>
__device__ void add_sums(
    Taps<acc_t, kSize, W + 1>& sums, const Values<acc_t, kSize>& dz, const Taps<acc_t, kSize, W>& taps) {
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      sums[k][c] = multiply_add(dz[c], taps[k][c], sums[k][c]);
    }
    sums[W][c] += dz[c];
  }
}

// Moves dz[k], of the output k positions ago, on to the next output.
template <typename scalar_t, typename acc_t, int kSize, int W, typename ColumnParameters>
__device__ void push_dz(
    Taps<acc_t, kSize, W>& dz,
    const ColumnParameters& parameters,
    const Taps<acc_t, kSize, W>& taps,
    const Vector<scalar_t, kSize>& grad,
    bool silu) {
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
#pragma unroll
    for (int k = W - 1; k > 0; --k) {
      dz[k][c] = dz[k - 1][c];
    }
    dz[0][c] = grad.widen(c);
  }
  settle(dz[0]);
  if (silu) {
    const auto slopes = Silu<scalar_t>::slopes(sum_taps(parameters, taps));
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      dz[0][c] *= slopes[c];
    }
  }
}

// The gradient of the input W-1 positions ago, from the outputs that `counts` names.
template <typename acc_t, int kSize, int W, typename ColumnParameters, typename F>
__device__ Values<acc_t, kSize> sum_dz(
    const ColumnParameters& parameters, const Taps<acc_t, kSize, W>& dz, const F& counts) {
  Values<acc_t, kSize> dx;
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    dx[c] = 0;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      dx[c] = multiply_add(parameters.tap(c, k), counts(k) ? dz[k][c] : acc_t(0), dx[c]);
    }
  }
  return dx;
}

// Writes the sums of a block's warps, added up in order.
template <int W, typename Params, typename acc_t, int kSize>
__device__ void write_partials(const Params& p, int64_t unit, int64_t d, const Taps<acc_t, kSize, W + 1>& sums) {
  __shared__ acc_t shared[kWarps - 1][W + 1][kSize][kLanes];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
#pragma unroll
  for (int k = 0; k <= W; ++k) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      if (warp > 0) {
        shared[warp - 1][k][c][lane] = sums[k][c];
      }
    }
  }
  __syncthreads();
  if (warp > 0) {
    return;
  }
#pragma unroll
  for (int k = 0; k <= W; ++k) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      auto sum = sums[k][c];
#pragma unroll
      for (int other = 0; other < kWarps - 1; ++other) {
        sum += shared[other][k][c][lane];
      }
      if (d + c < p.channels) {
        *p.partial(unit, k, d + c) = sum;
      }
    }
  }
}

template <typename scalar_t, int W, bool kAligned>
__global__ void __launch_bounds__(kWarps* kLanes, 4)
backward_columns(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ Stretches stretches) {
  using acc_t = at::opmath_type<scalar_t>;
  constexpr int kSize = kChannels<scalar_t>;
  using vector_t = Vector<scalar_t, kSize>;
  constexpr unsigned kEveryTap = (1u << W) - 1;
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  int64_t unit, b, stretch, group;
  stretches.find(blockIdx.x, unit, b, stretch, group);
  const auto d = (group * kLanes + lane) * kSize;
  const auto begin = stretch * stretches.steps + warp * (stretches.steps / kWarps);
  const int size = d < p.channels ? max(int64_t(0), min(p.time - begin, stretches.steps / kWarps)) : 0;
  Taps<acc_t, kSize, W + 1> sums{};
  if (size > 0) {
    const bool packed = p.masks.data, segments = p.sequences.cu_seqlens.data, store = p.grad_input.data;
    const int reach = min(p.time - begin, int64_t(size + W - 1)); // outputs that see inputs of the stretch
    Column<const scalar_t, kAligned> x(p.input, b, d, p.channels, begin);
    Column<const scalar_t, kAligned> grad_out(p.grad_output, b, d, p.channels, begin);
    Column<scalar_t, kAligned> grad_in(p.grad_input, b, d, p.channels, begin);
    const auto before = x.at(1 - W);

    __shared__ vector_t x_ring[kAligned ? kSlots : 1][kWarps * kLanes], grad_ring[kAligned ? kSlots : 1][kWarps * kLanes];
    // What position i reads, asked for kSlots - 1 positions before.
    const auto fetch = [&](int i, bool exists) {
      if constexpr (kAligned) {
        if (exists) {
          load_async(&x_ring[i % kSlots][threadIdx.x], x.data);
          load_async(&grad_ring[i % kSlots][threadIdx.x], grad_out.data);
          x.data += x.time;
          grad_out.data += grad_out.time;
        }
        end_group();
      }
    };
    const auto next = [&](int i, vector_t& x_vector, vector_t& grad_vector) {
      if constexpr (kAligned) {
        wait_for_groups<kSlots - 2>();
        x_vector = x_ring[i % kSlots][threadIdx.x];
        grad_vector = grad_ring[i % kSlots][threadIdx.x];
      } else {
        x_vector = x.load_next();
        grad_vector = grad_out.load_next();
      }
    };
#pragma unroll
    for (int i = 0; i < kSlots - 1; ++i) {
      fetch(i, i < reach);
    }
    auto taps = preceding_taps<W>(before, begin);
    const ColumnParameters<scalar_t, W, kAligned> parameters(p.parameters, d, p.channels);
    if (segments || (begin == 0 && p.initial_state.data)) {
      see_state(p, b, d, begin, taps);
    }
    Taps<acc_t, kSize, W> dz{}; // of the outputs k positions ago
    // Their masks, a byte each.
    uint64_t masks = ~uint64_t(0);
    const auto counts = [&](int k) { return masks >> 8 * k + k & 1; };
    const auto straight = [&] { return (~masks & 0x0101010101010101ull * kEveryTap & (1ull << 8 * (W - 1)) - 1) == 0; };
    // The first position that the final state holds.
    const int ending = p.grad_final_state.data ? min(p.time - (W - 1) - begin, int64_t(size)) : size;
    const int last_start = kAligned ? min(size, ending + W - 1) - kSlots : -1;

    int i = 0; // position in the stretch
#pragma unroll 1
    while (i < size + W - 1) {
      // The straight way: kSlots positions, of which every tap counts, as of the outputs before.
      if (i <= last_start && i % kSlots == 0 &&
          (!packed || (straight() && every_tap<W>(p.masks.template load<kSlots>(b, begin + i))))) {
#pragma unroll
        for (int j = 0; j < kSlots; ++j) {
          vector_t x_vector, grad_vector;
          next(j, x_vector, grad_vector);
          fetch(j + kSlots - 1, i + j + kSlots - 1 < reach);
          push(taps, x_vector);
          push_dz<scalar_t>(dz, parameters, taps, grad_vector, p.silu);
          add_sums(sums, dz[0], taps);
          if (store && (j >= W - 1 || i > 0)) {
            grad_in.store_next(narrow<scalar_t>(sum_dz(parameters, dz, [](int) { return true; })));
          }
        }
        i += kSlots;
        continue;
      }
      // Any one position.
      const bool exists = i < reach;
      vector_t x_vector{}, grad_vector{};
      if (exists) {
        next(i, x_vector, grad_vector);
      }
      fetch(i + kSlots - 1, i + kSlots - 1 < reach);
      const unsigned mask = packed && exists ? p.masks.load(b, begin + i) : kEveryTap;
      masks = masks << 8 | mask;
      if (segments && exists && begins_segment<W>(mask)) {
        see_state(p, b, d, begin + i, taps);
      }
      push(taps, x_vector);
      const auto seen = segments ? taps : mask_taps(mask, taps);
      push_dz<scalar_t>(dz, parameters, seen, grad_vector, p.silu);
      if (!exists || mask == 0) {
        dz[0] = {};
      }
      if (i < size) {
        add_sums(sums, dz[0], seen);
      }
      const int s = i - (W - 1);
      if (s >= 0 && store) {
        auto dx = sum_dz(parameters, dz, counts);
        if (p.grad_final_state.data) {
#pragma unroll 1
          for (int c = 0; c < x.size; ++c) {
            set_element(dx, c, get_element(dx, c) + final_state_grad(p, b, d + c, begin + s));
          }
        }
        grad_in.store_next(narrow<scalar_t>(dx));
      }
      ++i;
    }
  }
  if (p.partials) {
    write_partials<W>(p, unit, d, sums);
  }
}

// ---- Output by output ----------------------------------------------------------------------

// Through a tensor of all dz [B, D, T], once for dz and once each for what is computed from it.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
preactivation_grads(const __grid_constant__ BackwardParams<scalar_t> p, at::opmath_type<scalar_t>* dz, int64_t outputs) {
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  const auto i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < outputs) {
    const auto t = i % p.time, d = i / p.time % p.channels, b = i / p.time / p.channels;
    dz[i] = preactivation_grad(p, p.sequences.find(b, t), b, d, t);
  }
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
input_grads(const __grid_constant__ BackwardParams<scalar_t> p, const at::opmath_type<scalar_t>* dz, int64_t inputs) {
  using acc_t = at::opmath_type<scalar_t>;
  const auto i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= inputs) {
    return;
  }
  const auto s = i % p.time, d = i / p.time % p.channels, b = i / p.time / p.channels;
  const auto segment = p.sequences.find(b, s);
  acc_t sum = 0;
  for (int64_t k = 0; k < p.width; ++k) {
    const auto after = p.width - 1 - k;
    if (s + after < segment.end && p.sequences.counts(b, s + after, s)) {
      sum = multiply_add(p.parameters.tap(d, k), dz[i + after], sum);
    }
  }
  if (p.grad_final_state.data) {
    sum += final_state_grad(p, b, d, s);
  }
  *p.grad_input.at(b, d, s) = static_cast<scalar_t>(sum);
}

// A block sums for one channel and tap (tap W: the bias) into a partial of its own.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
parameter_grads(const __grid_constant__ BackwardParams<scalar_t> p, const at::opmath_type<scalar_t>* dz, int64_t batch) {
  using acc_t = at::opmath_type<scalar_t>;
  __shared__ acc_t shared[kThreads];
  const auto d = blockIdx.x % p.channels;
  const auto k = blockIdx.x / p.channels;
  const Source<scalar_t> source{p.input, p.initial_state};
  acc_t sum = 0;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = threadIdx.x; t < p.time; t += kThreads) {
      const auto tap = k == p.width
          ? acc_t(1)
          : source.tap(p.sequences, p.sequences.find(b, t), b, d, p.width, t, t + k - (p.width - 1));
      sum = multiply_add(dz[(b * p.channels + d) * p.time + t], tap, sum);
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *p.partial(0, k, d) = shared[0];
  }
}

// ---- Sums of the partials ------------------------------------------------------------------

template <typename acc_t>
struct ParameterGrads {
  void* weight; // of the weight's dtype, or null
  void* bias;
  int64_t weight_channel;
  int64_t weight_tap;
  int64_t bias_channel;
};

constexpr int kRows = 8;

// One column of [units, (W+1) * D] a thread, in kRows interleaved parts.
template <typename acc_t, typename param_t>
__global__ void __launch_bounds__(kLanes* kRows)
sum_partials(const acc_t* partials, int64_t units, int64_t channels, int64_t width, ParameterGrads<acc_t> grads) {
  __shared__ acc_t shared[kRows][kLanes];
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes;
  const auto columns = (width + 1) * channels;
  const auto column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  acc_t sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t unit = row; unit < units; unit += kRows) {
      sum += load_element(partials + unit * columns + column);
    }
  }
  shared[row][lane] = sum;
  __syncthreads();
  if (row != 0 || column >= columns) {
    return;
  }
#pragma unroll
  for (int i = 1; i < kRows; ++i) {
    sum += shared[i][lane];
  }
  const auto d = column % channels, k = column / channels;
  if (k < width && grads.weight) {
    static_cast<param_t*>(grads.weight)[d * grads.weight_channel + k * grads.weight_tap] = static_cast<param_t>(sum);
  }
  if (k == width && grads.bias) {
    static_cast<param_t*>(grads.bias)[d * grads.bias_channel] = static_cast<param_t>(sum);
  }
}

// ---- Launch --------------------------------------------------------------------------------

template <typename scalar_t>
struct Backward {
  using acc_t = at::opmath_type<scalar_t>;
  const CausalConv1dArgs& args;
  const Tensor& grad_output;
  const Tensor& grad_final_state;
  const CausalConv1dGrads& grads;
  Tensor last; // of Sequences
  Tensor masks;

  int64_t batch() const {
    return args.input.size(0);
  }
  int64_t channels() const {
    return args.input.size(1);
  }
  int64_t time() const {
    return args.input.size(2);
  }
  int64_t width() const {
    return args.weight.size(1);
  }
  bool by_output() const {
    return std::is_same_v<scalar_t, double> || width() > kMaxWidth;
  }

  // [units, W+1, D], or undefined if no parameter wants a gradient.
  Tensor empty_partials(int64_t units) const {
    return grads.weight.defined() || grads.bias.defined()
        ? at::empty(
              {units, width() + 1, channels()}, args.input.options().dtype(c10::CppTypeToScalarType<acc_t>::value))
        : Tensor();
  }

  BackwardParams<scalar_t> params(const Tensor& partials, int64_t blocks) const {
    return {
        view<const scalar_t>(args.input),
        view<const scalar_t>(args.initial_state),
        view<const scalar_t>(grad_output),
        view<const scalar_t>(grad_final_state),
        view<scalar_t>(grads.input),
        view<scalar_t>(grads.initial_state),
        {args.weight, args.bias},
        Sequences(args, last),
        view_masks(masks),
        channels(),
        time(),
        width(),
        args.silu,
        partials.defined() ? partials.mutable_data_ptr<acc_t>() : nullptr,
        channels(),
        blocks};
  }

  // `apart`: grad_initial_state is left to blocks of its own.
  template <typename Kernel, typename... Extra>
  void launch(Kernel kernel, bool apart, const BackwardParams<scalar_t>& p, const Extra&... extra) const {
    const auto blocks = p.blocks + (apart && grads.initial_state.defined() ? ceil_div(grads.initial_state.numel(), kThreads) : 0);
    if (blocks > 0) {
      kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(p, extra...);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  }

  void reduce(const Tensor& partials) const {
    if (!partials.defined() || channels() == 0) {
      return;
    }
    const auto& weight = grads.weight;
    const auto& bias = grads.bias;
    const ParameterGrads<acc_t> to{
        weight.defined() ? weight.mutable_data_ptr() : nullptr,
        bias.defined() ? bias.mutable_data_ptr() : nullptr,
        weight.defined() ? weight.stride(0) : 0,
        weight.defined() ? weight.stride(1) : 0,
        bias.defined() ? bias.stride(0) : 0};
    const bool narrow = args.weight.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value;
    const auto kernel = narrow ? sum_partials<acc_t, scalar_t> : sum_partials<acc_t, acc_t>;
    const auto blocks = ceil_div((width() + 1) * channels(), kLanes);
    kernel<<<blocks, kLanes * kRows, 0, c10::cuda::getCurrentCUDAStream()>>>(
        partials.const_data_ptr<acc_t>(), partials.size(0), channels(), width(), to);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  template <int W>
  void run() const {
    const auto contiguous_along_time = [](const Tensor& tensor) { return contiguous_along(tensor, 2); };
    const auto tensors = {args.input, grad_output, grads.input};
    if (time() >= Row<scalar_t>::kVec && std::all_of(tensors.begin(), tensors.end(), contiguous_along_time)) {
      run_rows<W>();
    } else {
      run_columns<W>(std::all_of(tensors.begin(), tensors.end(), aligned_columns));
    }
  }

  template <int W>
  void run_rows() const {
    using row_t = Row<scalar_t>;
    const auto rows_aligned = [](const Tensor& tensor) { return !tensor.defined() || aligned_rows(tensor); };
    const bool aligned = masks.defined() || rows_aligned(grads.input);
    const bool plain = !masks.defined() && aligned && rows_aligned(args.input) && rows_aligned(grad_output) &&
        time() % row_t::kVec == 0;
    const RowChunks chunks(batch(), channels(), time(), row_t::kSpan, kSpans<scalar_t>, aligned, row_t::kVec);
    const auto partials = empty_partials(batch() * chunks.per_row);
    const auto kernel = plain ? backward_rows<scalar_t, W, true> : backward_rows<scalar_t, W, false>;
    launch(kernel, args.cu_seqlens.defined(), params(partials, ceil_div(chunks.warps * kLanes, kThreads)), chunks);
    reduce(partials);
  }

  template <int W>
  void run_columns(bool aligned) const {
    static_assert(kThreads == kWarps * kLanes);
    const auto groups = ceil_div(channels(), kLanes * kChannels<scalar_t>);
    auto steps = kLongStretch;
    while (steps > kShortStretch && batch() * groups * ceil_div(time(), kWarps * steps) < kManyBlocks) {
      steps /= 2;
    }
    const Stretches stretches(batch(), groups, time(), kWarps * steps);
    const auto partials = empty_partials(batch() * stretches.per_row);
    const auto kernel = aligned ? backward_columns<scalar_t, W, true> : backward_columns<scalar_t, W, false>;
    launch(kernel, true, params(partials, stretches.count), stretches);
    reduce(partials);
  }

  void run_by_output() const {
    const Tensor dz = at::empty(
        {batch(), channels(), time()}, args.input.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
    const auto partials = empty_partials(1);
    const auto p = params(partials, ceil_div(dz.numel(), kThreads));
    auto* data = dz.mutable_data_ptr<acc_t>();
    launch(preactivation_grads<scalar_t>, true, p, data, dz.numel());
    const auto stream = c10::cuda::getCurrentCUDAStream();
    if (grads.input.defined() && dz.numel() > 0) {
      input_grads<scalar_t><<<p.blocks, kThreads, 0, stream>>>(p, data, dz.numel());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    if (partials.defined() && channels() > 0) {
      parameter_grads<scalar_t><<<channels() * (p.width + 1), kThreads, 0, stream>>>(p, data, batch());
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      reduce(partials);
    }
  }
};

template <typename scalar_t>
void backward(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads) {
  // Without a gradient of the output, as where the final state alone is used, it is 0.
  const auto grad = grad_output.defined() ? grad_output : at::zeros({1}, args.input.options()).expand_as(args.input);
  const Backward<scalar_t> call{
      args, grad, grad_final_state, grads, last_positions(args, grad_final_state), tap_masks(args)};
  if constexpr (!std::is_same_v<scalar_t, double>) {
    if (!call.by_output()) {
      with_width(args.weight.size(1), [&](auto width) { call.template run<width>(); });
      return;
    }
  }
  call.run_by_output();
}

void causal_conv1d_backward_kernel(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, args.input.scalar_type(), "causal_conv1d_backward_cuda", [&] {
    backward<scalar_t>(args, grad_output, grad_final_state, grads);
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_backward_stub, &causal_conv1d_backward_kernel)

} // namespace at::native
