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

// Rows: the most spans of a warp, and those on their way.
constexpr int kSpans = 16;
constexpr int kAhead = 2;
// Columns: positions on their way; warps of a block, one behind the other in time; positions of a warp, the more the
// fewer partial sums, but fewer where there would be too few blocks.
constexpr int kAlignedSteps = 8;
constexpr int kWarps = 4;
constexpr int64_t kLongStretch = 128, kShortStretch = 32;
constexpr int64_t kManyBlocks = 2400;

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

template <typename scalar_t, int W>
__global__ void __launch_bounds__(kThreads, 5)
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
  const bool packed = p.masks.data, segments = p.sequences.cu_seqlens.data, store = p.grad_input.data;

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
  // The straight way down from `span`: whole vectors, of which every tap counts, as of those that their inputs reach.
  const auto go_straight = [&] {
    const auto lane_begin = begin + lane * kVec;
    const auto* x_from = data + lane_begin;
    const auto* grad_from = grad_data + lane_begin;
    auto* to = grad_in + lane_begin;
    const int left = min(p.time - lane_begin, int64_t(kSpans * kSpan)); // positions from the lane's first on
    window_t windows[kAhead];
    vector_t grads[kAhead];
    const auto fetch = [&](int i, int span) {
      if (span >= low && span * kSpan < left) {
        windows[i].load(x_from + span * kSpan, chunk == 0 && span == 0 ? lane * kVec : kSpan);
        grads[i] = load_vector<scalar_t, kVec>(grad_from + span * kSpan);
      }
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      fetch(i, span - i);
    }
    while (true) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i, --span) {
        if (span < low) {
          return;
        }
        const bool inside = span * kSpan < left;
        if (packed) {
          const bool every = !inside || every_tap<W>(p.masks.template load<kVec>(b, lane_begin + span * kSpan));
          if (!__all_sync(kEveryLane, every) || !behind_straight) {
            return;
          }
        }
        auto inputs = windows[i].widen();
        Values<acc_t, kVec + W - 1> dz;
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          dz[j] = grads[i].widen(j);
        }
        fetch(i, span - kAhead);
        if (chunk == 0 && span == 0) {
          see_row_start<scalar_t, W>(x, lane, inputs);
        }
        if (p.silu) {
#pragma unroll
          for (int j = 0; j < kVec; ++j) {
            auto z = bias;
#pragma unroll
            for (int k = 0; k < W; ++k) {
              z = multiply_add(weight[k], inputs[j + k], z);
            }
            dz[j] *= Silu<scalar_t>::slope(z);
          }
        }
        if (begin + (span + 1) * kSpan > p.time) {
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
        if (p.grad_final_state.data && end > p.time - W && !packed) {
          add_final_state_grad(lane_begin + span * kSpan, dx);
        }
        if (store && inside) {
          store_vector(to + span * kSpan, narrow<scalar_t>(dx));
        }
      }
    }
  };
#pragma unroll 1
  while (true) {
    if (span < high) {
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

template <typename scalar_t, int W, bool kAligned>
__global__ void __launch_bounds__(kWarps* kLanes, 4)
backward_columns(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ Stretches stretches) {
  using acc_t = at::opmath_type<scalar_t>;
  using vector_t = Vector<scalar_t, kChannels>;
  constexpr int kSteps = kAligned ? kAlignedSteps : 1; // positions on their way
  constexpr unsigned kEveryTap = (1u << W) - 1;
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  int64_t unit, b, stretch, group;
  stretches.find(blockIdx.x, unit, b, stretch, group);
  const auto d = (group * kLanes + lane) * kChannels;
  const auto begin = stretch * stretches.steps + warp * (stretches.steps / kWarps);
  const int size = d < p.channels ? max(int64_t(0), min(p.time - begin, stretches.steps / kWarps)) : 0;
  Values<Values<acc_t, kChannels>, W + 1> sums;
#pragma unroll
  for (int k = 0; k <= W; ++k) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      sums[k][c] = 0;
    }
  }

  if (size > 0) {
    const Column<const scalar_t, kAligned> x(p.input, b, d, p.channels, begin);
    const Column<const scalar_t, kAligned> grad_out(p.grad_output, b, d, p.channels, begin);
    Column<scalar_t, kAligned> grad_in(p.grad_input, b, d, p.channels, begin);
    auto next_x = x;
    auto next_grad = grad_out;
    const bool packed = p.masks.data, segments = p.sequences.cu_seqlens.data, store = p.grad_input.data;
    // Before the first position comes the initial state.
    const bool store_state = !segments && p.grad_initial_state.data && begin == 0;
    const int reach = min(p.time - begin, int64_t(size + W - 1)); // outputs that see inputs of the stretch
    vector_t x_ahead[kSteps], grad_ahead[kSteps];
    const auto fetch = [&](int slot, int i) {
      if (i < reach) {
        x_ahead[slot] = next_x.load_next();
        grad_ahead[slot] = next_grad.load_next();
      }
    };
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      fetch(j, j);
    }
    auto taps = preceding_taps<acc_t, W>(x.at(1 - W), begin);
    const ColumnParameters<scalar_t, W, kAligned> parameters(p.parameters, d, p.channels);
    if (segments || (begin == 0 && p.initial_state.data)) {
      see_state(p, b, d, begin, taps);
    }
    Taps<acc_t, W> dz; // dz[k]: k positions ago
    unsigned masks[W]; // of the outputs k positions ago
#pragma unroll
    for (int k = 0; k < W; ++k) {
      masks[k] = kEveryTap;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        dz[k][c] = 0;
      }
    }
    // Moves on to an output, whose grad_output is given; `seen`: the taps that count.
    const auto push_dz = [&](const Taps<acc_t, W>& seen, const vector_t& grad) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
#pragma unroll
        for (int k = W - 1; k > 0; --k) {
          dz[k][c] = dz[k - 1][c];
        }
        dz[0][c] = grad.widen(c);
      }
      if (p.silu) {
        const auto z = sum_taps(parameters, seen);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          dz[0][c] *= Silu<scalar_t>::slope(z[c]);
        }
      }
    };
    const auto add_sums = [&](const Taps<acc_t, W>& seen) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
#pragma unroll
        for (int k = 0; k < W; ++k) {
          sums[k][c] = multiply_add(dz[0][c], seen[k][c], sums[k][c]);
        }
        sums[W][c] += dz[0][c];
      }
    };
    // The gradient of the input W-1 positions ago.
    const auto input_grad = [&](auto counts) {
      Values<acc_t, kChannels> dx;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        dx[c] = 0;
#pragma unroll
        for (int k = 0; k < W; ++k) {
          dx[c] = multiply_add(parameters.tap(c, k), counts(k) ? dz[k][c] : acc_t(0), dx[c]);
        }
      }
      return dx;
    };
    const auto every = [](int) { return true; };

    int i = 0; // position in the stretch
    bool straight = true; // whether the outputs of the last W-1 positions see all their taps
#pragma unroll 1
    while (i < size + W - 1) {
      // The straight way: several positions at once, of which every tap counts, as of the outputs before.
      if (i + kSteps <= size && straight && !(store_state && i < W - 1) &&
          (!packed || every_tap<W>(p.masks.template load<kSteps>(b, begin + i)))) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          push(taps, x_ahead[j]);
          push_dz(taps, grad_ahead[j]);
          fetch(j, i + j + kSteps);
          add_sums(taps);
          const auto dx = input_grad(every);
          if (store && (j >= W - 1 || i + j >= W - 1)) {
            grad_in.store_next(narrow<scalar_t>(dx));
          }
        }
        i += kSteps;
        continue;
      }
      // Behind the stretch, whose inputs the next W-1 outputs see.
      if (kSteps >= W - 1 && i == size && reach == size + W - 1 && !packed && !p.grad_final_state.data) {
#pragma unroll
        for (int j = 0; j < W - 1; ++j) {
          push(taps, x_ahead[j]);
          push_dz(taps, grad_ahead[j]);
          if (store && i + j >= W - 1) {
            grad_in.store_next(narrow<scalar_t>(input_grad(every)));
          }
        }
        break;
      }
      // The masked way: a position at a time, read again.
      const int stop = min(i + kSteps, size + W - 1);
      auto x_again = x.at(i);
      auto grad_again = grad_out.at(i);
#pragma unroll 1
      for (; i < stop; ++i) {
        const auto t = begin + i;
        const bool exists = i < reach;
#pragma unroll
        for (int k = W - 1; k > 0; --k) {
          masks[k] = masks[k - 1];
        }
        masks[0] = packed && exists ? p.masks.load(b, t) : kEveryTap;
        if (segments && exists && begins_segment<W>(masks[0])) {
          see_state(p, b, d, t, taps);
        }
        push(taps, exists ? x_again.load_next() : vector_t{});
        const auto seen = segments ? taps : mask_taps(masks[0], taps);
        push_dz(seen, exists ? grad_again.load_next() : vector_t{});
        if (!exists || masks[0] == 0) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) {
            dz[0][c] = 0;
          }
        }
        if (i < size) {
          add_sums(seen);
        }
        auto dx = input_grad([&](int k) { return masks[k] >> k & 1; });
        const int s = i - (W - 1);
        if (s < 0 && store_state) {
#pragma unroll 1
          for (int c = 0; c < x.size; ++c) {
            write_initial_state_grad(p, {b, 0, p.time}, b, d + c, i, get_element(dx, c));
          }
        }
        if (s >= 0 && store) {
          if (p.grad_final_state.data) {
#pragma unroll 1
            for (int c = 0; c < x.size; ++c) {
              set_element(dx, c, get_element(dx, c) + final_state_grad(p, b, d + c, begin + s));
            }
          }
          grad_in.store_next(narrow<scalar_t>(dx));
        }
      }
      straight = true;
#pragma unroll
      for (int k = 0; k < W - 1; ++k) {
        straight = straight && masks[k] == kEveryTap;
      }
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        fetch(j, i + j);
      }
    }
  }

  if (p.partials) {
    // The sums of the block's warps, in order.
    __shared__ acc_t shared[kWarps - 1][W + 1][kChannels][kLanes];
#pragma unroll
    for (int k = 0; k <= W; ++k) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (warp > 0) {
          shared[warp - 1][k][c][lane] = sums[k][c];
        }
      }
    }
    __syncthreads();
    if (warp == 0 && d < p.channels) {
#pragma unroll
      for (int k = 0; k <= W; ++k) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
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

  template <typename Kernel, typename... Extra>
  void launch(Kernel kernel, const BackwardParams<scalar_t>& p, const Extra&... extra) const {
    const bool apart = grads.initial_state.defined() && (args.cu_seqlens.defined() || by_output() || p.time == 0);
    const auto blocks = p.blocks + (apart ? ceil_div(grads.initial_state.numel(), kThreads) : 0);
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
    const bool aligned = masks.defined() || !grads.input.defined() || aligned_rows(grads.input);
    const RowChunks chunks(batch(), channels(), time(), row_t::kSpan, kSpans, aligned, row_t::kVec);
    const auto partials = empty_partials(batch() * chunks.per_row);
    launch(backward_rows<scalar_t, W>, params(partials, ceil_div(chunks.warps * kLanes, kThreads)), chunks);
    reduce(partials);
  }

  template <int W>
  void run_columns(bool aligned) const {
    static_assert(kThreads == kWarps * kLanes);
    const auto groups = ceil_div(channels(), kLanes * kChannels);
    auto steps = kLongStretch;
    while (steps > kShortStretch && batch() * groups * ceil_div(time(), kWarps * steps) < kManyBlocks) {
      steps /= 2;
    }
    const Stretches stretches(batch(), groups, time(), kWarps * steps);
    const auto partials = empty_partials(batch() * stretches.per_row);
    const auto kernel = aligned ? backward_columns<scalar_t, W, true> : backward_columns<scalar_t, W, false>;
    launch(kernel, params(partials, stretches.count), stretches);
    reduce(partials);
  }

  void run_by_output() const {
    const Tensor dz = at::empty(
        {batch(), channels(), time()}, args.input.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
    const auto partials = empty_partials(1);
    const auto p = params(partials, ceil_div(dz.numel(), kThreads));
    auto* data = dz.mutable_data_ptr<acc_t>();
    launch(preactivation_grads<scalar_t>, p, data, dz.numel());
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
