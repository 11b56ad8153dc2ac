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

// Over all threads of a block of `warps` warps.
__device__ inline void join_block(Extremes& extremes, uint2* of_warps, int warps) {
  extremes.join_warp();
  if (threadIdx.x % kWarp == 0) {
    of_warps[threadIdx.x / kWarp] = make_uint2(extremes.least, extremes.most);
  }
  __syncthreads();
  extremes.join(of_warps, warps);
}

// Packed weights: all units, and before them all of ScaledFormat, where there are both.
template <typename Shape>
struct PackedWeights {
  static constexpr int kScaledBytes = Shape::Format::kExact ? Shape::Scaled::kUnitBytes : 0;
  char* memory;
  int64_t units;

  static __host__ __device__ int64_t bytes(int64_t units) {
    return units * (kScaledBytes + Shape::kUnitBytes);
  }
  __device__ char* scaled_unit(int64_t index) const {
    return memory + index * kScaledBytes;
  }
  __device__ char* unit(int64_t index) const {
    return memory + units * kScaledBytes + index * Shape::kUnitBytes;
  }
};

template <typename Shape>
__device__ Packed& packed_of(char* unit) {
  return *reinterpret_cast<Packed*>(unit + Shape::kUnitBytes - kUnitTrailer);
}

template <int kPlanes>
__device__ void put_planes(const uint32_t (&words)[kPlanes][4], char* to, int64_t plane_bytes) {
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    *reinterpret_cast<uint4*>(to + plane * plane_bytes) =
        make_uint4(words[plane][0], words[plane][1], words[plane][2], words[plane][3]);
  }
}

// A block packs one unit of one row tile. With `kOneScale`, all weights of the group share a scale.
template <typename Shape, bool kOneScale>
__device__ void pack_weight(
    const Problem& p,
    const Tiling& tiling,
    const typename Shape::Format::scalar_t* weight,
    const PackedWeights<Shape>& packed,
    int64_t index) {
  using Format = typename Shape::Format;
  using scalar_t = typename Format::scalar_t;
  constexpr int kColumns = kChunkBlocks * Shape::kRows, kTimes = (kColumns + kPackThreads - 1) / kPackThreads;
  const int unit = static_cast<int>(index % tiling.units);
  const int64_t row_tile = index / tiling.units % tiling.row_tiles;
  const int64_t group = index / tiling.units / tiling.row_tiles;
  const int chunk = unit / static_cast<int>(p.taps), j = unit % static_cast<int>(p.taps);
  scalar_t values[kTimes][Format::kBlock];
#pragma unroll
  for (int time = 0; time < kTimes; ++time) {
    const int i = threadIdx.x + time * kPackThreads, block = i / Shape::kRows, local = i % Shape::kRows;
    const auto row = row_of(tiling, row_tile * Shape::kRowGroups + local / kGroupRows, local % kGroupRows);
    const auto channel = row / p.phases, phase = row % p.phases;
    const auto* from = weight + group * p.weight_group() + channel * p.weight_row;
#pragma unroll
    for (int e = 0; e < Format::kBlock; ++e) {
      const auto v = static_cast<int64_t>(chunk) * Shape::kChunk + block * Format::kBlock + e;
      const auto source = v / p.classes, klass = v % p.classes;
      const auto k = p.tap(p.first_tap(phase, klass), j);
      values[time][e] = i < kColumns && row < tiling.rows && v < p.depth() && k < p.kernel
          ? from[source * p.weight_channel + k]
          : narrow<scalar_t>(0.0f);
    }
  }
  char* to = packed.unit(index);
  if constexpr (Format::kExact) {
    __shared__ uint2 of_warps[kPackThreads / kWarp];
    Extremes extremes;
    if constexpr (kOneScale) {
#pragma unroll 8
      for (int64_t i = threadIdx.x; i < p.weight_group(); i += kPackThreads) {
        extremes.add(weight[group * p.weight_group() + i]);
      }
    } else {
#pragma unroll
      for (int time = 0; time < kTimes; ++time) {
#pragma unroll
        for (int e = 0; e < Format::kBlock; ++e) {
          extremes.add(values[time][e]);
        }
      }
    }
    join_block(extremes, of_warps, kPackThreads / kWarp);
    char* scaled_to = packed.scaled_unit(index);
#pragma unroll
    for (int time = 0; time < kTimes; ++time) {
      const int i = threadIdx.x + time * kPackThreads;
      uint32_t words[ScaledFormat::kPlanes][4];
      ScaledFormat::split(values[time], extremes.scale(), words);
      if (i < kColumns) {
        put_planes(words, scaled_to + i * 16, kColumns * 16);
      }
    }
    if (threadIdx.x == 0) {
      packed_of<typename Shape::Scaled>(scaled_to) = {extremes.fits_scaled() ? extremes.unscale() : 0.0f, 0};
      packed_of<Shape>(to) = {0.0f, extremes.flags()};
    }
  }
#pragma unroll
  for (int time = 0; time < kTimes; ++time) {
    const int i = threadIdx.x + time * kPackThreads;
    uint32_t words[Format::kPlanes][4];
    Format::split(values[time], words);
    if (i < kColumns) {
      put_planes(words, to + i * 16, kColumns * 16);
    }
  }
}

// Reads kBlocks blocks of one column. Columns beyond those of the problem are 0.
template <typename Format, int kBlocks>
__device__ void load_column(
    const Problem& p,
    const typename Format::scalar_t* source,
    int64_t group,
    int first_block,
    int64_t column,
    bool exists,
    typename Format::scalar_t (&values)[kBlocks][Format::kBlock]) {
  using scalar_t = typename Format::scalar_t;
  constexpr int kBlock = Format::kBlock;
  const auto pitch = p.pitch();
  const auto n = divide(column, pitch);
  const auto u = static_cast<int>((column - n * pitch) * p.position_stride + p.base);
  const auto length = static_cast<int>(p.length), classes = static_cast<int>(p.classes);
  const auto step = static_cast<int>(p.class_step), channels = static_cast<int>(p.channels);
  exists = exists && n < p.batch;
  const auto* from = source + (n * p.groups + group) * p.channels * p.length + u;
  const auto zero = narrow<scalar_t>(0.0f);
  if (classes == 1) {
    exists = exists && static_cast<unsigned>(u) < static_cast<unsigned>(length);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int e = 0; e < kBlock; ++e) {
        const int channel = (first_block + i) * kBlock + e;
        values[i][e] = exists && channel < channels ? from[channel * length] : zero;
      }
    }
    return;
  }
  int channel = first_block * kBlock / classes, klass = first_block * kBlock % classes;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int e = 0; e < kBlock; ++e) {
      const bool reads = exists && channel < channels &&
          static_cast<unsigned>(u + step * klass) < static_cast<unsigned>(length);
      values[i][e] = reads ? from[channel * length + step * klass] : zero;
      if (++klass >= classes) {
        klass = 0;
        ++channel;
      }
    }
  }
}

// A thread packs one column of kPackBlocks blocks.
constexpr int kPackBlocks = kChunkBlocks;

// Calls store(i, plane, 16 bytes) for blocks first_block + i.
template <typename Format, typename Store>
__device__ void pack_column(
    const Problem& p,
    const typename Format::scalar_t* source,
    int64_t group,
    int first_block,
    int64_t column,
    Extremes& extremes,
    const Store& store) {
  typename Format::scalar_t values[kPackBlocks][Format::kBlock];
  load_column<Format>(p, source, group, first_block, column, true, values);
#pragma unroll
  for (int i = 0; i < kPackBlocks; ++i) {
    if constexpr (Format::kExact) {
#pragma unroll
      for (int e = 0; e < Format::kBlock; ++e) {
        extremes.add(values[i][e]);
      }
    }
    uint32_t words[Format::kPlanes][4];
    Format::split(values[i], words);
#pragma unroll
    for (int plane = 0; plane < Format::kPlanes; ++plane) {
      store(i, plane, make_uint4(words[plane][0], words[plane][1], words[plane][2], words[plane][3]));
    }
  }
}

// A block packs a chunk of a tile's columns and halo: [planes][blocks][columns][16 bytes]. Half its threads have half the
// blocks of the tile's columns, and each a block of the halo.
template <typename Shape>
__device__ void pack_source(
    const Problem& p,
    const Tiling& tiling,
    const typename Shape::Format::scalar_t* source,
    const PackedWeights<Shape>& weights,
    char* packed,
    Packed* found,
    int64_t index) {
  using Format = typename Shape::Format;
  using scalar_t = typename Format::scalar_t;
  constexpr int kBlocks = kChunkBlocks / 2, kAcross = kPackThreads / 2, kTimes = Shape::kColumns / kAcross;
  static_assert(Shape::kColumns % kAcross == 0 && kMaxHalo * kChunkBlocks <= kPackThreads);
  const int chunk = static_cast<int>(index % tiling.chunks), first_block = chunk * kChunkBlocks;
  const auto tile = index / tiling.chunks % tiling.column_tiles, group = index / tiling.chunks / tiling.column_tiles;
  const int in_chunk = threadIdx.x / kAcross * kBlocks, first = threadIdx.x % kAcross;
  const int columns = tiling.source_columns, halo = columns - Shape::kColumns;
  const bool has_extra = static_cast<int>(threadIdx.x) < halo * kChunkBlocks;
  const int extra_block = has_extra ? threadIdx.x / halo : 0;
  const int extra_column = Shape::kColumns + (has_extra ? threadIdx.x % halo : 0);
  const auto first_column = tile * Shape::kColumns;
  scalar_t values[kTimes][kBlocks][Format::kBlock], extra[1][Format::kBlock];
#pragma unroll
  for (int time = 0; time < kTimes; ++time) {
    const auto column = first_column + first + time * kAcross;
    load_column<Format>(p, source, group, first_block + in_chunk, column, true, values[time]);
  }
  load_column<Format>(p, source, group, first_block + extra_block, first_column + extra_column, has_extra, extra);
  char* to = packed + index * Shape::source_bytes(columns);
  const auto plane_bytes = static_cast<int64_t>(kChunkBlocks) * columns * 16;
  const auto put = [&](const auto& split) {
#pragma unroll
    for (int time = 0; time < kTimes; ++time) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        split(values[time][block], to + ((in_chunk + block) * columns + first + time * kAcross) * 16);
      }
    }
    if (has_extra) {
      split(extra[0], to + (extra_block * columns + extra_column) * 16);
    }
  };
  if constexpr (Format::kExact) {
    __shared__ uint2 of_warps[kPackThreads / kWarp];
    Extremes extremes;
#pragma unroll
    for (int e = 0; e < Format::kBlock; ++e) {
#pragma unroll
      for (int time = 0; time < kTimes; ++time) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          extremes.add(values[time][block][e]);
        }
      }
      extremes.add(extra[0][e]);
    }
    join_block(extremes, of_warps, kPackThreads / kWarp);
    // Only where all weights that the chunk meets are scaled too.
    bool scaled = extremes.fits_scaled();
    const int taps = static_cast<int>(p.taps), units = static_cast<int>(tiling.row_tiles) * taps;
    for (int i = threadIdx.x; i < units && scaled; i += kPackThreads) {
      const auto unit = (group * tiling.row_tiles + i / taps) * tiling.units + chunk * taps + i % taps;
      scaled = packed_of<typename Shape::Scaled>(weights.scaled_unit(unit)).unscale != 0;
    }
    scaled = __syncthreads_and(scaled);
    if (threadIdx.x == 0) {
      found[index] = {scaled ? extremes.unscale() : 0.0f, extremes.flags()};
    }
    if (scaled) {
      const float scale = extremes.scale();
      put([&](const auto& from, char* place) {
        uint32_t words[ScaledFormat::kPlanes][4];
        ScaledFormat::split(from, scale, words);
        put_planes(words, place, plane_bytes);
      });
      return;
    }
  }
  put([&](const auto& from, char* place) {
    uint32_t words[Format::kPlanes][4];
    Format::split(from, words);
    put_planes(words, place, plane_bytes);
  });
}

// The first blocks pack the weights, the others the source. Of ExactFormat the latter need what the former have found.
template <typename Shape>
__global__ void __launch_bounds__(kPackThreads) pack_kernel(
    const __grid_constant__ Problem p,
    const __grid_constant__ Tiling tiling,
    const typename Shape::Format::scalar_t* weight,
    const typename Shape::Format::scalar_t* source,
    const PackedWeights<Shape> packed_weight,
    char* packed_source,
    Packed* found,
    int64_t first_block) {
  const auto index = first_block + blockIdx.x;
  if (index < packed_weight.units) {
    pack_weight<Shape, false>(p, tiling, weight, packed_weight, index);
  } else {
    pack_source<Shape>(p, tiling, source, packed_weight, packed_source, found, index - packed_weight.units);
  }
}

} // namespace at::native::conv_transpose1d
