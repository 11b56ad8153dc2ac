// conv_transpose1d as a product of matrices on tensor cores: rows are the phases of the output channels, columns the
// positions of all samples one after the other, depth is source channels by taps (see ConvTranspose1dProblem.h).
//
// Two kernels before bring both factors into the order in which tensor cores read them, split into terms: the weights in
// units, of a chunk of source channels and one tap, and the source in chunks, [blocks][columns]. So all that a tile
// needs comes in bulk copies, which one warp of a block starts; the others multiply. A chunk of the source serves all
// taps, at columns shifted by each tap's reach, and by being packed all samples have become one row of columns with
// zeros between them.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dFormats.cuh>
#include <ATen/native/cuda/ConvTranspose1dPlain.cuh>
#include <ATen/native/cuda/ConvTranspose1dWgmma.cuh>

namespace at::native::conv_transpose1d {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;
constexpr int kChunkBlocks = 4; // along the depth: two steps
constexpr int kMaxHalo = 64;
constexpr int kMaxWeightSlots = 8;
constexpr int kMaxSourceSlots = 4;
constexpr int kGroupRows = 64; // of a warpgroup
constexpr int kUnitTrailer = 128; // bytes behind a unit, beginning with the flags of its Extremes

// Division of numbers below 2^31.
struct FastDivisor {
  uint32_t value;
  uint32_t multiplier;
  uint32_t shift;

  explicit FastDivisor(uint32_t value) : value(value), multiplier(0), shift(0) {
    while ((uint64_t(1) << shift) < value) {
      ++shift;
    }
    multiplier = static_cast<uint32_t>(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - value)) / value + 1);
  }

  __device__ uint32_t divide(uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

// How a problem is cut into tiles; the same on host and device.
struct Tiling {
  int64_t rows; // of a group
  int rows_per_warpgroup; // whole channels, where one has no more phases than that
  int run; // rows that lie in a row in the output: the phases of a channel, or all rows
  int64_t row_tiles;
  int64_t columns; // of all samples
  int64_t column_tiles;
  int64_t column_tiles_in_turn; // so few that their source stays in the L2 cache until all rows have used it
  int64_t tiles;
  int chunks;
  int units;
  int source_columns; // a tile's columns and the halo
  int64_t packed_columns; // of the packed source: those of all tiles, and a halo
  int weight_slots;
  int source_slots;
  bool resident; // the weights of the only row tile stay in shared memory
  FastDivisor per_column; // outputs of a column in a run
  FastDivisor per_run; // outputs of a run in a pass of the epilogue
};

template <typename Format_, int kRowGroups_, int kColumnGroups_, int kGroupColumns_>
struct TileShape {
  using Format = Format_;
  static constexpr int kRowGroups = kRowGroups_;
  static constexpr int kColumnGroups = kColumnGroups_;
  static constexpr int kGroupColumns = kGroupColumns_;
  static constexpr int kConsumers = kRowGroups * kColumnGroups * kWarpgroup;
  static constexpr int kThreads = kConsumers + kWarpgroup;
  static constexpr int kRows = kRowGroups * kGroupRows;
  static constexpr int kColumns = kColumnGroups * kGroupColumns;
  static constexpr int kChunk = kChunkBlocks * Format::kBlock; // source channels
  static constexpr int kUnitBytes = Format::kPlanes * kChunkBlocks * kRows * 16 + kUnitTrailer;
  static constexpr int kSums = kGroupColumns / 2;
  static constexpr int kPassColumns = 32; // of the epilogue
  static constexpr int kStagingPitch = kPassColumns + 8;
  static constexpr int kStagingFloats = kGroupRows * kStagingPitch;

  static constexpr int kOutputs = 16 * (kMaxWeightSlots + kMaxSourceSlots); // behind the barriers
  static constexpr int kGroups = kRowGroups * kColumnGroups;
  static constexpr int kStaging = kOutputs + kGroups * 16 * kPassColumns;
  static constexpr int kRings = (kStaging + kGroups * kStagingFloats * 4 + 127) / 128 * 128;

  static __host__ __device__ int source_bytes(int source_columns) {
    return Format::kPlanes * kChunkBlocks * source_columns * 16;
  }
};

// ---- Packing -------------------------------------------------------------------------------

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

// ---- Tiles ---------------------------------------------------------------------------------

struct Tile {
  int64_t group;
  int64_t row_tile;
  int64_t column_tile;
};

template <typename Shape>
__device__ Tile find_tile(const Tiling& tiling, int64_t index) {
  const auto per_group = tiling.row_tiles * tiling.column_tiles;
  const auto group = index / per_group;
  index -= group * per_group;
  const auto turn = index / (tiling.column_tiles_in_turn * tiling.row_tiles);
  index -= turn * tiling.column_tiles_in_turn * tiling.row_tiles;
  const auto first = turn * tiling.column_tiles_in_turn;
  const auto in_turn = min(tiling.column_tiles_in_turn, tiling.column_tiles - first);
  return {group, index / in_turn, first + index % in_turn};
}

// Where a column's outputs lie: from `offset` on, those in [first, last).
struct alignas(16) OutputColumn {
  int64_t offset;
  int32_t first;
  int32_t last;
};

template <typename Shape>
struct Shared {
  char* base;
  uint32_t address;
  const Tiling& tiling;

  __device__ uint32_t weight_full(int slot) const {
    return address + 16 * slot;
  }
  __device__ uint32_t weight_empty(int slot) const {
    return address + 16 * slot + 8;
  }
  __device__ uint32_t source_full(int slot) const {
    return address + 16 * (kMaxWeightSlots + slot);
  }
  __device__ uint32_t source_empty(int slot) const {
    return address + 16 * (kMaxWeightSlots + slot) + 8;
  }
  __device__ OutputColumn* outputs(int group) const {
    return reinterpret_cast<OutputColumn*>(base + Shape::kOutputs) + group * Shape::kPassColumns;
  }
  __device__ float* staging(int group) const {
    return reinterpret_cast<float*>(base + Shape::kStaging) + group * Shape::kStagingFloats;
  }
  __device__ int weights(int slot) const {
    return Shape::kRings + slot * Shape::kUnitBytes;
  }
  __device__ int source(int slot) const {
    return Shape::kRings + tiling.weight_slots * Shape::kUnitBytes +
        slot * Shape::source_bytes(tiling.source_columns);
  }
};

struct Ring {
  int slots;
  int slot = 0;
  int parity = 0;

  __device__ explicit Ring(int slots) : slots(slots) {}

  __device__ void advance() {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// ---- The copying warp ----------------------------------------------------------------------

// Copies to shared memory by one warp; `barrier` is told when it has come.
__device__ inline void copy(char* base, int to, const char* from, int bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x % kWarp == 0) {
    bulk_load(shared_address(base) + to, from, bytes, barrier);
  }
#else
  for (int i = threadIdx.x % kWarp * 16; i < bytes; i += kWarp * 16) {
    *reinterpret_cast<uint4*>(base + to + i) = __ldg(reinterpret_cast<const uint4*>(from + i));
  }
#endif
}

// Waits for a slot and announces the bytes that will be copied to it.
__device__ inline void begin_copies(uint32_t empty, uint32_t full, int parity, int bytes) {
  barrier_wait(empty, parity);
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x % kWarp == 0) {
    barrier_expect(full, bytes);
  }
#endif
  __syncwarp();
}

__device__ inline void end_copies(uint32_t full) {
#if __CUDA_ARCH__ < 900
  __syncwarp();
  if (threadIdx.x % kWarp == 0) {
    barrier_arrive(full);
  }
#endif
}

template <typename Shape>
__device__ void copy_factors(
    const Problem& p, const Tiling& tiling, const char* weight, const char* source, const Shared<Shape>& shared) {
  using Format = typename Shape::Format;
  Ring weights(tiling.weight_slots), sources(tiling.source_slots);
  const int row_bytes = tiling.source_columns * 16;
  bool resident = false;
  for (int64_t index = blockIdx.x; index < tiling.tiles; index += gridDim.x) {
    const auto tile = find_tile<Shape>(tiling, index);
    const auto* units = weight + (tile.group * tiling.row_tiles + tile.row_tile) * tiling.units * Shape::kUnitBytes;
    const auto* rows = source +
        (tile.group * tiling.chunks * kChunkBlocks * Format::kPlanes * tiling.packed_columns +
         tile.column_tile * Shape::kColumns) *
            16;
    for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
      const auto full = shared.source_full(sources.slot);
      begin_copies(
          shared.source_empty(sources.slot), full, sources.parity ^ 1, Shape::source_bytes(tiling.source_columns));
#pragma unroll
      for (int block = 0; block < kChunkBlocks; ++block) {
#pragma unroll
        for (int plane = 0; plane < Format::kPlanes; ++plane) {
          copy(
              shared.base,
              shared.source(sources.slot) + (plane * kChunkBlocks + block) * row_bytes,
              rows,
              row_bytes,
              full);
          rows += tiling.packed_columns * 16;
        }
      }
      end_copies(full);
      sources.advance();
      for (int j = 0; j < p.taps && !resident; ++j) {
        const auto unit_full = shared.weight_full(weights.slot);
        begin_copies(shared.weight_empty(weights.slot), unit_full, weights.parity ^ 1, Shape::kUnitBytes);
        copy(shared.base, shared.weights(weights.slot), units, Shape::kUnitBytes, unit_full);
        end_copies(unit_full);
        units += Shape::kUnitBytes;
        weights.advance();
      }
    }
    resident = tiling.resident;
  }
}

// ---- Products ------------------------------------------------------------------------------

// The places of a unit's factors in shared memory, for one warpgroup.
struct Factors {
  uint32_t weights;
  uint32_t source;
  uint32_t source_block; // bytes between blocks
};

#if CONV_TRANSPOSE1D_WGMMA

// Starts the products of one unit.
template <typename Shape, int kSums>
__device__ void start_products(float (&sums)[kSums], const Factors& factors, bool from_zero) {
  using Format = typename Shape::Format;
  using List = Products<Format>;
  constexpr int kWeightBlock = Shape::kRows * 16;
  const auto weights = descriptor(factors.weights, kWeightBlock);
  const auto source = descriptor(factors.source, factors.source_block);
  wgmma_fence();
  // The leading products last.
#pragma unroll
  for (int part = 0; part < (List::kCount > 1 ? 2 : 1); ++part) {
#pragma unroll
    for (int step = 0; step < kChunkBlocks / 2; ++step) {
#pragma unroll
      for (int i = 0; i < List::kCount; ++i) {
        if (List::kCount == 1 || (i == List::kCount - 1) == (part == 1)) {
          const auto a = weights +
              ((List::weight_plane(i) * kChunkBlocks + 2 * step) * kWeightBlock >> 4);
          const auto b = source +
              ((List::source_plane(i) * kChunkBlocks + 2 * step) * factors.source_block >> 4);
          wgmma<Format::kElement>(sums, a, b, !(from_zero && part == 0 && step == 0 && i == 0));
        }
      }
    }
  }
  wgmma_commit();
}

#else

// Of kAtOnce blocks of 8 columns in turn, so that sums of one unit take few registers.
template <typename Shape, int kSums>
__device__ void add_products(float (&sums)[kSums], const Factors& factors) {
  using Format = typename Shape::Format;
  using List = Products<Format>;
  constexpr int kSteps = kChunkBlocks / 2, kAtOnce = kSums % 8 == 0 ? 2 : 1;
  constexpr int kWeightBlock = Shape::kRows * 16;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
  const int row = lane % 8, matrix = lane / 8;
  uint32_t a[Format::kPlanes][kSteps][4];
#pragma unroll
  for (int plane = 0; plane < Format::kPlanes; ++plane) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // Matrices: rows 0-7 and 8-15 of the step's first block, then of its second.
      load_matrices(
          factors.weights + (plane * kChunkBlocks + 2 * step + matrix / 2) * kWeightBlock +
              (16 * warp + matrix % 2 * 8 + row) * 16,
          a[plane][step]);
    }
  }
#pragma unroll
  for (int n = 0; n < kSums / 4; n += kAtOnce) {
    float part[kAtOnce * 4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[Format::kPlanes][4];
#pragma unroll
      for (int plane = 0; plane < Format::kPlanes; ++plane) {
        // Matrices: columns 0-7 of both blocks, then 8-15.
        load_matrices(
            factors.source + (plane * kChunkBlocks + 2 * step + matrix % 2) * factors.source_block +
                (n * 8 + matrix / 2 % kAtOnce * 8 + row) * 16,
            b[plane]);
      }
#pragma unroll
      for (int i = 0; i < List::kCount; ++i) {
#pragma unroll
        for (int m = 0; m < kAtOnce; ++m) {
          const auto& from = b[List::source_plane(i)];
          mma<Format::kElement>(part + 4 * m, a[List::weight_plane(i)][step], from[2 * m], from[2 * m + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce * 4; ++i) {
      sums[n * 4 + i] += part[i];
    }
  }
}

#endif

// ---- Storing -------------------------------------------------------------------------------

__device__ inline bool is_finite(float value) {
  return fabsf(value) < __int_as_float(0x7F800000);
}

// Whether any of a warpgroup's threads says so.
__device__ inline bool any_of_warpgroup(int barrier, bool value) {
  int result;
  asm volatile(
      "{\n .reg .pred p, q;\n setp.ne.b32 p, %3, 0;\n bar.red.or.pred q, %1, %2, p;\n selp.b32 %0, 1, 0, q;\n}"
      : "=r"(result)
      : "r"(barrier), "r"(kWarpgroup), "r"(static_cast<int>(value))
      : "memory");
  return result != 0;
}

template <typename scalar_t>
__device__ __noinline__ float plain_sum(
    const Problem& p, const Tensors<scalar_t>& t, int64_t group, int64_t row, int64_t n, int64_t column) {
  float sums[1] = {};
  plain_sums(p, t, n, group, row / p.phases, 1, row % p.phases, column, sums);
  return sums[0];
}

// A pass of 32 columns that all exist, in one sample: a warp interleaves the phases of its 16 rows' channels in shared
// memory and stores each channel in one stretch. `out` is where the first begins, `channels` how many exist.
template <int kPhases, typename scalar_t>
__device__ __forceinline__ void store_stretches(
    const float* sums, const float (&bias)[2], float* staging, scalar_t* out, int64_t out_length, int64_t channels) {
  constexpr int kRuns = 16 / kPhases;
  // Few conflicts between banks, and 16 rows fit in the warp's part of the staging memory.
  constexpr int kPitch = kPhases == 1 ? 40 : 32 * kPhases + (kPhases == 2 ? 2 : kPhases == 4 ? 4 : 8);
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      auto* to = staging + row / kPhases * kPitch + (n * 8 + lane % 4 * 2) * kPhases + row % kPhases;
      to[0] = sums[n * 4 + half * 2] + bias[half];
      to[kPhases] = sums[n * 4 + half * 2 + 1] + bias[half];
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int run = i / kPhases, place = i % kPhases * kWarp + lane;
    const auto value = narrow<scalar_t>(staging[run * kPitch + place]);
    if (run < channels) {
      out[run * out_length + place] = value;
    }
  }
  static_assert(kRuns * kPitch <= 16 * 40);
  __syncwarp();
}

// Where a tile's sums of one warpgroup belong, and the way there.
template <typename Shape>
struct Store {
  using scalar_t = typename Shape::Format::scalar_t;
  const Problem& p;
  const Tiling& tiling;
  const Tensors<scalar_t>& t;
  const Shared<Shape>& shared;
  const int64_t group;
  const int warpgroup;
  const int64_t first_row;
  int64_t n;
  int64_t column; // of the sample, at which the pass begins
  int flags; // of the factors' Extremes

  __device__ int barrier() const {
    return 1 + warpgroup;
  }

  // Any pass: element by element. Non-finite sums are computed again in any case.
  __device__ void store_elements(const float* sums) {
    const int thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarp;
    auto* staging = shared.staging(warpgroup);
    auto* columns = shared.outputs(warpgroup);
    if (thread < Shape::kPassColumns) {
      const auto pitch = p.pitch();
      const auto sample = n + (column + thread) / pitch, within = (column + thread) % pitch;
      const auto o = p.out_stride * within + p.out_base;
      const bool exists = sample < p.batch && within < p.columns;
      columns[thread] = {
          (sample * p.groups + group) * p.out_channels * p.out_length + o,
          static_cast<int32_t>(max(-o, int64_t(0))),
          static_cast<int32_t>(exists ? min(p.out_stride, p.out_length - o) : 0)};
    }
    const int row = thread / kWarp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < Shape::kPassColumns / 8; ++i) {
      auto* to = staging + row * Shape::kStagingPitch + i * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = make_float2(sums[i * 4], sums[i * 4 + 1]);
      *reinterpret_cast<float2*>(to + 8 * Shape::kStagingPitch) = make_float2(sums[i * 4 + 2], sums[i * 4 + 3]);
    }
    named_barrier(barrier(), kWarpgroup);
    const float least = Extremes::least_sum(flags);
    const int gap = static_cast<int>(p.gap);
    const auto outputs = static_cast<uint32_t>(tiling.rows_per_warpgroup / tiling.run) * tiling.per_run.value;
    for (uint32_t i = thread; i < outputs; i += kWarpgroup) {
      const auto run = tiling.per_run.divide(i);
      const auto in_run = i - run * tiling.per_run.value;
      const auto index = static_cast<int>(tiling.per_column.divide(in_run));
      const auto in_column = static_cast<int>(in_run - index * tiling.per_column.value);
      const int in_gap = gap == 1 ? 0 : in_column % gap;
      const int local = static_cast<int>(run) * tiling.run + (gap == 1 ? in_column : in_column / gap);
      const auto flat_row = first_row + local;
      const auto place = columns[index];
      // The place among the outputs of a column.
      const auto channel = p.phases <= kGroupRows ? first_row / p.phases + run : flat_row / p.phases;
      const auto within = p.phases <= kGroupRows ? in_column : flat_row % p.phases * gap + in_gap;
      if (channel < p.out_channels && within >= place.first && within < place.last) {
        float value = 0;
        if (in_gap == 0) {
          value = staging[local * Shape::kStagingPitch + index];
          if (!(fabsf(value) >= least) || !is_finite(value)) {
            const auto pitch = p.pitch();
            value = plain_sum(
                p, t, group, flat_row, n + (column + index) / pitch, (column + index) % pitch);
          }
        }
        if (t.bias) {
          value += widen(t.bias[group * p.out_channels + channel]);
        }
        t.out[place.offset + channel * p.out_length + within] = narrow<scalar_t>(value);
      }
    }
    named_barrier(barrier(), kWarpgroup);
  }

  // A pass of 32 columns that all exist, in one sample, of any number of phases.
  __device__ void store_phases(const float* sums) {
    const int thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarp;
    auto* staging = shared.staging(warpgroup);
    const int phases = tiling.run, in_run = Shape::kPassColumns * phases, pitch = in_run + phases % 2 + 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = thread / kWarp * 16 + lane / 4 + 8 * half;
      auto* to = staging + row / phases * pitch + lane % 4 * 2 * phases + row % phases;
      if (row < tiling.rows_per_warpgroup) {
#pragma unroll
        for (int i = 0; i < Shape::kPassColumns / 8; ++i) {
          to[i * 8 * phases] = sums[i * 4 + half * 2];
          to[(i * 8 + 1) * phases] = sums[i * 4 + half * 2 + 1];
        }
      }
    }
    named_barrier(barrier(), kWarpgroup);
    const auto first_channel = first_row / p.phases, first_phase = first_row % p.phases;
    for (int run = 0; run < tiling.rows_per_warpgroup / phases; ++run) {
      const auto channel = first_channel + run;
      if (channel >= p.out_channels) {
        break;
      }
      const float bias = t.bias ? widen(t.bias[group * p.out_channels + channel]) : 0.0f;
      const auto* from = staging + run * pitch;
      auto* to = t.out + ((n * p.groups + group) * p.out_channels + channel) * p.out_length + p.out_base +
          p.out_stride * column + first_phase;
      for (int i = thread; i < in_run; i += kWarpgroup) {
        // Where a channel has more phases than there are rows, those here are a part of each column.
        const auto place = p.phases == phases
            ? i
            : i / kGroupRows * static_cast<int>(p.phases) + i % kGroupRows;
        to[place] = narrow<scalar_t>(from[i] + bias);
      }
    }
    named_barrier(barrier(), kWarpgroup);
  }

  __device__ void run(const float (&sums)[Shape::kSums]) {
    const int warp = threadIdx.x % kWarpgroup / kWarp, lane = threadIdx.x % kWarp;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      finite = finite && is_finite(sums[i]);
    }
    if constexpr (Shape::Format::kExact) {
      flags = (any_of_warpgroup(barrier(), flags & Extremes::kHasSmall) ? Extremes::kHasSmall : 0) |
          (any_of_warpgroup(barrier(), flags & Extremes::kHasLarge) ? Extremes::kHasLarge : 0);
    }
    const bool elementwise = any_of_warpgroup(barrier(), flags & Extremes::kHasSmall || !finite) || p.gap > 1 ||
        (p.phases > kGroupRows && p.phases % kGroupRows != 0);
    const auto channel = (first_row + 16 * warp) / p.phases;
    auto* staging = shared.staging(warpgroup) + warp * Shape::kStagingFloats / 4;
    float bias[2] = {};
    if (t.bias) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto row_channel = (first_row + 16 * warp + lane / 4 + 8 * half) / p.phases;
        bias[half] = row_channel < p.out_channels ? widen(t.bias[group * p.out_channels + row_channel]) : 0.0f;
      }
    }
#pragma unroll
    for (int pass = 0; pass < Shape::kGroupColumns / Shape::kPassColumns; ++pass) {
      const auto* from = sums + pass * Shape::kPassColumns / 2;
      const auto o = p.out_stride * column + p.out_base;
      if (n < p.batch) {
        if (elementwise || column + Shape::kPassColumns > p.columns || o < 0 ||
            o + p.out_stride * Shape::kPassColumns > p.out_length) {
          store_elements(from);
        } else {
          auto* out = t.out + ((n * p.groups + group) * p.out_channels + channel) * p.out_length + o;
          const auto channels = p.out_channels - channel;
          switch (p.phases) {
            case 1:
              store_stretches<1>(from, bias, staging, out, p.out_length, channels);
              break;
            case 2:
              store_stretches<2>(from, bias, staging, out, p.out_length, channels);
              break;
            case 4:
              store_stretches<4>(from, bias, staging, out, p.out_length, channels);
              break;
            case 8:
              store_stretches<8>(from, bias, staging, out, p.out_length, channels);
              break;
            default:
              store_phases(from);
          }
        }
      }
      column += Shape::kPassColumns;
      while (column >= p.pitch()) {
        column -= p.pitch();
        ++n;
      }
    }
  }
};

template <typename Shape>
__device__ void multiply(
    const Problem& p,
    const Tiling& tiling,
    const Tensors<typename Shape::Format::scalar_t>& t,
    const int* source_flags,
    const Shared<Shape>& shared) {
  using Format = typename Shape::Format;
  const int warpgroup = threadIdx.x / kWarpgroup;
  const int row_group = warpgroup / Shape::kColumnGroups, column_group = warpgroup % Shape::kColumnGroups;
  const bool leader = threadIdx.x % kWarp == 0;
  const auto source_block = static_cast<uint32_t>(tiling.source_columns) * 16;
  Ring weights(tiling.weight_slots), sources(tiling.source_slots);
  for (int64_t index = blockIdx.x; index < tiling.tiles; index += gridDim.x) {
    const auto tile = find_tile<Shape>(tiling, index);
    float sums[Shape::kSums];
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      sums[i] = 0;
    }
    int flags = 0;
    int done_weights = -1, done_source = -1; // slots whose last products are on their way
    const auto release = [&] {
      if (leader) {
        if (done_weights >= 0 && !tiling.resident) {
          barrier_arrive(shared.weight_empty(done_weights));
        }
        if (done_source >= 0) {
          barrier_arrive(shared.source_empty(done_source));
        }
      }
    };
    for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
      barrier_wait(shared.source_full(sources.slot), sources.parity);
      for (int j = 0; j < p.taps; ++j) {
        barrier_wait(shared.weight_full(weights.slot), weights.parity);
        const int unit = shared.weights(weights.slot);
        if constexpr (Format::kExact) {
          if (leader) { // the lane that will give the slot back; Store asks all
            flags |= *reinterpret_cast<int*>(shared.base + unit + Shape::kUnitBytes - kUnitTrailer);
          }
        }
        Factors factors{
            shared.address + unit + row_group * kGroupRows * 16,
            shared.address + shared.source(sources.slot) +
                (column_group * Shape::kGroupColumns + static_cast<int>(p.shift) * j) * 16,
            source_block};
        const int this_weights = weights.slot, this_source = j == p.taps - 1 ? sources.slot : -1;
#if CONV_TRANSPOSE1D_WGMMA
        if constexpr (Format::kExact) {
          // Tensor cores cut sums off instead of rounding them, so no more than a unit is summed there.
          constexpr int kPart = 64;
#pragma unroll
          for (int first = 0; first < Shape::kSums; first += kPart) {
            float part[kPart];
            start_products<Shape>(part, factors, true);
            factors.source += 2 * kPart * 16;
            wgmma_wait<0>();
            keep_in_registers(part);
            if (first + kPart == Shape::kSums) {
              done_weights = this_weights;
              done_source = this_source;
              release();
            }
#pragma unroll
            for (int i = 0; i < kPart; ++i) {
              sums[first + i] += part[i];
            }
          }
        } else {
          start_products<Shape>(sums, factors, false);
          wgmma_wait<1>();
          release(); // the unit before
          done_weights = this_weights;
          done_source = this_source;
        }
#else
        add_products<Shape>(sums, factors);
        __syncwarp();
        done_weights = this_weights;
        done_source = this_source;
        release();
#endif
        weights.advance();
      }
      sources.advance();
    }
#if CONV_TRANSPOSE1D_WGMMA
    if constexpr (!Format::kExact) {
      wgmma_wait<0>();
      keep_in_registers(sums);
      release();
    }
#endif
    if (tiling.resident) {
      weights = Ring(tiling.weight_slots); // full once and for all
    }
    if constexpr (Format::kExact) {
      // Those of all blocks that packed the tile's source; Store asks all threads.
      const auto across = ceil_div(tiling.packed_columns, kPackThreads);
      const auto first = tile.column_tile * Shape::kColumns / kPackThreads;
      const auto last = (tile.column_tile * Shape::kColumns + tiling.source_columns - 1) / kPackThreads;
      for (int chunk = threadIdx.x % kWarpgroup; chunk < tiling.chunks; chunk += kWarpgroup) {
        for (auto block = first; block <= last; ++block) {
          flags |= source_flags[(tile.group * tiling.chunks + chunk) * across + block];
        }
      }
    }
    const auto column = tile.column_tile * Shape::kColumns + column_group * Shape::kGroupColumns;
    Store<Shape>{
        p,
        tiling,
        t,
        shared,
        tile.group,
        warpgroup,
        (tile.row_tile * Shape::kRowGroups + row_group) * tiling.rows_per_warpgroup,
        column / p.pitch(),
        column % p.pitch(),
        flags}
        .run(sums);
  }
}

// ---- Kernel and launch ---------------------------------------------------------------------

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) gemm_kernel(
    const __grid_constant__ Problem p,
    const __grid_constant__ Tiling tiling,
    const __grid_constant__ Tensors<typename Shape::Format::scalar_t> t,
    const char* weight,
    const char* source,
    const int* source_flags) {
  extern __shared__ __align__(128) char memory[];
  const Shared<Shape> shared{memory, shared_address(memory), tiling};
  constexpr int kConsumerWarps = Shape::kConsumers / kWarp;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxWeightSlots; ++i) {
      barrier_init(shared.weight_full(i), 1);
      barrier_init(shared.weight_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < kMaxSourceSlots; ++i) {
      barrier_init(shared.source_full(i), 1);
      barrier_init(shared.source_empty(i), kConsumerWarps);
    }
    fence_async();
  }
  __syncthreads();
  // Registers of all threads together stay those of 3 warpgroups at 168.
  if (threadIdx.x >= Shape::kConsumers) {
#if CONV_TRANSPOSE1D_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
    if (threadIdx.x < Shape::kConsumers + kWarp) {
      copy_factors<Shape>(p, tiling, weight, source, shared);
    }
  } else {
#if CONV_TRANSPOSE1D_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
#endif
    multiply<Shape>(p, tiling, t, source_flags, shared);
  }
}

// Whether the matrix kernels can take a problem at all.
inline bool fits_gemm(const Problem& p) {
  constexpr int64_t kSmallNumber = 1 << 28;
  return !p.has_phase_offsets() && p.channels > 0 && p.length > 0 && p.shift * (p.taps - 1) <= kMaxHalo &&
      p.position_stride < kSmallNumber / 256 && p.out_stride < (1 << 16) && p.class_step * p.classes < kSmallNumber &&
      std::abs(p.base) < kSmallNumber && p.columns < kSmallNumber && p.pitch() * p.position_stride < kSmallNumber * 2 &&
      p.length < kSmallNumber * 2 && p.channels * p.length < (int64_t(1) << 31) - p.class_step * p.classes &&
      p.depth() * p.taps < kSmallNumber;
}

struct Device {
  int processors;
  int shared_bytes; // that a block can have
};

// Of the L2 cache, for the part of the source that all row tiles use in turn.
constexpr int64_t kSourceBytesInCache = 24 << 20;

template <typename Shape>
Tiling make_tiling(const Problem& p, const Device& device) {
  const auto rows = p.out_channels * p.phases;
  const auto run = static_cast<int>(std::min<int64_t>(p.phases, kGroupRows));
  const auto rows_per_warpgroup = kGroupRows / run * run;
  const auto row_tiles = ceil_div(ceil_div(rows, rows_per_warpgroup), Shape::kRowGroups);
  const auto columns = p.pitch() * p.batch;
  const auto column_tiles = ceil_div(columns, Shape::kColumns);
  const auto tile_bytes = Shape::kColumns * p.channels * std::min(p.position_stride, p.length) *
      static_cast<int64_t>(sizeof(typename Shape::Format::scalar_t));
  const auto in_turn = std::min(column_tiles, std::max<int64_t>(1, kSourceBytesInCache / tile_bytes));
  const auto chunks = static_cast<int>(ceil_div(p.depth(), Shape::kChunk));
  const auto units = static_cast<int>(chunks * p.taps);
  const auto source_columns = static_cast<int>(Shape::kColumns + p.shift * (p.taps - 1));
  const auto memory = device.shared_bytes - Shape::kRings;
  const auto source_slots = Shape::Format::kPlanes == 1 ? kMaxSourceSlots : Shape::kColumns > 128 ? 2 : 3;
  const auto weight_slots = std::min<int>(
      kMaxWeightSlots, (memory - source_slots * Shape::source_bytes(source_columns)) / Shape::kUnitBytes);
  return {
      rows,
      rows_per_warpgroup,
      run,
      row_tiles,
      columns,
      column_tiles,
      in_turn,
      p.groups * row_tiles * column_tiles,
      chunks,
      units,
      source_columns,
      column_tiles * Shape::kColumns + p.shift * (p.taps - 1),
      weight_slots,
      source_slots,
      p.groups * row_tiles == 1 && units <= weight_slots,
      FastDivisor(static_cast<uint32_t>(run * p.gap)),
      FastDivisor(static_cast<uint32_t>(run * p.gap * Shape::kPassColumns))};
}

// Parts of the memory that the kernels need besides their tensors.
template <typename Shape>
struct Workspace {
  int64_t weight_blocks; // of the packing kernel
  int64_t source_blocks;
  int64_t source; // where the packed source begins, behind the packed weights
  int64_t flags;
  int64_t bytes;

  Workspace(const Problem& p, const Tiling& tiling)
      : weight_blocks(p.groups * tiling.row_tiles * tiling.units),
        source_blocks(ceil_div(tiling.packed_columns, kPackThreads) * tiling.chunks * p.groups),
        source(weight_blocks * Shape::kUnitBytes),
        flags(source + p.groups * tiling.chunks * kChunkBlocks * Shape::Format::kPlanes * tiling.packed_columns * 16),
        bytes(flags + source_blocks * static_cast<int64_t>(sizeof(int))) {}
};

// `memory`: Workspace's bytes, 128-byte aligned.
template <typename Shape>
void launch_gemm(
    const Problem& p,
    const Tiling& tiling,
    const Tensors<typename Shape::Format::scalar_t>& t,
    char* memory,
    const Device& device,
    cudaStream_t stream) {
  const Workspace<Shape> workspace(p, tiling);
  auto* source = memory + workspace.source;
  auto* flags = reinterpret_cast<int*>(memory + workspace.flags);
  const auto pack_blocks = static_cast<unsigned>(workspace.weight_blocks + workspace.source_blocks);
  pack_kernel<Shape><<<pack_blocks, kPackThreads, 0, stream>>>(
      p, tiling, t.weight, t.source, memory, source, flags, nullptr);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const int bytes = Shape::kRings + tiling.weight_slots * Shape::kUnitBytes +
      tiling.source_slots * Shape::source_bytes(tiling.source_columns);
  C10_CUDA_CHECK(cudaFuncSetAttribute(gemm_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiling.tiles, device.processors));
  gemm_kernel<Shape><<<grid, Shape::kThreads, bytes, stream>>>(p, tiling, t, memory, source, flags);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace at::native::conv_transpose1d
