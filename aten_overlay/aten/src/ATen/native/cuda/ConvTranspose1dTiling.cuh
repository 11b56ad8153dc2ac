// How conv_transpose1d's matrix kernels cut a problem into tiles, and a block's shared memory into parts.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dFormats.cuh>
#include <ATen/native/cuda/ConvTranspose1dProblem.h>

#include <cstdlib>

namespace at::native::conv_transpose1d {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;
constexpr int kChunkBlocks = 4; // along the depth: two steps
constexpr int kMaxHalo = 64;
constexpr int kMaxWeightSlots = 8;
constexpr int kMaxSourceSlots = 4;
constexpr int kGroupRows = 64; // of a warpgroup
constexpr int kTogether = 16; // units whose sums are added up before they are added to those before, for accuracy
constexpr int kUnitTrailer = 128; // bytes behind a unit, beginning with Packed

// How numbers have been packed: as ScaledFormat, by this scale's inverse, or, if that is 0, as the format itself, with
// these flags of their Extremes.
struct Packed {
  float unscale;
  int flags;
};

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

// Of one problem.
struct Tiling {
  int64_t rows; // of a group
  int rows_per_warpgroup; // whole channels, where one has no more phases than that
  int run; // rows that lie in a row in the output: the phases of a channel, or all rows
  int64_t row_tiles;
  int64_t column_tiles; // of all samples
  int64_t column_tiles_in_turn; // so few that their source stays in the L2 cache until all rows have used it
  int64_t tiles;
  int chunks;
  int units;
  int source_columns; // a tile's columns and the halo
  int weight_slots;
  int source_slots;
  bool packs_inside; // the source, see pack_factors
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
  // Both formats are used where this is exact: this one for chunks of the source that ScaledFormat does not hold.
  using Scaled = TileShape<ScaledFormat, kRowGroups, kColumnGroups, kGroupColumns>;
  static constexpr int kChunk = kChunkBlocks * Format::kBlock; // source channels
  static constexpr int kUnitBytes = Format::kPlanes * kChunkBlocks * kRows * 16 + kUnitTrailer;
  static constexpr int kSums = kGroupColumns / 2;
  static constexpr int kPassColumns = 32; // of the epilogue
  static constexpr bool kPacksInside = Format::kExact && kColumns == kWarpgroup; // if the problem lets it
  static constexpr int kStagingPitch = kPassColumns + 8;
  static constexpr int kStagingFloats = kGroupRows * kStagingPitch;

  static constexpr int kPacked = 16 * (kMaxWeightSlots + kMaxSourceSlots); // behind the barriers
  static constexpr int kExtremes = kPacked + kMaxSourceSlots * static_cast<int>(sizeof(Packed)); // of warps
  static constexpr int kOutputs = kExtremes + kWarpgroup / kWarp * static_cast<int>(sizeof(uint2));
  static constexpr int kGroups = kRowGroups * kColumnGroups;
  static constexpr int kStaging = kOutputs + kGroups * 16 * kPassColumns;
  static constexpr int kRings = (kStaging + kGroups * kStagingFloats * 4 + 127) / 128 * 128;

  static __host__ __device__ int source_bytes(int source_columns) {
    return Format::kPlanes * kChunkBlocks * source_columns * 16;
  }
};

// ---- On the host ---------------------------------------------------------------------------

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
  const auto column_tiles = ceil_div(p.pitch() * p.batch, Shape::kColumns);
  const auto tile_bytes = Shape::kColumns * p.channels * std::min(p.position_stride, p.length) *
      static_cast<int64_t>(sizeof(typename Shape::Format::scalar_t));
  const auto in_turn = std::min(column_tiles, std::max<int64_t>(1, kSourceBytesInCache / tile_bytes));
  const auto chunks = static_cast<int>(ceil_div(p.depth(), Shape::kChunk));
  const auto units = static_cast<int>(chunks * p.taps);
  const auto source_columns = static_cast<int>(Shape::kColumns + p.shift * (p.taps - 1));
  const auto memory = device.shared_bytes - Shape::kRings;
  const auto source_slots = Shape::Format::kPlanes == 1 ? kMaxSourceSlots : Shape::kColumns > 128 ? 2 : 3;
  const bool packs_inside = Shape::kPacksInside && row_tiles == 1 && p.taps > 1 && units <= kTogether && p.classes == 1 &&
      p.position_stride == 1 && (source_columns - Shape::kColumns) * kChunkBlocks <= kWarpgroup;
  const auto weight_slots = std::min<int>(
      kMaxWeightSlots, (memory - source_slots * Shape::source_bytes(source_columns)) / Shape::kUnitBytes);
  return {
      rows,
      rows_per_warpgroup,
      run,
      row_tiles,
      column_tiles,
      in_turn,
      p.groups * row_tiles * column_tiles,
      chunks,
      units,
      source_columns,
      weight_slots,
      source_slots,
      packs_inside,
      !Shape::Format::kExact && p.groups * row_tiles == 1 && units <= weight_slots,
      FastDivisor(static_cast<uint32_t>(run * p.gap)),
      FastDivisor(static_cast<uint32_t>(run * p.gap * Shape::kPassColumns))};
}

// ---- On the device -------------------------------------------------------------------------

struct Tile {
  int64_t group;
  int64_t row_tile;
  int64_t column_tile;
};

// Of numbers that are not negative, mostly below 2^32, where it takes less time.
__device__ inline int64_t divide(int64_t a, int64_t b) {
  return (a | b) >> 32 == 0 ? static_cast<int64_t>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b)) : a / b;
}

template <typename Shape>
__device__ Tile find_tile(const Tiling& tiling, int64_t index) {
  const auto per_group = tiling.row_tiles * tiling.column_tiles;
  const auto group = divide(index, per_group);
  index -= group * per_group;
  const auto turn = divide(index, tiling.column_tiles_in_turn * tiling.row_tiles);
  index -= turn * tiling.column_tiles_in_turn * tiling.row_tiles;
  const auto first = turn * tiling.column_tiles_in_turn;
  const auto in_turn = min(tiling.column_tiles_in_turn, tiling.column_tiles - first);
  const auto row_tile = divide(index, in_turn);
  return {group, row_tile, first + index - row_tile * in_turn};
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
  __device__ Packed* packed(int slot) const {
    return reinterpret_cast<Packed*>(base + Shape::kPacked) + slot;
  }
  __device__ uint2* extremes() const {
    return reinterpret_cast<uint2*>(base + Shape::kExtremes);
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

} // namespace at::native::conv_transpose1d
