// causal_conv1d's backward pass along rows: the vectors at borders, where outputs do not see all their taps or see a
// state. They are few, and lie at the same positions in all channels.
#pragma once

#include <ATen/native/cuda/CausalConv1dBackwardParams.cuh>
#include <ATen/native/cuda/CausalConv1dRows.cuh>

namespace at::native {

namespace {

// Of rows with borders, the vectors that see states, or not all of their taps, or that such outputs see: a bit for each
// vector of the span.
template <int W, typename scalar_t>
__device__ unsigned border_vectors(const BackwardParams<scalar_t>& p, unsigned b, int span) {
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kBehind = Window<scalar_t, W>::kBefore; // vectors behind a vector that its inputs reach
  constexpr unsigned kReached = (1u << kBehind) - 1;
  unsigned which = 0;
  if (p.masks.data) {
    const auto own = p.masks.template straight_lanes<kVec>(b, span);
    const auto behind = p.masks.template straight_lanes<kVec>(b, span + 1);
    which = ~own;
#pragma unroll
    for (int q = 1; q <= kBehind; ++q) {
      which |= ~__funnelshift_r(own, behind, q);
    }
  }
  if (p.initial_state.data && span == 0) {
    which |= kReached;
  }
  const int left = static_cast<int>(p.time) - span * Row<scalar_t>::kSpan;
  if (p.grad_final_state.data && left > 0 && left < (kLanes + kBehind) * kVec) {
    const int first = left / kVec - kBehind;
    which |= first >= 0 ? kReached << first : kReached >> -first;
  }
  return which;
}

// Which blocks compute those vectors: each has a chunk of the rows of 32 channels, a channel a lane, and its warps take
// turns at the vectors. They are strewn among the other blocks, beside those that read the same rows, so that memory is
// read once.
struct RowBorders {
  static constexpr int kSpans = 16; // of a chunk
  int64_t per_row;
  int64_t blocks;
  int64_t first_unit; // of the partial sums
  Divisor row_divisor{1, 1}; // per_row
  Divisor group_divisor{1, 1}; // groups of channels
  Divisor block_divisor{1, 1}; // one block of these and its share of the others

  static int64_t blocks_of(int64_t batch, int64_t channels, int64_t time, int64_t span) {
    return batch * ceil_div(channels, kLanes) * ceil_div(time, span * kSpans);
  }

  // Among `others` blocks.
  RowBorders(bool any, int64_t batch, int64_t channels, int64_t time, int64_t span, int64_t others, int64_t first_unit)
      : per_row(any ? ceil_div(time, span * kSpans) : 0),
        blocks(any ? blocks_of(batch, channels, time, span) : 0),
        first_unit(first_unit) {
    if (blocks > 0) {
      row_divisor = Divisor(per_row, blocks);
      group_divisor = Divisor(ceil_div(channels, kLanes), blocks);
      block_divisor = Divisor(others / blocks + 1, others + blocks);
    }
  }

  // Whether this block is one of them, and its number among its kind. (There are fewer than 2^31 in all.)
  __device__ bool own(unsigned& block) const {
    unsigned number, rest;
    block_divisor.divide(blockIdx.x, number, rest);
    const auto count = static_cast<unsigned>(blocks);
    const bool own = rest == 0 && number < count;
    block = own ? number : blockIdx.x - min(number + 1, count);
    return own;
  }

  __device__ void find(unsigned block, unsigned& b, unsigned& group, unsigned& chunk) const {
    unsigned row;
    row_divisor.divide(block, row, chunk);
    group_divisor.divide(row, b, group);
  }
};

// The vector at t of a channel.
template <int W, typename scalar_t, typename acc_t>
__device__ void backward_border(
    const BackwardParams<scalar_t>& p,
    int64_t b,
    int64_t d,
    bool exists, // the channel
    int t,
    const Values<acc_t, W>& weight,
    acc_t bias,
    Values<acc_t, W + 1>& sums) {
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kBehind = Window<scalar_t, W>::kBefore;
  constexpr int kOutputs = kVec + W - 1; // those that see the vector
  constexpr auto kEvery = kEveryTap<W>;
  using vector_t = typename Row<scalar_t>::vector_t;
  const int lane = threadIdx.x % kLanes, time = static_cast<int>(p.time);
  const auto inside = [&](int q) { return t + q * kVec >= 0 && t + q * kVec < time; };
  const auto* x = p.input.row(b, d) + t;
  const auto* grad_out = p.grad_output.row(b, d) + t;
  vector_t x_vectors[2 * kBehind + 1], grad_vectors[kBehind + 1];
#pragma unroll
  for (int q = -kBehind; q <= kBehind; ++q) {
    x_vectors[q + kBehind] = {};
    if (inside(q)) {
      x_vectors[q + kBehind] = load_vector<scalar_t, kVec>(x + q * kVec);
    }
  }
#pragma unroll
  for (int q = 0; q <= kBehind; ++q) {
    grad_vectors[q] = {};
    if (inside(q)) {
      grad_vectors[q] = load_vector<scalar_t, kVec>(grad_out + q * kVec);
    }
  }
  // Of the output at t + lane; and a bit for each that sees all its taps, which are most.
  static_assert(kOutputs <= kLanes);
  unsigned masks = 0;
  if (t + lane < time) {
    masks = p.masks.data ? p.masks.load(b, t + lane) : kEvery;
  }
  const auto straight = __ballot_sync(kEveryLane, masks == kEvery);
  const auto mask = [&](int j) {
    keep_branch();
    return __shfl_sync(kEveryLane, masks, j);
  };
  Values<acc_t, kOutputs + W - 1> inputs;
#pragma unroll
  for (int i = 0; i < kOutputs + W - 1; ++i) {
    const int place = i - (W - 1) + kBehind * kVec;
    inputs[i] = x_vectors[place / kVec].widen(place % kVec);
  }
  if (p.initial_state.data && t < W - 1) {
#pragma unroll
    for (int i = 0; i < W - 1; ++i) {
      if (t + i < W - 1) {
        inputs[i] = static_cast<acc_t>(load_element(p.initial_state.at(b, d, t + i)));
      }
    }
  }
  const auto taps_of = [&](int j, unsigned mask) {
    Values<acc_t, W> taps;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      taps[k] = mask >> k & 1 ? inputs[j + k] : acc_t(0);
    }
    return taps;
  };
  Values<acc_t, kOutputs> dz, z;
#pragma unroll
  for (int j = 0; j < kOutputs; ++j) {
    dz[j] = grad_vectors[j / kVec].widen(j % kVec);
    z[j] = sum_inputs<W>(weight, bias, taps_of(j, kEvery))[0];
    if (!(straight >> j & 1)) {
      z[j] = sum_inputs<W>(weight, bias, taps_of(j, mask(j)))[0];
    }
  }
  if (p.silu) {
    dz = Silu<scalar_t>::times_slopes(dz, z);
  }
#pragma unroll
  for (int j = 0; j < kOutputs; ++j) {
    if (!(straight >> j & 1)) {
      dz[j] = mask(j) >> (W - 1) & 1 ? dz[j] : acc_t(0);
    }
  }
  Values<acc_t, kVec> dx{};
  const auto add_output = [&](int j, unsigned mask) {
    const auto taps = taps_of(j, mask);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      sums[k] = multiply_add(dz[j], taps[k], sums[k]);
    }
    sums[W] += dz[j];
  };
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    if ((straight >> j & kEvery) == kEvery) {
      add_output(j, kEvery);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        dx[j] = multiply_add(weight[k], dz[j + W - 1 - k], dx[j]);
      }
    } else {
      add_output(j, mask(j));
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const int after = j + W - 1 - k; // an output that sees the input
        dx[j] = multiply_add(weight[k], mask(after) >> k & 1 ? dz[after] : acc_t(0), dx[j]);
      }
    }
  }
  if (p.grad_final_state.data) {
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const int place = t + j - (time - (W - 1));
      if (place >= 0) {
        dx[j] += static_cast<acc_t>(load_element(p.grad_final_state.at(b, d, place)));
      }
    }
  }
  if (p.grad_input.data && exists) {
    store_vector(p.grad_input.row(b, d) + t, narrow<scalar_t>(dx));
  }
  if (p.grad_initial_state.data && t == 0 && exists) {
    Values<acc_t, W - 1> places{};
#pragma unroll
    for (int i = 0; i < W - 1; ++i) {
#pragma unroll
      for (int k = 0; k <= i; ++k) {
        places[i] = multiply_add(weight[k], dz[i - k], places[i]);
      }
    }
#pragma unroll 1
    for (int i = 0; i < W - 1; ++i) {
      write_initial_state_grad(p, {b, 0, p.time}, b, d, i, get_element(places, i));
    }
  }
}

template <int W, typename scalar_t>
__device__ void backward_borders(const BackwardParams<scalar_t>& p, const RowBorders& borders, unsigned block) {
  using acc_t = at::opmath_type<scalar_t>;
  constexpr int kVec = Row<scalar_t>::kVec;
  constexpr int kSpan = Row<scalar_t>::kSpan;
  unsigned b, group, chunk;
  borders.find(block, b, group, chunk);
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const auto channel = static_cast<int64_t>(group) * kLanes + lane;
  const bool exists = channel < p.channels;
  const auto d = exists ? channel : p.channels - 1;
  Values<acc_t, W> weight;
  acc_t bias;
  p.parameters.load(d, weight, bias);
  Values<acc_t, W + 1> sums{};
  if (p.masks.data) {
    wait_for_previous(); // which found the masks
  }
  const int first = static_cast<int>(chunk) * RowBorders::kSpans;
  const auto which =
      lane < RowBorders::kSpans && (first + lane) * kSpan < p.time ? border_vectors<W>(p, b, first + lane) : 0;
  int turn = 0;
#pragma unroll 1
  for (auto spans = __ballot_sync(kEveryLane, which != 0); spans != 0; spans &= spans - 1) {
    const int span = __ffs(spans) - 1;
#pragma unroll 1
    for (auto vectors = __shfl_sync(kEveryLane, which, span); vectors != 0; vectors &= vectors - 1, ++turn) {
      const int t = (first + span) * kSpan + (__ffs(vectors) - 1) * kVec;
      if (turn % kWarps == warp && t < p.time) {
        backward_border<W>(p, b, d, exists, t, weight, bias, sums);
      }
    }
  }
  if (p.partials) {
    Values<Values<acc_t, 1>, W + 1> of_channel;
#pragma unroll
    for (int k = 0; k <= W; ++k) {
      of_channel[k][0] = sums[k];
    }
    write_partials<W>(p, borders.first_unit + b * borders.per_row + chunk, channel, of_channel);
  }
}

} // namespace

} // namespace at::native
