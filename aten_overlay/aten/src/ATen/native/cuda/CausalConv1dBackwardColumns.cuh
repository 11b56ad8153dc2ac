// causal_conv1d's backward pass along columns of channels.
#pragma once

#include <ATen/native/cuda/CausalConv1dBackwardParams.cuh>
#include <ATen/native/cuda/CausalConv1dColumns.cuh>

namespace at::native {

namespace {

// Positions that are read and computed at once, and how many such batches are on their way; blocks of a multiprocessor,
// whose warps stand one behind the other in time.
constexpr int kBatch = 4;
constexpr int kBatches = 3;
constexpr int kColumnBlocks = 4;

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
    dz[0] = Silu<scalar_t>::times_slopes(dz[0], sum_taps(parameters, taps));
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

// How the positions of all rows, one row behind the other, are divided into runs of a warp. All blocks of a group of
// channels that fit on the device at once take most of the positions, as many more most of the rest, and so on: some
// warps are faster than others, by a sixth, and short runs behind long ones let all end together.
struct Runs {
  static constexpr int kRounds = 8;
  struct Round {
    int64_t steps; // of a run
    int64_t block; // the first one, and its position
    int64_t position;
  };
  int64_t positions;
  Round rounds[kRounds];
  int64_t per_group; // blocks
  int64_t count; // of all groups
  int64_t longest; // those of the first round
  Divisor group_divisor;
  Divisor time_divisor;

  // `at_once`: blocks of a group.
  Runs(int64_t batch, int64_t groups, int64_t time, int64_t at_once)
      : positions(batch * time),
        per_group(divide(at_once)),
        count(per_group * groups),
        longest(rounds[1].block * groups),
        group_divisor(groups, count),
        time_divisor(time, positions) {}

  // The run of one of the warps of block i of a group.
  __device__ void find(int64_t i, int warp, int64_t& begin, int64_t& end) const {
    int round = 0;
    while (round + 1 < kRounds && i >= rounds[round + 1].block) {
      ++round;
    }
    const auto steps = rounds[round].steps;
    begin = min(rounds[round].position + ((i - rounds[round].block) * kWarps + warp) * steps, positions);
    end = min(begin + steps, positions);
  }

 private:
  // Returns the number of blocks.
  int64_t divide(int64_t at_once) {
    constexpr int64_t kShare = 80; // of the positions that are left, in percent
    constexpr int64_t kShortest = 16;
    const auto share = [&](int64_t left, int64_t percent) { // of a warp, a multiple of 8
      return ceil_div(left * percent, 800 * at_once * kWarps) * 8;
    };
    const auto shortest = std::clamp<int64_t>(share(positions, 100), 8, kShortest);
    int64_t block = 0, position = 0;
    for (int i = 0; i < kRounds; ++i) {
      const auto left = std::max<int64_t>(positions - position, 0);
      const auto steps = i + 1 < kRounds ? std::max(share(left, kShare), shortest) : shortest;
      rounds[i] = {steps, block, position};
      const auto all = ceil_div(left, steps * kWarps);
      const auto blocks = steps > shortest ? std::min(all, at_once) : all;
      block += blocks;
      position += blocks * steps * kWarps;
    }
    return block;
  }
};

// Takes kSize channels from d on through the positions [begin, begin + size) of row b.
template <typename scalar_t, int W, bool kAligned, int kSize>
__device__ void take_run(
    const BackwardParams<scalar_t>& p,
    int64_t b,
    int64_t d,
    int64_t begin,
    int size,
    Taps<at::opmath_type<scalar_t>, kSize, W + 1>& sums) {
  using acc_t = at::opmath_type<scalar_t>;
  using vector_t = Vector<scalar_t, kSize>;
  const bool packed = p.masks.data, segments = p.sequences.cu_seqlens.data, store = p.grad_input.data;
  const int stop = size + W - 1; // behind the outputs that see inputs of the run
  const int exist = min(p.time - begin, int64_t(stop + kBatch - 1)); // of those, and of the rest of a batch
  Column<const scalar_t, kAligned> x(p.input, b, d, p.channels, begin);
  Column<const scalar_t, kAligned> grad_out(p.grad_output, b, d, p.channels, begin);
  Column<scalar_t, kAligned> grad_in(p.grad_input, b, d, p.channels, begin);
  const auto before = x.at(1 - W);

  __shared__ vector_t ring[kAligned ? kBatches : 1][kBatch][2][kThreads];
  const auto fetch = [&](int slot, int j) {
    load_async(&ring[slot][j][0][threadIdx.x], x.data);
    load_async(&ring[slot][j][1][threadIdx.x], grad_out.data);
    x.data += x.time;
    grad_out.data += grad_out.time;
  };
  // Asks for the batch that begins at position i.
  const auto fetch_batch = [&](int slot, int i) {
    if constexpr (kAligned) {
      if (i + kBatch <= exist) {
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          fetch(slot, j);
        }
      } else {
#pragma unroll 1
        for (int j = 0; i + j < exist; ++j) {
          fetch(slot, j);
        }
      }
      end_group();
    }
  };
#pragma unroll
  for (int n = 0; n < kBatches; ++n) {
    fetch_batch(n, n * kBatch);
  }
  auto taps = preceding_taps<W>(before, begin);
  wait_for_previous(); // which found the masks, if there are any
  const ColumnParameters<scalar_t, W, kAligned> parameters(p.parameters, d, p.channels);
  if (segments || (begin < W - 1 && p.initial_state.data)) {
    see_state(p, b, d, begin, taps);
  }
  Taps<acc_t, kSize, W> dz{}; // of the outputs k positions ago
  uint64_t masks = ~uint64_t(0); // theirs, a byte each
  const auto counts = [&](int k) { return (masks >> (8 * k + k)) & 1; };
  unsigned next_masks = 0; // of the batch's outputs from position i on

  int i = 0; // position in the run
  int slot = 0; // of the batch that it belongs to
  const auto next_batch = [&] { // behind the one that ends at position i
    fetch_batch(slot, i + (kBatches - 1) * kBatch);
    slot = slot + 1 == kBatches ? 0 : slot + 1;
  };
  // Behind the batches of which no input is in a final state, as far as the masks do not tell.
  const int limit = p.grad_final_state.data ? exist : stop + kBatch - 1;
  const bool in_batches = kAligned && !segments && !(packed && p.grad_final_state.data);

  // The straight way: batches inside the run of which every tap counts, as of the outputs before. How many come next?
  const auto straight_batches = [&] {
    if (!kAligned || !store || i % kBatch != 0 || i < W - 1) {
      return 0;
    }
    const int batches = (min(size, limit) - i) / kBatch;
    if (!packed || batches <= 0) {
      return batches;
    }
    constexpr auto kEvery = (0x0101010101010101ull * kEveryTap<W>) & ((1ull << (8 * (W - 1))) - 1);
    if ((masks & kEvery) != kEvery) {
      return 0;
    }
    const auto others = ~p.masks.straight_bits(b, begin + i); // a bit for every 8 positions
    const int positions = 8 * (others ? __ffs(others) - 1 : kLanes) - (begin + i) % 8;
    return min(batches, positions / kBatch);
  };
  const auto take_batches = [&](int batches, auto silu) {
#pragma unroll 1
    for (; batches > 0; --batches) {
      wait_for_groups<kBatches - 1>();
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        push(taps, ring[slot][j][0][threadIdx.x]);
        push_dz<scalar_t>(dz, parameters, taps, ring[slot][j][1][threadIdx.x], silu);
        add_sums(sums, dz[0], taps);
        grad_in.store_next(narrow<scalar_t>(sum_dz(parameters, dz, [](int) { return true; })));
      }
      i += kBatch;
      next_batch();
    }
  };

#pragma unroll 1
  while (i < stop) {
    if (const int batches = straight_batches(); batches > 0) {
      if (p.silu) {
        take_batches(batches, std::true_type());
      } else {
        take_batches(batches, std::false_type());
      }
      continue;
    }
    wait_for_groups<kBatches - 1>();
    if (packed && i % kBatch == 0) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        next_masks = next_masks >> 8 | p.masks.load(b, min(begin + i + j, p.time - 1)) << 24;
      }
    }
    // Any batch without a state.
    if (in_batches && i + kBatch <= limit) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j, ++i) {
        const bool exists = i < exist;
        const unsigned mask = packed && exists ? next_masks >> 8 * j & 0xff : kEveryTap<W>;
        masks = masks << 8 | mask;
        push(taps, ring[kAligned ? slot : 0][j][0][threadIdx.x]);
        const auto seen = mask_taps(mask, taps);
        push_dz<scalar_t>(dz, parameters, seen, ring[kAligned ? slot : 0][j][1][threadIdx.x], p.silu);
        if (!exists || mask == 0) {
          dz[0] = {};
        }
        if (i < size) {
          add_sums(sums, dz[0], seen);
        }
        if (store && i >= W - 1 && i < stop) {
          grad_in.store_next(narrow<scalar_t>(sum_dz(parameters, dz, counts)));
        }
      }
      next_batch();
      continue;
    }
    // Any one position.
    const bool exists = begin + i < p.time;
    vector_t x_vector{}, grad_vector{};
    if (exists) {
      if constexpr (kAligned) {
        x_vector = ring[slot][i % kBatch][0][threadIdx.x];
        grad_vector = ring[slot][i % kBatch][1][threadIdx.x];
      } else {
        x_vector = x.load_next();
        grad_vector = grad_out.load_next();
      }
    }
    const unsigned mask = packed && exists ? next_masks & 0xff : kEveryTap<W>;
    next_masks >>= 8;
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
    if (i % kBatch == 0) {
      next_batch();
    }
  }
}

// The gradient of the initial state: of a row for kSize channels a lane, from the row's first W-1 outputs.
template <typename scalar_t, int W, bool kAligned>
__device__ __noinline__ void take_states(const BackwardParams<scalar_t>& p, const Runs& runs, int64_t block) {
  using acc_t = at::opmath_type<scalar_t>;
  constexpr int kSize = kChannels<scalar_t>;
  wait_for_previous(); // which found the masks, if there are any
  if (p.sequences.cu_seqlens.data) {
    write_initial_state_grads(p, block);
    return;
  }
  int64_t b, group;
  runs.group_divisor.divide(block * kWarps + threadIdx.x / kLanes, b, group);
  const auto d = (group * kLanes + threadIdx.x % kLanes) * kSize;
  if (b >= p.sequences.count || d >= p.channels) {
    return;
  }
  Column<const scalar_t, kAligned> x(p.input, b, d, p.channels, 0);
  Column<const scalar_t, kAligned> grad_out(p.grad_output, b, d, p.channels, 0);
  const ColumnParameters<scalar_t, W, kAligned> parameters(p.parameters, d, p.channels);
  Taps<acc_t, kSize, W> taps{}, dz{};
  see_state(p, b, d, 0, taps);
  uint64_t masks = ~uint64_t(0);
#pragma unroll
  for (int j = 0; j < W - 1; ++j) { // output j, and place j of the state
    Vector<scalar_t, kSize> x_vector{}, grad_vector{};
    unsigned mask = 0;
    if (j < p.time) {
      x_vector = x.load_next();
      grad_vector = grad_out.load_next();
      mask = p.masks.data ? p.masks.load(b, j) : kEveryTap<W>;
    }
    masks = masks << 8 | mask;
    push(taps, x_vector);
    push_dz<scalar_t>(dz, parameters, mask_taps(mask, taps), grad_vector, p.silu);
    if (mask == 0) {
      dz[0] = {};
    }
    const auto grads = sum_dz(parameters, dz, [&](int k) { return (masks >> (8 * k + k)) & 1; });
#pragma unroll 1
    for (int c = 0; c < x.size; ++c) {
      write_initial_state_grad(p, {b, 0, p.time}, b, d + c, j, get_element(grads, c));
    }
  }
}

template <typename scalar_t, int W, bool kAligned>
__global__ void __launch_bounds__(kThreads, kColumnBlocks)
backward_columns(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ Runs runs) {
  constexpr int kSize = kChannels<scalar_t>;
  // The blocks for initial states come behind the longest runs: behind all of them they would be waited for.
  const int64_t more = gridDim.x - p.blocks, behind = blockIdx.x - runs.longest;
  if (behind >= 0 && behind < more) {
    take_states<scalar_t, W, kAligned>(p, runs, behind);
    return;
  }
  let_next_begin();
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  int64_t unit, group, begin, end;
  runs.group_divisor.divide(behind < 0 ? blockIdx.x : blockIdx.x - more, unit, group);
  runs.find(unit, warp, begin, end);
  const auto d = (group * kLanes + lane) * kSize;
  Taps<at::opmath_type<scalar_t>, kSize, W + 1> sums{};
  while (d < p.channels && begin < end) {
    int64_t b, t;
    runs.time_divisor.divide(begin, b, t);
    const int size = min(end - begin, p.time - t);
    take_run<scalar_t, W, kAligned, kSize>(p, b, d, t, size, sums);
    begin += size;
  }
  if (p.partials) {
    write_partials<W>(p, unit, d, sums);
  }
}

} // namespace

} // namespace at::native
