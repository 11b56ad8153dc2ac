// Packing for conv_transpose1d's matrix kernels: brings weights and source into the order in which tensor cores read
// them, split into the terms of the format.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dPlain.cuh>
#include <ATen/native/cuda/ConvTranspose1dTiling.cuh>

namespace at::native::conv_transpose1d {

// The row of a group that is the `local`-th of warpgroup `index` along the rows; beyond the last for padding.
__device__ inline int64_t row_of(const Tiling& tiling, int64_t index, int local) {
  return local < tiling.rows_per_warpgroup ? index * tiling.rows_per_warpgroup + local : tiling.rows;
}

constexpr int kPackThreads = 256;

__device__ inline int block_flags(const Extremes& extremes) {
  const int flags = extremes.flags();
  const bool small = __syncthreads_or(flags & Extremes::kHasSmall);
  const bool large = __syncthreads_or(flags & Extremes::kHasLarge);
  return (small ? Extremes::kHasSmall : 0) | (large ? Extremes::kHasLarge : 0);
}

// A block packs one unit of one row tile.
template <typename Shape>
__device__ void pack_weight(
    const Problem& p,
    const Tiling& tiling,
    const typename Shape::Format::scalar_t* weight,
    char* packed,
    int64_t index) {
  using Format = typename Shape::Format;
  const int unit = static_cast<int>(index % tiling.units);
  const int64_t row_tile = index / tiling.units % tiling.row_tiles;
  const int64_t group = index / tiling.units / tiling.row_tiles;
  const int chunk = unit / static_cast<int>(p.taps), j = unit % static_cast<int>(p.taps);
  auto* to = packed + index * Shape::kUnitBytes;
  Extremes extremes;
  for (int i = threadIdx.x; i < kChunkBlocks * Shape::kRows; i += kPackThreads) {
    const int block = i / Shape::kRows, local = i % Shape::kRows;
    const auto row = row_of(tiling, row_tile * Shape::kRowGroups + local / kGroupRows, local % kGroupRows);
    const auto channel = row / p.phases, phase = row % p.phases;
    const auto* from = weight + group * p.weight_group() + channel * p.weight_row;
    typename Format::scalar_t values[Format::kBlock];
#pragma unroll
    for (int e = 0; e < Format::kBlock; ++e) {
      const auto v = static_cast<int64_t>(chunk) * Shape::kChunk + block * Format::kBlock + e;
      const auto source = v / p.classes, klass = v % p.classes;
      const auto k = p.tap(p.first_tap(phase, klass), j);
      values[e] = row < tiling.rows && v < p.depth() && k < p.kernel ? from[source * p.weight_channel + k]
                                                                     : narrow<typename Format::scalar_t>(0.0f);
      if constexpr (Format::kExact) {
        extremes.add(values[e]);
      }
    }
    uint32_t words[Format::kPlanes][4];
    Format::split(values, words);
#pragma unroll
    for (int plane = 0; plane < Format::kPlanes; ++plane) {
      *reinterpret_cast<uint4*>(to + (plane * kChunkBlocks * Shape::kRows + i) * 16) =
          make_uint4(words[plane][0], words[plane][1], words[plane][2], words[plane][3]);
    }
  }
  const int flags = block_flags(extremes);
  if (threadIdx.x == 0) {
    *reinterpret_cast<int*>(to + Shape::kUnitBytes - kUnitTrailer) = flags;
  }
}

// A thread packs one column of kPackBlocks blocks.
constexpr int kPackBlocks = kChunkBlocks;

// Calls store(i, plane, 16 bytes) for blocks first_block + i. Columns beyond those of the problem are 0.
template <typename Format, typename Store>
__device__ void pack_column(
    const Problem& p,
    const typename Format::scalar_t* source,
    int64_t group,
    int first_block,
    int64_t column,
    Extremes& extremes,
    const Store& store) {
  using scalar_t = typename Format::scalar_t;
  constexpr int kBlock = Format::kBlock;
  const auto n = column / p.pitch();
  const auto u = static_cast<int>((column - n * p.pitch()) * p.position_stride + p.base);
  const auto length = static_cast<int>(p.length), classes = static_cast<int>(p.classes);
  const auto step = static_cast<int>(p.class_step), channels = static_cast<int>(p.channels);
  const bool exists = n < p.batch;
  const auto* from = source + (n * p.groups + group) * p.channels * p.length + u;
  const auto zero = narrow<scalar_t>(0.0f);
  int channel = first_block * kBlock / classes, klass = first_block * kBlock % classes;
#pragma unroll
  for (int i = 0; i < kPackBlocks; ++i) {
    scalar_t values[kBlock];
#pragma unroll
    for (int e = 0; e < kBlock; ++e) {
      const bool reads = exists && channel < channels &&
          static_cast<unsigned>(u + step * klass) < static_cast<unsigned>(length);
      values[e] = reads ? from[channel * length + step * klass] : zero;
      if (++klass >= classes) {
        klass = 0;
        ++channel;
      }
    }
    if constexpr (Format::kExact) {
#pragma unroll
      for (int e = 0; e < kBlock; ++e) {
        extremes.add(values[e]);
      }
    }
    uint32_t words[Format::kPlanes][4];
    Format::split(values, words);
#pragma unroll
    for (int plane = 0; plane < Format::kPlanes; ++plane) {
      store(i, plane, make_uint4(words[plane][0], words[plane][1], words[plane][2], words[plane][3]));
    }
  }
}

// The packed source is [groups][blocks][planes][columns][16 bytes].
template <typename Shape>
__device__ void pack_source(
    const Problem& p,
    const Tiling& tiling,
    const typename Shape::Format::scalar_t* source,
    char* packed,
    int* flags,
    int64_t index) {
  using Format = typename Shape::Format;
  const auto across = ceil_div(tiling.packed_columns, kPackThreads);
  const auto column = index % across * kPackThreads + threadIdx.x;
  const int first_block = static_cast<int>(index / across % tiling.chunks) * kPackBlocks;
  const auto group = index / across / tiling.chunks;
  auto* to = reinterpret_cast<uint4*>(packed) +
      (group * tiling.chunks * kChunkBlocks + first_block) * Format::kPlanes * tiling.packed_columns + column;
  Extremes extremes;
  if (column < tiling.packed_columns) {
    pack_column<Format>(p, source, group, first_block, column, extremes, [&](int i, int plane, uint4 words) {
      to[(i * Format::kPlanes + plane) * tiling.packed_columns] = words;
    });
  }
  if constexpr (Format::kExact) {
    const int found = block_flags(extremes);
    if (threadIdx.x == 0) {
      flags[index] = found;
    }
  }
}

// The first blocks pack the weights, and the others the source, if they are there.
template <typename Shape>
__global__ void __launch_bounds__(kPackThreads) pack_kernel(
    const __grid_constant__ Problem p,
    const __grid_constant__ Tiling tiling,
    const typename Shape::Format::scalar_t* weight,
    const typename Shape::Format::scalar_t* source,
    char* packed_weight,
    char* packed_source,
    int* flags,
    int* counter) {
  const auto index = static_cast<int64_t>(blockIdx.x), weight_blocks = p.groups * tiling.row_tiles * tiling.units;
  if (index < weight_blocks) {
    pack_weight<Shape>(p, tiling, weight, packed_weight, index);
    if (counter && index == 0 && threadIdx.x == 0) {
      *counter = 0; // for the next kernel
    }
  } else {
    pack_source<Shape>(p, tiling, source, packed_source, flags, index - weight_blocks);
  }
}

} // namespace at::native::conv_transpose1d
