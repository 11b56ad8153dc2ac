// causal_conv1d's backward pass along columns of channels.
#pragma once

#include <ATen/native/cuda/CausalConv1dBackwardParams.cuh>
#include <ATen/native/cuda/CausalConv1dColumns.cuh>

namespace at::native {

namespace {

// Positions that are read and computed at once, and how many such batches are on their way; warps of a block, one
// behind the other in time; blocks of a multiprocessor; the most positions of a warp.
constexpr int kBatch = 4;
constexpr int kBatches = 3;
constexpr int kWarps = 4;
constexpr int kColumnBlocks = 4;
constexpr int64_t kLongStretch = 176;

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

template <typename scalar_t, int W, bool kAligned>
__global__ void __launch_bounds__(kWarps* kLanes, kColumnBlocks)
backward_columns(const __grid_constant__ BackwardParams<scalar_t> p, const __grid_constant__ Stretches stretches) {
  using acc_t = at::opmath_type<scalar_t>;
  constexpr int kSize = kChannels<scalar_t>;
  using vector_t = Vector<scalar_t, kSize>;
  constexpr unsigned kEveryTap = (1u << W) - 1;
  if (blockIdx.x >= p.blocks) {
    write_initial_state_grads(p);
    return;
  }
  let_next_begin();
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

    __shared__ vector_t x_ring[kAligned ? kBatches : 1][kBatch][kWarps * kLanes];
    __shared__ vector_t grad_ring[kAligned ? kBatches : 1][kBatch][kWarps * kLanes];
    const auto fetch = [&](int slot, int j) {
      load_async(&x_ring[slot][j][threadIdx.x], x.data);
      load_async(&grad_ring[slot][j][threadIdx.x], grad_out.data);
      x.data += x.time;
      grad_out.data += grad_out.time;
    };
    // Asks for the batch that begins at position i.
    const auto fetch_batch = [&](int slot, int i) {
      if constexpr (kAligned) {
        if (i + kBatch <= reach) {
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            fetch(slot, j);
          }
        } else {
#pragma unroll 1
          for (int j = 0; i + j < reach; ++j) {
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
    if (segments || (begin == 0 && p.initial_state.data)) {
      see_state(p, b, d, begin, taps);
    }
    Taps<acc_t, kSize, W> dz{}; // of the outputs k positions ago
    uint64_t masks = ~uint64_t(0); // theirs, a byte each
    const auto counts = [&](int k) { return (masks >> (8 * k + k)) & 1; };
    const auto straight = [&] { // those of the last W-1
      constexpr auto kEvery = (0x0101010101010101ull * kEveryTap) & ((1ull << (8 * (W - 1))) - 1);
      return (masks & kEvery) == kEvery;
    };
    // Which positions see all their taps: a bit for every 8 from begin - phase on.
    static_assert(kLongStretch + 2 * (kMaxWidth - 1) <= 8 * kLanes);
    const int phase = begin % 8;
    const unsigned straight_bits = packed ? p.masks.straight_bits(b, begin) : kEveryLane;
    // The first position that the final state holds.
    const int ending = p.grad_final_state.data ? min(p.time - (W - 1) - begin, int64_t(size)) : size;
    const int last_start = kAligned ? min(reach, min(size, ending) + W - 1) - kBatch : -1;

    int slot = 0; // of the batch that position i belongs to
#pragma unroll 1
    for (int i = 0; i < size + W - 1;) { // position in the stretch
      wait_for_groups<kBatches - 1>();
      // The straight way: kBatch positions, of which every tap counts, as of the outputs before.
      if (i <= last_start && i % kBatch == 0 &&
          (!packed ||
           (straight() && straight_bits >> (phase + i) / 8 & straight_bits >> (phase + i + kBatch - 1) / 8 & 1))) {
        const auto compute = [&](auto within) { // nothing before the stretch is written, nothing behind it summed up
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            push(taps, x_ring[slot][j][threadIdx.x]);
            push_dz<scalar_t>(dz, parameters, taps, grad_ring[slot][j][threadIdx.x], p.silu);
            if (within || i + j < size) {
              add_sums(sums, dz[0], taps);
            }
            if (within || (store && i + j >= W - 1)) {
              grad_in.store_next(narrow<scalar_t>(sum_dz(parameters, dz, [](int) { return true; })));
            }
          }
        };
        if (store && i >= W - 1 && i + kBatch <= size) {
          compute(std::true_type());
        } else {
          compute(std::false_type());
        }
        i += kBatch;
        fetch_batch(slot, i + (kBatches - 1) * kBatch);
        slot = slot + 1 == kBatches ? 0 : slot + 1;
        continue;
      }
      // Any one position.
      const bool exists = i < reach;
      vector_t x_vector{}, grad_vector{};
      if (exists) {
        if constexpr (kAligned) {
          x_vector = x_ring[slot][i % kBatch][threadIdx.x];
          grad_vector = grad_ring[slot][i % kBatch][threadIdx.x];
        } else {
          x_vector = x.load_next();
          grad_vector = grad_out.load_next();
        }
      }
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
      if (i % kBatch == 0) {
        fetch_batch(slot, i + (kBatches - 1) * kBatch);
        slot = slot + 1 == kBatches ? 0 : slot + 1;
      }
    }
  }
  if (p.partials) {
    write_partials<W>(p, unit, d, sums);
  }
}

} // namespace

} // namespace at::native
