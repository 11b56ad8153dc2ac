// conv_transpose1d where the traffic to memory takes longer than the products: few rows, little depth, long samples.
//
// As in ConvTranspose1dGemm.cuh, but nothing is packed before except the weights, which a block (one warpgroup) keeps
// in shared memory. A block loads the source of its next tile into registers while it works on one, splits it into
// shared memory, multiplies, interleaves phases and bias in the place of the source, and stores each channel by one
// bulk copy. Blocks take tiles in order from a counter, so that what is written at a time lies close together. The
// stretch that a tile stores of a channel is moved to the next multiple of 32 bytes, for which it computes some columns
// more.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dGemm.cuh>

namespace at::native::conv_transpose1d {

// kChunks: of depth.
template <typename Format_, int kChunks_>
struct ThinShape
    : TileShape<Format_, 1, 1, 128 + 32 / static_cast<int>(sizeof(typename Format_::scalar_t))> {
  using Format = Format_;
  using Base = TileShape<Format_, 1, 1, 128 + 32 / static_cast<int>(sizeof(typename Format_::scalar_t))>;
  static constexpr int kChunks = kChunks_;
  static constexpr int kBlocks = kChunks * kChunkBlocks;
  static constexpr int kTile = 128; // columns that a tile stores
  static constexpr int kAligned = 32 / sizeof(typename Format::scalar_t);
  static constexpr int kBlocksPerProcessor = sizeof(typename Format::scalar_t) == 2 && kChunks == 1 ? 3 : 2;
  static constexpr int kExtras = kBlocks > 4 ? 2 : 1; // blocks of other columns that a thread loads
  // The format whose weights stay in shared memory. Those of ExactFormat are read unit by unit for the tiles that need
  // it.
  using Resident = std::conditional_t<Format::kExact, typename Base::Scaled, Base>;

  static constexpr __host__ __device__ int staging_pitch(int out_stride) {
    // A multiple of kAligned with few conflicts between the banks of 8 channels.
    constexpr int kBanks = 128 / sizeof(typename Format::scalar_t);
    return (Base::kColumns * out_stride + 2 * kAligned + kBanks - 1) / kBanks * kBanks + kAligned;
  }
  // Of a warp.
  static __host__ __device__ int staging_bytes(int out_stride, int phases) {
    return 16 / phases * staging_pitch(out_stride) * static_cast<int>(sizeof(typename Format::scalar_t));
  }
};

// Everything in shared memory, from its beginning on: a barrier, the next tile and the warps' extremes, weights, source
// (and behind it a unit of weights), staging.
struct ThinLayout {
  int source; // and staging
  int unit;
  int bytes;
};

template <typename Shape>
ThinLayout thin_layout(const Problem& p, const Tiling& tiling) {
  constexpr int kHeader = 128;
  const int source = kHeader + tiling.units * Shape::Resident::kUnitBytes;
  const int unit = source + Shape::kChunks * Shape::source_bytes(tiling.source_columns);
  const auto staging = 4 * Shape::staging_bytes(static_cast<int>(p.out_stride), static_cast<int>(p.phases));
  return {source, unit, std::max(unit + (Shape::Format::kExact ? Shape::kUnitBytes : 0), source + staging)};
}

// The columns of a tile and of the halo around them, [0, kColumns + halo), as a thread loads them: one column of the
// tile proper, and for some threads one block of another column.
template <typename Shape>
struct ThinLoad {
  using Format = typename Shape::Format;
  using scalar_t = typename Format::scalar_t;
  scalar_t main[Shape::kBlocks][Format::kBlock];
  scalar_t extra[Shape::kExtras][Format::kBlock];
  int extra_column[Shape::kExtras]; // or -1
  int extra_block[Shape::kExtras];

  __device__ explicit ThinLoad(const Tiling& tiling) {
    const int halo = tiling.source_columns - Shape::kColumns;
    const int extras = tiling.source_columns - Shape::kTile;
#pragma unroll
    for (int i = 0; i < Shape::kExtras; ++i) {
      const int index = threadIdx.x + i * kWarpgroup;
      const int column = index % extras;
      extra_block[i] = index / extras;
      extra_column[i] = extra_block[i] >= Shape::kBlocks ? -1 : column < halo ? column : column + Shape::kTile;
    }
  }

  __device__ void load(const Problem& p, const Tiling& tiling, const scalar_t* source, int64_t n, int64_t column) {
    const int halo = tiling.source_columns - Shape::kColumns;
    const auto zero = narrow<scalar_t>(0.0f);
    const auto* sample = source + n * p.channels * p.length;
    const auto first = column + p.base;
    const auto channels = static_cast<int>(p.channels);
    const auto load = [&](int64_t u, bool exists, int block, scalar_t(&values)[Format::kBlock]) {
      const auto* from = sample + block * Format::kBlock * p.length + u;
      const int exist = exists && u >= 0 && u < p.length ? channels - block * Format::kBlock : 0;
#pragma unroll
      for (int e = 0; e < Format::kBlock; ++e) {
        asm("" : "+l"(from)); // or the compiler adds up anew what it is made of
        values[e] = e < exist ? __ldg(from) : zero;
        from += p.length;
      }
    };
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      load(first + halo + threadIdx.x, true, block, main[block]);
    }
#pragma unroll
    for (int i = 0; i < Shape::kExtras; ++i) {
      load(first + extra_column[i], extra_column[i] >= 0, extra_block[i], extra[i]);
    }
  }

  template <typename To>
  static __device__ void put(
      const Tiling& tiling,
      uint32_t memory,
      float scale,
      int block,
      int column,
      const scalar_t (&values)[Format::kBlock]) {
    uint32_t words[To::kPlanes][4];
    if constexpr (std::is_same_v<To, ScaledFormat>) {
      To::split(values, scale, words);
    } else {
      To::split(values, words);
    }
    const int chunk = block / kChunkBlocks, in_chunk = block % kChunkBlocks;
#pragma unroll
    for (int plane = 0; plane < To::kPlanes; ++plane) {
      const int place = (chunk * To::kPlanes + plane) * kChunkBlocks + in_chunk;
      store_shared(memory + (place * tiling.source_columns + column) * 16, words[plane]);
    }
  }

  // Into shared memory as terms of a format.
  template <typename To>
  __device__ void put(const Tiling& tiling, uint32_t memory, float scale = 1) const {
    const int halo = tiling.source_columns - Shape::kColumns;
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      put<To>(tiling, memory, scale, block, halo + static_cast<int>(threadIdx.x), main[block]);
    }
#pragma unroll
    for (int i = 0; i < Shape::kExtras; ++i) {
      if (extra_column[i] >= 0) {
        put<To>(tiling, memory, scale, extra_block[i], extra_column[i], extra[i]);
      }
    }
  }

  __device__ Extremes extremes() const {
    Extremes result;
#pragma unroll
    for (int e = 0; e < Format::kBlock; ++e) {
#pragma unroll
      for (int block = 0; block < Shape::kBlocks; ++block) {
        result.add(widen(main[block][e]));
      }
#pragma unroll
      for (int i = 0; i < Shape::kExtras; ++i) {
        result.add(widen(extra[i][e]));
      }
    }
    return result;
  }
};

template <typename scalar_t>
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
  if constexpr (std::is_same_v<scalar_t, __half>) {
    return as_word(__floats2half2_rn(first, second));
  } else {
    return as_word(__floats2bfloat162_rn(first, second));
  }
}

// A value and, behind it or before it, what lies between columns.
template <typename scalar_t>
__device__ __forceinline__ void store_with_gap(scalar_t* to, float value, float background, bool behind) {
  if constexpr (sizeof(scalar_t) == 2) {
    const auto word = pack_pair<scalar_t>(value, background);
    *reinterpret_cast<uint32_t*>(to) = behind ? word : __funnelshift_l(word, word, 16);
  } else {
    *reinterpret_cast<float2*>(to) = behind ? make_float2(value, background) : make_float2(background, value);
  }
}

// Stores the sums of a warp's 16 rows. Returns at once; what it has staged is read until bulk_wait_read.
template <typename Shape, int kPhases, int kGap>
__device__ __forceinline__ void store_thin(
    const Problem& p,
    const Tensors<typename Shape::Format::scalar_t>& t,
    char* memory,
    int64_t n,
    int64_t column,
    int first_row,
    const float (&sums)[Shape::kSums],
    const float (&bias)[2],
    float unscale,
    float least) { // sums below are computed again
  using scalar_t = typename Shape::Format::scalar_t;
  constexpr int kRuns = 16 / kPhases, kAligned = Shape::kAligned, kStride = kPhases * kGap;
  constexpr int kPitch = Shape::staging_pitch(kStride);
  const int lane = threadIdx.x % kWarp;
  auto* staging = reinterpret_cast<scalar_t*>(memory);
  const int first_channel = first_row / kPhases;
  const auto o = kStride * column + p.out_base; // of the tile's first column
  const auto first_place = (n * p.out_channels + first_channel) * p.out_length + o; // from t.out on
  // How far the stretch of a channel is moved to be aligned, as t.out is.
  const auto moved = [&](int run) {
    // Modulo 2^32 will do.
    const auto place = static_cast<unsigned>(first_place) + run * static_cast<unsigned>(p.out_length);
    return static_cast<int>((0u - place) % kAligned);
  };
  const auto start = [&](int half) {
    const int row = lane / 4 + 8 * half;
    return row / kPhases * kPitch + kAligned - moved(row / kPhases) + row % kPhases * kGap + lane % 4 * 2 * kStride;
  };
  float check = least; // NaN if any sum is infinite or NaN
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    auto* to = staging + start(half);
    const int odd = start(half) % 2; // with a gap of 2, columns are 2 apart
#pragma unroll
    for (int i = 0; i < Shape::kSums / 4; ++i) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const auto sum = sums[i * 4 + half * 2 + second];
        auto* column_to = to + (i * 8 + second) * kStride;
        const auto value = Shape::Format::kExact ? __fmaf_rn(sum, unscale, bias[half]) : sum + bias[half];
        check = __fmaf_rn(sum, 0.0f, check);
        if constexpr (kGap == 2) {
          // With the bias behind it, or that before it, whichever pair is aligned.
          store_with_gap(column_to - odd, value, bias[half], odd == 0);
        } else {
          column_to[0] = narrow<scalar_t>(value);
        }
      }
    }
  }
  if (__any_sync(0xFFFFFFFFu, check != 0)) {
    // From what was staged, since registers cannot be indexed.
#pragma unroll 1
    for (int i = 0; i < Shape::kSums; ++i) {
      const int half = i / 2 % 2, c = i / 4 * 8 + i % 2;
      const auto at = column + c + lane % 4 * 2;
      const auto row = first_row + lane / 4 + 8 * half;
      auto* to = staging + start(half) + c * kStride;
      const auto value = widen(*to) - bias[half];
      if ((!(fabsf(value) >= least) || !is_finite(value)) && at < p.columns && row < p.out_channels * kPhases) {
        *to = narrow<scalar_t>(plain_sum(p, t, 0, row, n, at) + bias[half]);
      }
    }
  }
  fence_async();
  __syncwarp();
  const auto channels = static_cast<int>(p.out_channels) - first_channel;
#if __CUDA_ARCH__ >= 900
  if (column > 0 && o + kAligned + Shape::kTile * kStride <= p.out_length) {
    if (lane < kRuns && lane < channels) {
      const auto place = first_place + lane * p.out_length + moved(lane);
      bulk_store(
          t.out + place,
          shared_address(staging + lane * kPitch + kAligned),
          Shape::kTile * kStride * static_cast<int>(sizeof(scalar_t)));
    }
    bulk_commit();
    return;
  }
#endif
  // The first and last tile of a sample begin and end with it.
  for (int run = 0; run < kRuns && run < channels; ++run) {
    const auto nominal = o + moved(run);
    const auto first = column == 0 ? 0 : nominal;
    const auto last = min(
        p.out_length,
        column + Shape::kTile >= p.columns ? p.out_length : nominal + static_cast<int64_t>(Shape::kTile) * kStride);
    auto* to = t.out + first_place - o + run * p.out_length;
    const auto* from = staging + run * kPitch + kAligned - nominal;
    for (auto i = first + lane; i < last; i += kWarp) {
      to[i] = from[i];
    }
  }
}

// The sums of a tile whose factors are in shared memory. Units of weights are there too, one after the other.
template <typename Shape, int kChunks, int kSums>
__device__ __forceinline__ void thin_sums(
    float (&sums)[kSums], uint32_t weights, uint32_t source, int source_columns, int taps, int shift) {
  using Format = typename Shape::Format;
  const auto source_block = static_cast<uint32_t>(source_columns) * 16;
  const auto factors = [&](int chunk, int j) {
    return Factors{
        weights + (chunk * taps + j) * Shape::kUnitBytes,
        source + chunk * Shape::source_bytes(source_columns) + shift * j * 16,
        source_block};
  };
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[i] = 0;
  }
#if CONV_TRANSPOSE1D_WGMMA
  constexpr bool kScaled = std::is_same_v<Format, ScaledFormat>;
  // In one chain: all, or what the second terms give. Unrolled, ptxas would wait for each product.
#pragma unroll 1
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    for (int j = 0; j < taps; ++j) {
      wgmma_fence();
      if constexpr (kScaled) {
        start_product<Shape>(sums, factors(chunk, j), 1, 0, false);
      }
      start_product<Shape>(sums, factors(chunk, j), 0, kScaled ? 1 : 0, false);
      wgmma_commit();
    }
  }
  wgmma_wait<0>();
  keep_in_registers(sums);
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i] *= 1 / ScaledFormat::kSecond;
    }
    // Of the leading products no more than a unit is summed on tensor cores, since they cut sums off instead of rounding.
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      for (int j = 0; j < taps; ++j) {
        float part[kSums];
        wgmma_fence();
        start_product<Shape>(part, factors(chunk, j), 0, 0, true);
        wgmma_commit();
        wgmma_wait<0>();
        keep_in_registers(part);
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          sums[i] += part[i];
        }
      }
    }
  }
#else
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    for (int j = 0; j < taps; ++j) {
      add_products<Shape>(sums, factors(chunk, j));
    }
  }
#endif
}

// The sums of a tile of ExactFormat, whose weights are brought to shared memory unit by unit.
template <typename Shape, int kSums>
__device__ __forceinline__ void thin_sums_exact(
    float (&sums)[kSums],
    const char* packed,
    char* unit,
    uint32_t source,
    int source_columns,
    int taps,
    int shift) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[i] = 0;
  }
#pragma unroll 1
  for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
#pragma unroll 1
    for (int j = 0; j < taps; ++j) {
      __syncthreads();
      for (int i = threadIdx.x * 16; i < Shape::kUnitBytes; i += kWarpgroup * 16) {
        *reinterpret_cast<uint4*>(unit + i) = __ldg(reinterpret_cast<const uint4*>(packed + i));
      }
      packed += Shape::kUnitBytes;
      fence_async();
      __syncthreads();
      const Factors factors{
          shared_address(unit),
          source + chunk * Shape::source_bytes(source_columns) + shift * j * 16,
          static_cast<uint32_t>(source_columns) * 16};
#if CONV_TRANSPOSE1D_WGMMA
      float part[kSums];
      start_products<typename Shape::Base>(part, factors, true);
      wgmma_wait<0>();
      keep_in_registers(part);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] += part[i];
      }
#else
      add_products<typename Shape::Base>(sums, factors);
#endif
    }
  }
}

template <typename Shape>
__global__ void __launch_bounds__(kWarpgroup, Shape::kBlocksPerProcessor) thin_kernel(
    const __grid_constant__ Problem p,
    const __grid_constant__ Tiling tiling,
    const __grid_constant__ Tensors<typename Shape::Format::scalar_t> t,
    const ThinLayout layout,
    const PackedWeights<typename Shape::Base> packed,
    int* counter) {
  using Format = typename Shape::Format;
  extern __shared__ __align__(128) char memory[];
  constexpr int kHeader = 128;
  auto* next = reinterpret_cast<volatile int*>(memory + 16);
  const auto address = shared_address(memory);
  using Resident = typename Shape::Resident;
  const int weight_bytes = tiling.units * Resident::kUnitBytes;
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    barrier_init(address, 1);
    fence_async();
    barrier_expect(address, weight_bytes);
    bulk_load(address + kHeader, packed.memory, weight_bytes, address);
  }
  __syncthreads();
  barrier_wait(address, 0);
#else
  for (int i = threadIdx.x * 16; i < weight_bytes; i += kWarpgroup * 16) {
    *reinterpret_cast<uint4*>(memory + kHeader + i) = __ldg(reinterpret_cast<const uint4*>(packed.memory + i));
  }
  __syncthreads();
#endif
  auto* of_warps = reinterpret_cast<uint2*>(memory + 32);
  float weight_unscale = 0;
  int weight_flags = 0;
  if constexpr (Format::kExact) {
    weight_unscale = packed_of<Resident>(memory + kHeader).unscale;
    weight_flags = packed_of<typename Shape::Base>(packed.unit(0)).flags; // of all weights
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float bias[2] = {};
  if (t.bias) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto channel = (16 * warp + 8 * half + lane / 4) / p.phases;
      bias[half] = channel < p.out_channels ? widen(t.bias[channel]) : 0.0f;
    }
  }
  char* staging = memory + layout.source +
      warp * Shape::staging_bytes(static_cast<int>(p.out_stride), static_cast<int>(p.phases));
  const auto tiles = static_cast<int>(tiling.tiles), per_sample = static_cast<int>(tiling.column_tiles);
  const auto taps = static_cast<int>(p.taps), shift = static_cast<int>(p.shift);
  ThinLoad<Shape> load(tiling);
  int tile = blockIdx.x, ticket = 0;
  if (threadIdx.x == 0) {
    ticket = atomicAdd(counter, 1);
  }
  if (tile < tiles) {
    load.load(p, tiling, t.source, tile / per_sample, static_cast<int64_t>(tile % per_sample) * Shape::kTile);
  }
  while (tile < tiles) {
    const int n = tile / per_sample;
    const auto column = static_cast<int64_t>(tile % per_sample) * Shape::kTile;
    bulk_wait_read();
    bool scaled = false;
    float unscale = 1;
    int flags = 0;
    if constexpr (Format::kExact) {
      auto extremes = load.extremes();
      join_block(extremes, of_warps, kWarpgroup / kWarp); // all have stored the tile before
      scaled = weight_unscale != 0 && extremes.fits_scaled();
      if (scaled) {
        unscale = weight_unscale * extremes.unscale();
        load.template put<ScaledFormat>(tiling, address + layout.source, extremes.scale());
      } else {
        flags = weight_flags | extremes.flags();
        load.template put<Format>(tiling, address + layout.source);
      }
    } else {
      __syncthreads(); // all have stored the tile before
      load.template put<Format>(tiling, address + layout.source);
    }
    if (threadIdx.x == 0) {
      *next = static_cast<int>(gridDim.x) + ticket;
    }
    fence_async();
    __syncthreads();
    tile = *next;
    if (threadIdx.x == 0) {
      ticket = atomicAdd(counter, 1);
    }
    if (tile < tiles) {
      load.load(p, tiling, t.source, tile / per_sample, static_cast<int64_t>(tile % per_sample) * Shape::kTile);
    }
    float sums[Shape::kSums];
    if constexpr (Format::kExact) {
      if (scaled) {
        thin_sums<Resident, Shape::kChunks>(
            sums, address + kHeader, address + layout.source, tiling.source_columns, taps, shift);
      } else {
        thin_sums_exact<Shape>(
            sums, packed.unit(0), memory + layout.unit, address + layout.source, tiling.source_columns, taps, shift);
      }
    } else {
      thin_sums<Resident, Shape::kChunks>(
          sums, address + kHeader, address + layout.source, tiling.source_columns, taps, shift);
    }
    __syncthreads(); // the source in shared memory is used up
    const auto store = [&](auto phases, auto gap) {
      store_thin<Shape, decltype(phases)::value, decltype(gap)::value>(
          p, t, staging, n, column, 16 * warp, sums, bias, unscale, Extremes::least_sum(flags));
    };
    constexpr std::integral_constant<int, 1> kOne;
    constexpr std::integral_constant<int, 2> kTwo;
    if (p.gap == 2) {
      store(kOne, kTwo);
    } else if (p.phases == 1) {
      store(kOne, kOne);
    } else if (p.phases == 2) {
      store(kTwo, kOne);
    } else if (p.phases == 4) {
      store(std::integral_constant<int, 4>(), kOne);
    } else {
      store(std::integral_constant<int, 8>(), kOne);
    }
  }
  bulk_wait_read();
}

// Whether this kernel can take a problem of fits_gemm, and it has enough tiles to be worth it.
template <typename Shape>
bool fits_thin(const Problem& p, const Tiling& tiling, const void* out, const Device& device) {
  const auto extras = tiling.source_columns - Shape::kTile;
  return p.groups == 1 && p.classes == 1 && p.position_stride == 1 && p.out_channels * p.phases <= kGroupRows &&
      (p.gap == 2 ? p.phases == 1
                  : p.gap == 1 && (p.phases == 1 || p.phases == 2 || p.phases == 4 || p.phases == 8)) &&
      p.depth() <= Shape::kChunks * Shape::kChunk && extras * Shape::kBlocks <= Shape::kExtras * kWarpgroup &&
      reinterpret_cast<uintptr_t>(out) % 32 == 0 && p.columns >= 8 * Shape::kTile &&
      tiling.tiles >= 4 * device.processors && tiling.tiles < (1 << 30) &&
      thin_layout<Shape>(p, tiling).bytes <= (device.shared_bytes + 1024) / Shape::kBlocksPerProcessor - 1024;
}

template <typename Shape>
Tiling make_thin_tiling(const Problem& p, const Device& device) {
  auto tiling = make_tiling<typename Shape::Base>(p, device);
  tiling.chunks = Shape::kChunks;
  tiling.units = Shape::kChunks * static_cast<int>(p.taps);
  tiling.column_tiles = ceil_div(p.columns, Shape::kTile);
  tiling.tiles = p.batch * tiling.column_tiles;
  return tiling;
}

// `memory`: the packed weights, and an int behind them.
template <typename Shape>
int64_t thin_bytes(const Tiling& tiling) {
  return PackedWeights<typename Shape::Base>::bytes(tiling.units) + static_cast<int64_t>(sizeof(int));
}

template <typename Shape>
__global__ void __launch_bounds__(kPackThreads) pack_thin_kernel(
    const __grid_constant__ Problem p,
    const __grid_constant__ Tiling tiling,
    const typename Shape::Format::scalar_t* weight,
    const PackedWeights<Shape> packed,
    int* counter) {
  pack_weight<Shape, true>(p, tiling, weight, packed, blockIdx.x);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *counter = 0; // for the next kernel
  }
}

template <typename Shape>
void launch_thin(
    const Problem& p,
    const Tiling& tiling,
    const Tensors<typename Shape::Format::scalar_t>& t,
    char* memory,
    const Device& device,
    cudaStream_t stream) {
  using Base = typename Shape::Base;
  const PackedWeights<Base> packed{memory, tiling.units};
  auto* counter = reinterpret_cast<int*>(memory + PackedWeights<Base>::bytes(tiling.units));
  pack_thin_kernel<Base><<<static_cast<unsigned>(tiling.units), kPackThreads, 0, stream>>>(
      p, tiling, t.weight, packed, counter);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const auto layout = thin_layout<Shape>(p, tiling);
  C10_CUDA_CHECK(
      cudaFuncSetAttribute(thin_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes));
  const auto grid =
      static_cast<unsigned>(std::min<int64_t>(tiling.tiles, device.processors * Shape::kBlocksPerProcessor));
  thin_kernel<Shape><<<grid, kWarpgroup, layout.bytes, stream>>>(p, tiling, t, layout, packed, counter);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace at::native::conv_transpose1d
