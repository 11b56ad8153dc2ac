// conv_transpose1d as a product of matrices on tensor cores: rows are the phases of the output channels, columns the
// positions of all samples one after the other, depth is source channels by taps (see ConvTranspose1dProblem.h).
//
// A kernel before brings both factors into the order in which tensor cores read them: the weights in units, of a chunk
// of source channels and one tap, and the source in chunks, [blocks][columns]. So all that a tile needs comes in bulk
// copies, which one warp of a block starts; the others multiply. A chunk of the source serves all taps, at columns
// shifted by each tap's reach, and by being packed all samples have become one row of columns with zeros between them.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dPack.cuh>
#include <ATen/native/cuda/ConvTranspose1dStore.cuh>
#include <ATen/native/cuda/ConvTranspose1dWgmma.cuh>

namespace at::native::conv_transpose1d {

// ---- The copying warp ----------------------------------------------------------------------

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

// Copies the units of a chunk's weights, by one warp.
template <typename Shape>
__device__ void copy_weights(
    const Problem& p,
    const PackedWeights<Shape>& weight,
    int64_t first_unit,
    bool scaled,
    const Shared<Shape>& shared,
    Ring& ring) {
  const int bytes = scaled ? Shape::Scaled::kUnitBytes : Shape::kUnitBytes;
  for (auto unit = first_unit; unit < first_unit + p.taps; ++unit) {
    const auto full = shared.weight_full(ring.slot);
    begin_copies(shared.weight_empty(ring.slot), full, ring.parity ^ 1, bytes);
    copy(
        shared.base,
        shared.weights(ring.slot),
        scaled ? weight.scaled_unit(unit) : weight.unit(unit),
        bytes,
        full);
    end_copies(full);
    ring.advance();
  }
}

template <typename Shape>
__device__ void copy_factors(
    const Problem& p,
    const Tiling& tiling,
    const PackedWeights<Shape>& weight,
    const char* source,
    const Packed* found,
    const Shared<Shape>& shared) {
  using Scaled = typename Shape::Scaled;
  Ring weights(tiling.weight_slots), sources(tiling.source_slots);
  const int source_bytes = Shape::source_bytes(tiling.source_columns);
  bool resident = false;
  for (int64_t index = blockIdx.x; index < tiling.tiles; index += gridDim.x) {
    const auto tile = find_tile<Shape>(tiling, index);
    const auto unit = (tile.group * tiling.row_tiles + tile.row_tile) * tiling.units;
    const auto first = (tile.group * tiling.column_tiles + tile.column_tile) * tiling.chunks;
    const auto packed_at = [&](int chunk) {
      return Shape::Format::kExact && chunk < tiling.chunks ? found[first + chunk] : Packed{0.0f, 0};
    };
    auto next = packed_at(0);
    for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
      const auto packed = next;
      next = packed_at(chunk + 1);
      const bool scaled = Shape::Format::kExact && packed.unscale != 0;
      const int bytes = scaled ? Scaled::source_bytes(tiling.source_columns) : source_bytes;
      const auto full = shared.source_full(sources.slot), empty = shared.source_empty(sources.slot);
      barrier_wait(empty, sources.parity ^ 1);
      if (threadIdx.x % kWarp == 0) {
        *shared.packed(sources.slot) = packed;
      }
      begin_copies(empty, full, sources.parity ^ 1, bytes);
      copy(shared.base, shared.source(sources.slot), source + (first + chunk) * source_bytes, bytes, full);
      end_copies(full);
      sources.advance();
      if (!resident) {
        copy_weights(p, weight, unit + chunk * p.taps, scaled, shared, weights);
      }
    }
    resident = tiling.resident;
  }
}

// Where one row tile is all there is, nothing is packed twice if the copying warpgroup packs the source of each tile
// itself, instead of a kernel before: a thread one column, and some threads a block of another column.
template <typename Shape>
__device__ void pack_factors(
    const Problem& p,
    const Tiling& tiling,
    const typename Shape::Format::scalar_t* source,
    const PackedWeights<Shape>& weight,
    const Shared<Shape>& shared) {
  using Format = typename Shape::Format;
  using Scaled = typename Shape::Scaled;
  constexpr int kBarrier = 1 + Shape::kGroups; // behind those of Store
  const int thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % kWarp, warp = thread / kWarp;
  const int columns = tiling.source_columns, halo = columns - Shape::kColumns;
  const bool has_extra = thread < halo * kChunkBlocks;
  const int extra_block = has_extra ? thread / halo : 0;
  const int extra_column = Shape::kColumns + (has_extra ? thread % halo : 0);
  const int channels = static_cast<int>(p.channels);
  Ring weights(tiling.weight_slots), sources(tiling.source_slots);
  for (int64_t index = blockIdx.x; index < tiling.tiles; index += gridDim.x) {
    const auto tile = find_tile<Shape>(tiling, index);
    // The place of a column in its channel 0, or null.
    const auto find = [&](int column) -> const float* {
      const auto flat = tile.column_tile * Shape::kColumns + column;
      const auto n = divide(flat, p.pitch()), u = flat - n * p.pitch() + p.base;
      return n < p.batch && u >= 0 && u < p.length ? source + (n * p.groups + tile.group) * p.channels * p.length + u
                                                   : nullptr;
    };
    const auto* main_from = find(thread);
    const auto* extra_from = has_extra ? find(extra_column) : nullptr;
    const auto load = [&](const float* from, int block, float(&values)[Format::kBlock]) {
      const int first = block * Format::kBlock, exist = from ? channels - first : 0;
      const auto* at = from + first * p.length;
#pragma unroll
      for (int e = 0; e < Format::kBlock; ++e) {
        asm("" : "+l"(at)); // or the compiler multiplies anew
        values[e] = e < exist ? __ldg(at) : 0.0f;
        at += p.length;
      }
    };
    for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
      float main[kChunkBlocks][Format::kBlock], extra[Format::kBlock];
#pragma unroll
      for (int block = 0; block < kChunkBlocks; ++block) {
        load(main_from, chunk * kChunkBlocks + block, main[block]);
      }
      if (has_extra) {
        load(extra_from, chunk * kChunkBlocks + extra_block, extra);
      }
      const auto first_unit = tile.group * tiling.units + chunk * p.taps;
      bool scaled = true;
      for (auto unit = first_unit; unit < first_unit + p.taps; ++unit) {
        scaled = scaled && packed_of<Scaled>(weight.scaled_unit(unit)).unscale != 0;
      }
      Extremes extremes;
#pragma unroll
      for (int e = 0; e < Format::kBlock; ++e) {
#pragma unroll
        for (int block = 0; block < kChunkBlocks; ++block) {
          extremes.add(main[block][e]);
        }
      }
      if (has_extra) {
#pragma unroll
        for (int e = 0; e < Format::kBlock; ++e) {
          extremes.add(extra[e]);
        }
      }
      extremes.join_warp();
      if (lane == 0) {
        shared.extremes()[warp] = make_uint2(extremes.least, extremes.most);
      }
      named_barrier(kBarrier, kWarpgroup);
      extremes.join(shared.extremes(), kWarpgroup / kWarp);
      scaled = scaled && extremes.fits_scaled();
      barrier_wait(shared.source_empty(sources.slot), sources.parity ^ 1);
      const auto to = shared.address + shared.source(sources.slot);
      const float scale = extremes.scale();
      const auto put = [&](const float(&values)[Format::kBlock], int block, int column) {
        const auto place = to + (block * columns + column) * 16;
        const auto plane_bytes = kChunkBlocks * columns * 16;
        if (scaled) {
          uint32_t words[ScaledFormat::kPlanes][4];
          ScaledFormat::split(values, scale, words);
#pragma unroll
          for (int plane = 0; plane < ScaledFormat::kPlanes; ++plane) {
            store_shared(place + plane * plane_bytes, words[plane]);
          }
        } else {
          uint32_t words[Format::kPlanes][4];
          Format::split(values, words);
#pragma unroll
          for (int plane = 0; plane < Format::kPlanes; ++plane) {
            store_shared(place + plane * plane_bytes, words[plane]);
          }
        }
      };
#pragma unroll
      for (int block = 0; block < kChunkBlocks; ++block) {
        put(main[block], block, thread);
      }
      if (has_extra) {
        put(extra, extra_block, extra_column);
      }
      if (thread == 0) {
        *shared.packed(sources.slot) = {scaled ? extremes.unscale() : 0.0f, extremes.flags()};
      }
      fence_async();
      named_barrier(kBarrier, kWarpgroup);
      if (thread == 0) {
        barrier_arrive(shared.source_full(sources.slot));
      }
      sources.advance();
      if (warp == 0) {
        copy_weights(p, weight, first_unit, scaled, shared, weights);
      }
    }
  }
}

// ---- Products ------------------------------------------------------------------------------

// Two warpgroups take turns on the tensor cores, so that one multiplies while the other adds up.
class Turns {
 public:
  __device__ explicit Turns(int warpgroup) : warpgroup_(warpgroup), waits_(warpgroup > 0) {}

  __device__ void begin() {
    if (waits_) {
      named_barrier(kFirst + warpgroup_, 2 * kWarpgroup);
    }
    waits_ = true;
  }

  __device__ void end() const {
    named_barrier_arrive(kFirst + 1 - warpgroup_, 2 * kWarpgroup);
  }

  // After the last turn of all.
  __device__ void finish() {
    if (warpgroup_ == 0 && waits_) {
      begin();
    }
  }

 private:
  static constexpr int kFirst = 4;
  int warpgroup_;
  bool waits_;
};

// What only the first lane reads, since it gives the slot back.
template <typename T>
__device__ T read_by_first(const T& from) {
  return __shfl_sync(0xFFFFFFFFu, threadIdx.x % kWarp == 0 ? from : T{}, 0);
}

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

// Starts one product of planes of one unit, without the fence before and the commit after.
template <typename Shape, int kSums>
__device__ void start_product(
    float (&sums)[kSums], const Factors& factors, int weight_plane, int source_plane, bool from_zero) {
  constexpr int kWeightBlock = Shape::kRows * 16;
  const auto weights = descriptor(factors.weights, kWeightBlock);
  const auto source = descriptor(factors.source, factors.source_block);
#pragma unroll
  for (int step = 0; step < kChunkBlocks / 2; ++step) {
    const auto a = weights + ((weight_plane * kChunkBlocks + 2 * step) * kWeightBlock >> 4);
    const auto b = source + ((source_plane * kChunkBlocks + 2 * step) * factors.source_block >> 4);
    wgmma<Shape::Format::kElement>(sums, a, b, !(from_zero && step == 0));
  }
}

#else

// Of kAtOnce blocks of 8 columns in turn, so that sums of one unit take few registers.
template <typename Shape, int kSums>
__device__ void add_products(float (&sums)[kSums], const Factors& factors, float scale = 1) {
  using Format = typename Shape::Format;
  using List = Products<Format>;
  constexpr int kSteps = kChunkBlocks / 2, kAtOnce = kSums % 8 == 0 ? 2 : 1;
  constexpr bool kScaled = std::is_same_v<Format, ScaledFormat>;
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
    float part[kAtOnce * 4] = {}, small[kAtOnce * 4] = {};
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
          mma<Format::kElement>(
              (kScaled && i < List::kCount - 1 ? small : part) + 4 * m, a[List::weight_plane(i)][step], from[2 * m], from[2 * m + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce * 4; ++i) {
      sums[n * 4 + i] = kScaled
          ? __fmaf_rn(__fmaf_rn(small[i], 1 / ScaledFormat::kSecond, part[i]), scale, sums[n * 4 + i])
          : sums[n * 4 + i] + part[i];
    }
  }
}

#endif

template <typename Shape, bool kDeep>
__device__ void multiply(
    const Problem& p,
    const Tiling& tiling,
    const Tensors<typename Shape::Format::scalar_t>& t,
    const Shared<Shape>& shared) {
  using Format = typename Shape::Format;
  using Scaled = typename Shape::Scaled;
  const int warpgroup = threadIdx.x / kWarpgroup;
  const int row_group = warpgroup / Shape::kColumnGroups, column_group = warpgroup % Shape::kColumnGroups;
  const bool leader = threadIdx.x % kWarp == 0;
  const auto source_block = static_cast<uint32_t>(tiling.source_columns) * 16;
  Ring weights(tiling.weight_slots), sources(tiling.source_slots);
  [[maybe_unused]] Turns turns(warpgroup);
  for (int64_t index = blockIdx.x; index < tiling.tiles; index += gridDim.x) {
    const auto tile = find_tile<Shape>(tiling, index);
    float sums[Shape::kSums];
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      sums[i] = 0;
    }
    constexpr bool kTotals = kDeep && Format::kExact;
    float totals[kTotals ? Shape::kSums : 1]; // of all but the last kTogether units
    if constexpr (kTotals) {
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) {
        totals[i] = 0;
      }
    }
    int together = 0;
    int flags = 0;
    int done_weights = -1, done_source = -1; // slots whose last products are on their way
    const auto release = [&] {
      if (leader) {
        if (done_weights >= 0 && (Format::kExact || !tiling.resident)) {
          barrier_arrive(shared.weight_empty(done_weights));
        }
        if (done_source >= 0) {
          barrier_arrive(shared.source_empty(done_source));
        }
      }
    };
    for (int chunk = 0; chunk < tiling.chunks; ++chunk) {
      barrier_wait(shared.source_full(sources.slot), sources.parity);
      Packed packed{0.0f, 0};
      if constexpr (Format::kExact) {
        const auto* of_slot = shared.packed(sources.slot);
        packed = {read_by_first(of_slot->unscale), read_by_first(of_slot->flags)};
        flags |= packed.unscale == 0 ? packed.flags : 0;
      }
      for (int j = 0; j < p.taps; ++j) {
        barrier_wait(shared.weight_full(weights.slot), weights.parity);
        const int unit = shared.weights(weights.slot);
        Factors factors{
            shared.address + unit + row_group * kGroupRows * 16,
            shared.address + shared.source(sources.slot) +
                (column_group * Shape::kGroupColumns + static_cast<int>(p.shift) * j) * 16,
            source_block};
        const int this_weights = weights.slot, this_source = j == p.taps - 1 ? sources.slot : -1;
        const bool scaled = Format::kExact && packed.unscale != 0;
        float scale = 1;
        if constexpr (Format::kExact) {
          if (scaled) {
            scale = packed.unscale * read_by_first(packed_of<Scaled>(shared.base + unit).unscale);
          } else {
            flags |= read_by_first(packed_of<Shape>(shared.base + unit).flags);
          }
        }
#if CONV_TRANSPOSE1D_WGMMA
        if (scaled) {
          if constexpr (Format::kExact) {
            // As below, no more than a unit is summed on tensor cores.
            static_assert(Shape::kSums == 64);
            float part[Shape::kSums];
            turns.begin();
            wgmma_fence();
            start_product<Scaled>(part, factors, 1, 0, true);
            start_product<Scaled>(part, factors, 0, 1, false);
            wgmma_commit();
            turns.end();
            wgmma_wait<0>();
            keep_in_registers(part);
#pragma unroll
            for (int i = 0; i < Shape::kSums; ++i) {
              part[i] *= 1 / ScaledFormat::kSecond;
            }
            turns.begin();
            wgmma_fence();
            start_product<Scaled>(part, factors, 0, 0, false);
            wgmma_commit();
            turns.end();
            wgmma_wait<0>();
            keep_in_registers(part);
            done_weights = this_weights;
            done_source = this_source;
            release();
#pragma unroll
            for (int i = 0; i < Shape::kSums; ++i) {
              sums[i] = __fmaf_rn(part[i], scale, sums[i]);
            }
          }
        } else if constexpr (Format::kExact) {
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
        if (scaled) {
          if constexpr (Format::kExact) {
            add_products<Scaled>(sums, factors, scale);
          }
        } else {
          add_products<Shape>(sums, factors);
        }
        __syncwarp();
        done_weights = this_weights;
        done_source = this_source;
        release();
#endif
        weights.advance();
        if constexpr (kTotals) {
          if (++together == kTogether) {
            together = 0;
#pragma unroll
            for (int i = 0; i < Shape::kSums; ++i) {
              totals[i] += sums[i];
              sums[i] = 0;
            }
          }
        }
      }
      sources.advance();
    }
    if constexpr (kTotals) {
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) {
        sums[i] += totals[i];
      }
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
    const auto column = tile.column_tile * Shape::kColumns + column_group * Shape::kGroupColumns;
    const auto n = divide(column, p.pitch());
    Store<Shape>{
        p,
        tiling,
        t,
        shared,
        tile.group,
        warpgroup,
        (tile.row_tile * Shape::kRowGroups + row_group) * tiling.rows_per_warpgroup,
        n,
        column - n * p.pitch(),
        flags}
        .run(sums);
  }
  if constexpr (Format::kExact) {
    turns.finish();
  }
}

// ---- Kernel and launch ---------------------------------------------------------------------

template <typename Shape, bool kPacksInside>
__global__ void __launch_bounds__(Shape::kThreads, 1) gemm_kernel(
    const __grid_constant__ Problem p,
    const __grid_constant__ Tiling tiling,
    const __grid_constant__ Tensors<typename Shape::Format::scalar_t> t,
    const PackedWeights<Shape> weight,
    const char* source,
    const Packed* found) {
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
    if constexpr (kPacksInside) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    }
#endif
    if constexpr (kPacksInside) {
      pack_factors<Shape>(p, tiling, t.source, weight, shared);
    } else if (threadIdx.x < Shape::kConsumers + kWarp) {
      copy_factors<Shape>(p, tiling, weight, source, found, shared);
    }
  } else {
#if CONV_TRANSPOSE1D_WGMMA
    if constexpr (kPacksInside) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    }
#endif
    multiply<Shape, !kPacksInside>(p, tiling, t, shared);
  }
}

// Parts of the memory that the kernels need besides their tensors.
template <typename Shape>
struct Workspace {
  int64_t weight_blocks; // of the packing kernel
  int64_t source_blocks;
  int64_t source; // where the packed source begins, behind the packed weights
  int64_t found;
  int64_t bytes;

  Workspace(const Problem& p, const Tiling& tiling)
      : weight_blocks(p.groups * tiling.row_tiles * tiling.units),
        source_blocks(tiling.packs_inside ? 0 : p.groups * tiling.column_tiles * tiling.chunks),
        source(PackedWeights<Shape>::bytes(weight_blocks)),
        found(source + source_blocks * Shape::source_bytes(tiling.source_columns)),
        bytes(found + source_blocks * static_cast<int64_t>(sizeof(Packed))) {}
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
  const PackedWeights<Shape> weight{memory, workspace.weight_blocks};
  auto* source = memory + workspace.source;
  auto* found = reinterpret_cast<Packed*>(memory + workspace.found);
  const auto pack = [&](int64_t first, int64_t last) {
    pack_kernel<Shape><<<static_cast<unsigned>(last - first), kPackThreads, 0, stream>>>(
        p, tiling, t.weight, t.source, weight, source, found, first);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  };
  const auto blocks = workspace.weight_blocks + workspace.source_blocks;
  if (Shape::Format::kExact) {
    pack(0, workspace.weight_blocks);
    if (workspace.source_blocks > 0) {
      pack(workspace.weight_blocks, blocks);
    }
  } else {
    pack(0, blocks);
  }
  const int bytes = Shape::kRings + tiling.weight_slots * Shape::kUnitBytes +
      tiling.source_slots * Shape::source_bytes(tiling.source_columns);
  const auto launch = [&](auto kernel) {
    C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const auto grid = static_cast<unsigned>(std::min<int64_t>(tiling.tiles, device.processors));
    kernel<<<grid, Shape::kThreads, bytes, stream>>>(p, tiling, t, weight, source, found);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  };
  if constexpr (Shape::kPacksInside) {
    if (tiling.packs_inside) {
      launch(gemm_kernel<Shape, true>);
      return;
    }
  }
  launch(gemm_kernel<Shape, false>);
}

} // namespace at::native::conv_transpose1d
