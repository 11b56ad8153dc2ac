// conv_transpose1d's gradient of the input straight from grad_output, where it has few channels: with positions as the
// rows of the product and channels of the input as its columns, no part of the tensor cores' work is on padding.
//
// A block (one warpgroup) keeps all weights in shared memory. Of each of its tiles of 64 positions, it splits
// grad_output into [planes][blocks of 8 channels by class][positions][16 bytes], where a tap is a shift of positions.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dGemm.cuh>
#include <ATen/native/cuda/ConvTranspose1dThinRows.cuh>

namespace at::native::conv_transpose1d {

template <typename Format_, int kDepth_, int kChannels_, int kTaps_, int kHalo_, int kBlocksPerProcessor_>
struct ThinGradInputShape {
  using Format = Format_;
  using scalar_t = typename Format::scalar_t;
  static constexpr int kPositions = kGroupRows; // of a tile
  static constexpr int kChannels = kChannels_; // of the input
  static constexpr int kDepth = kDepth_; // channels of grad_output by class
  static constexpr int kTaps = kTaps_;
  static constexpr int kHalo = kHalo_; // at most
  static constexpr int kBlocksPerProcessor = kBlocksPerProcessor_;
  static constexpr int kSteps = kDepth / 16;
  static constexpr int kBlocks = kDepth / 8;
  static constexpr int kSums = kChannels / 2;
  static constexpr int kMaxSlots = 4;

  // In shared memory: barriers, places, planes, weights, slots.
  static constexpr int kPlaces = 128;
  static constexpr int kPlanes = kPlaces + kDepth * 4;
  static constexpr int kPitch = kPositions + kHalo;
  static constexpr int kPlaneBytes = kBlocks * kPitch * 16;
  static constexpr int kWeights = kPlanes + Format::kPlanes * kPlaneBytes;
  static constexpr int kWeightPlaneBytes = kBlocks * kChannels * 16;
  static constexpr int kTapBytes = Format::kPlanes * kWeightPlaneBytes;
  static constexpr int kSlots = kWeights + kTaps * kTapBytes;
};

struct ThinGradInputTiling {
  int halo;
  ThinRowLayout layout;
  int slots;
  int slot_bytes;
  int64_t tiles_of_sample;
  int64_t tiles;
  int64_t blocks;
  int64_t samples_at_once; // of all blocks
  int64_t tiles_at_once; // and those that are no whole sample
};

template <typename Shape>
ThinGradInputTiling make_thin_grad_input_tiling(const Problem& p, const Device& device) {
  ThinGradInputTiling tiling{};
  tiling.halo = static_cast<int>(p.shift * (p.taps - 1));
  tiling.layout = thin_row_layout(p, Shape::kPositions + tiling.halo, sizeof(typename Shape::scalar_t), false);
  set_slots<Shape>(tiling, p.channels * tiling.layout.pitch, device);
  tiling.tiles_of_sample = ceil_div(p.columns, Shape::kPositions);
  tiling.tiles = tiling.tiles_of_sample * p.batch;
  tiling.blocks = std::min<int64_t>(tiling.tiles, device.processors * Shape::kBlocksPerProcessor);
  tiling.samples_at_once = tiling.blocks / tiling.tiles_of_sample;
  tiling.tiles_at_once = tiling.blocks % tiling.tiles_of_sample;
  return tiling;
}

// Every gridDim.x-th tile, without divisions.
struct ThinGradInputTile {
  int64_t n;
  int64_t within; // tiles of the sample before it

  __device__ explicit ThinGradInputTile(const ThinGradInputTiling& tiling)
      : n(blockIdx.x / tiling.tiles_of_sample), within(blockIdx.x % tiling.tiles_of_sample) {}

  __device__ void advance(const ThinGradInputTiling& tiling) {
    n += tiling.samples_at_once;
    within += tiling.tiles_at_once;
    if (within >= tiling.tiles_of_sample) {
      within -= tiling.tiles_of_sample;
      ++n;
    }
  }
};

#if CONV_TRANSPOSE1D_WGMMA

// All weights into [taps][planes][blocks][kChannels][16 bytes].
template <typename Shape>
__device__ void split_weights(
    const Problem& p, const typename Shape::scalar_t* weight, uint32_t to, Extremes& extremes) {
  using Format = typename Shape::Format;
  using scalar_t = typename Shape::scalar_t;
  for (int i = threadIdx.x; i < p.taps * Shape::kBlocks * Shape::kChannels; i += kWarpgroup) {
    const int row = i % Shape::kChannels, block = i / Shape::kChannels % Shape::kBlocks;
    const int tap = i / (Shape::kChannels * Shape::kBlocks);
    scalar_t values[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const auto channel = (8 * block + e) / p.classes, k = p.tap((8 * block + e) % p.classes, tap);
      values[e] = row < p.out_channels && channel < p.channels && k < p.kernel
          ? weight[channel * p.weight_channel + row * p.weight_row + k]
          : narrow<scalar_t>(0.0f);
      if constexpr (Format::kExact) {
        extremes.add(values[e]);
      }
    }
    uint32_t words[Format::kPlanes][4];
    Format::split(values, words);
#pragma unroll
    for (int plane = 0; plane < Format::kPlanes; ++plane) {
      store_shared(
          to + tap * Shape::kTapBytes + ((plane * Shape::kBlocks + block) * Shape::kChannels + row) * 16, words[plane]);
    }
  }
}

// A thread's share of a tile's 64 positions for one tap.
template <typename Shape>
__device__ __forceinline__ void load_positions(
    RowFragments<typename Shape::Format, Shape::kSteps>& fragments, uint32_t planes) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane % 8, matrix = lane / 8;
  // Matrices: positions 0-7 and 8-15 of a step's first block, then of its second.
  planes += (matrix / 2 * Shape::kPitch + 16 * warp + matrix % 2 * 8 + row) * 16;
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
#pragma unroll
    for (int plane = 0; plane < Shape::Format::kPlanes; ++plane) {
      load_matrices(
          planes + plane * Shape::kPlaneBytes + 2 * step * Shape::kPitch * 16, fragments.words[step][plane]);
    }
  }
}

// The products of all taps, added up.
template <typename Shape>
__device__ __forceinline__ void multiply_taps(
    float (&sums)[Shape::kSums], uint32_t planes, uint32_t weights, int shift) {
  using Format = typename Shape::Format;
  // Tensor cores cut sums off instead of rounding them; where that matters, no more than a tap is summed there.
  constexpr int kPartsAtOnce = Format::kExact ? 2 : 1;
  float parts[kPartsAtOnce][Shape::kSums];
  RowFragments<Format, Shape::kSteps> fragments[2];
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i) {
    sums[i] = 0;
  }
#pragma unroll
  for (int tap = 0; tap <= Shape::kTaps; ++tap) {
    if (tap < Shape::kTaps) {
      load_positions<Shape>(fragments[tap % 2], planes + shift * tap * 16);
      wgmma_fence();
      start_row_products<Format, false, 2 * Shape::kChannels * 16, Shape::kWeightPlaneBytes>(
          Format::kExact ? parts[tap % kPartsAtOnce] : sums,
          fragments[tap % 2],
          descriptor(weights + tap * Shape::kTapBytes, Shape::kChannels * 16),
          Format::kExact);
    }
    if (tap > 0) {
      if (tap < Shape::kTaps) {
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      fragments[(tap - 1) % 2].keep();
      if constexpr (Format::kExact) {
        auto& part = parts[(tap - 1) % kPartsAtOnce];
        keep_in_registers(part);
#pragma unroll
        for (int i = 0; i < Shape::kSums; ++i) {
          sums[i] += part[i];
        }
      }
    }
  }
  if constexpr (!Format::kExact) {
    keep_in_registers(sums);
  }
}

// Stores a tile's sums of a thread, and computes those again that tensor cores cannot be trusted with.
template <typename Shape>
__device__ __forceinline__ void store_positions(
    const Problem& p,
    const Tensors<typename Shape::scalar_t>& t,
    int64_t n,
    int64_t first_column,
    const float (&sums)[Shape::kSums],
    float least) {
  using scalar_t = typename Shape::scalar_t;
  const int lane = threadIdx.x % kWarp, channel = lane % 4 * 2;
  const auto column = first_column + threadIdx.x / kWarp * 16 + lane / 4;
  auto* out = t.out + (n * p.out_channels + channel) * p.out_length + column;
  // Sum i is of channel + place.x and column + place.y.
  const auto place = [](int i) { return int2{i / 4 * 8 + i % 2, i / 2 % 2 * 8}; };
  const auto exists = [&](int i) {
    return channel + place(i).x < p.out_channels && column + place(i).y < p.columns;
  };
  const bool inside = first_column + Shape::kPositions <= p.columns && p.out_channels == Shape::kChannels;
  float check = least; // NaN if any sum is infinite or NaN
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i) {
    check = __fmaf_rn(sums[i], 0.0f, check);
  }
  if (inside) {
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      out[place(i).x * p.out_length + place(i).y] = narrow<scalar_t>(sums[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      if (exists(i)) {
        out[place(i).x * p.out_length + place(i).y] = narrow<scalar_t>(sums[i]);
      }
    }
  }
  if (check != 0) {
    // From what was stored, since registers cannot be indexed.
#pragma unroll 1
    for (int i = 0; i < Shape::kSums; ++i) {
      if (exists(i)) {
        auto& to = out[place(i).x * p.out_length + place(i).y];
        if (!(fabsf(widen(to)) >= least) || !is_finite(widen(to))) {
          to = narrow<scalar_t>(plain_sum(p, t, 0, channel + place(i).x, n, column + place(i).y));
        }
      }
    }
  }
}

#endif

template <typename Shape>
__global__ void __launch_bounds__(kWarpgroup, Shape::kBlocksPerProcessor) thin_grad_input_kernel(
    const __grid_constant__ Problem p,
    const __grid_constant__ ThinGradInputTiling tiling,
    const __grid_constant__ Tensors<typename Shape::scalar_t> t) {
#if CONV_TRANSPOSE1D_WGMMA
  using scalar_t = typename Shape::scalar_t;
  using Format = typename Shape::Format;
  extern __shared__ __align__(128) char memory[];
  const auto address = shared_address(memory);
  const auto full = [&](int slot) { return address + 8 * slot; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < tiling.slots; ++i) {
      barrier_init(full(i), kWarpgroup);
    }
    fence_async();
  }
  __syncthreads();
  const auto sample = p.channels * p.length;
  const ThinRows<scalar_t> rows{
      t.source,
      t.source,
      t.source + p.batch * sample,
      sample,
      p.length,
      static_cast<int>(p.channels),
      tiling.layout};
  const auto planes = address + Shape::kPlanes, weights = address + Shape::kWeights;
  const auto column_of = [&](const ThinGradInputTile& tile) { return tile.within * Shape::kPositions; };
  const auto origin = [&](const ThinGradInputTile& tile) { return p.position_stride * column_of(tile) + p.base; };
  const auto start_copies = [&](const ThinGradInputTile& tile, int slot) {
    const auto to = address + Shape::kSlots + slot * tiling.slot_bytes;
    rows.start_copies(to, tile.n, origin(tile), full(slot));
  };
  ThinGradInputTile tile(tiling), ahead = tile;
  for (int slot = 0; slot < tiling.slots && ahead.n < p.batch; ++slot) {
    start_copies(ahead, slot);
    ahead.advance(tiling);
  }
  Extremes of_weights;
  split_weights<Shape>(p, t.weight, weights, of_weights);
  const int weight_flags = Format::kExact ? block_flags(of_weights) : 0;
  auto* places = reinterpret_cast<int*>(memory + Shape::kPlaces);
  int placed = -1;
  Ring ring(tiling.slots);
  for (; tile.n < p.batch; tile.advance(tiling)) {
    const auto first = static_cast<int>(origin(tile));
    if (const int phase = rows.phase(tile.n, first); phase != placed) {
      placed = phase;
      find_places(p, rows, places, Shape::kDepth, tile.n, first);
      __syncthreads();
    }
    barrier_wait(full(ring.slot), ring.parity);
    const char* raw = memory + Shape::kSlots + ring.slot * tiling.slot_bytes;
    Extremes extremes;
    if (rows.inside(first)) {
      split_rows<Format, Shape::kBlocks, Shape::kPositions, Shape::kPitch, true>(
          p, places, raw, planes, first, tiling.halo, extremes);
    } else {
      split_rows<Format, Shape::kBlocks, Shape::kPositions, Shape::kPitch, false>(
          p, places, raw, planes, first, tiling.halo, extremes);
    }
    fence_async();
    int flags = 0;
    if constexpr (Format::kExact) {
      if (__syncthreads_or(extremes.has_small() || weight_flags & Extremes::kHasSmall)) {
        // Large numbers matter only where there are small ones.
        const bool large = has_large_term(memory + Shape::kPlanes, Shape::kPlaneBytes);
        flags = Extremes::kHasSmall |
            (__syncthreads_or(large || weight_flags & Extremes::kHasLarge) ? Extremes::kHasLarge : 0);
      }
    } else {
      __syncthreads();
    }
    if (ahead.n < p.batch) {
      start_copies(ahead, ring.slot);
      ahead.advance(tiling);
    }
    float sums[Shape::kSums];
    multiply_taps<Shape>(sums, planes, weights, static_cast<int>(p.shift));
    __syncthreads(); // the planes are used up
    store_positions<Shape>(p, t, tile.n, column_of(tile), sums, Extremes::least_sum(flags));
    ring.advance();
  }
#endif
}

// Whether this kernel can take a problem of fits_gemm, and it has enough tiles to be worth it.
template <typename Shape>
bool fits_thin_grad_input(const Problem& p, const ThinGradInputTiling& tiling, const Device& device) {
  return p.groups == 1 && p.phases == 1 && !p.reversed && p.depth() <= Shape::kDepth &&
      p.out_channels <= Shape::kChannels && p.taps == Shape::kTaps && tiling.halo <= Shape::kHalo &&
      tiling.slots >= 1 && tiling.tiles >= 4 * device.processors;
}

template <typename Shape>
void launch_thin_grad_input(
    const Problem& p,
    const ThinGradInputTiling& tiling,
    const Tensors<typename Shape::scalar_t>& t,
    cudaStream_t stream) {
  const int bytes = Shape::kSlots + tiling.slots * tiling.slot_bytes;
  C10_CUDA_CHECK(
      cudaFuncSetAttribute(thin_grad_input_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto grid = static_cast<unsigned>(tiling.blocks);
  thin_grad_input_kernel<Shape><<<grid, kWarpgroup, bytes, stream>>>(p, tiling, t);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace at::native::conv_transpose1d
