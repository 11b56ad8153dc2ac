// conv_transpose1d's gradient of the weight as a product of matrices on tensor cores: rows are channels of the input,
// columns those of grad_output by class (see ConvTranspose1dProblem.h), depth is the positions of all samples; a tap is
// a shift of grad_output against the input.
//
// Both are packed in stages of the depth, a tile of channels in each: [planes][blocks of 8 channels][positions][16
// bytes], for grad_output with a halo of the positions that the taps reach to. Tensor cores read numbers of 16 bits
// also in such an order, with the depth across the 16 bytes. A block has one tile, two taps of it, and a part of the
// depth, whose sums it leaves in memory; a last kernel adds up the parts in order.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dGemm.cuh>

namespace at::native::conv_transpose1d {

// The problems whose sources are the two factors: what is packed for them agrees column by column.
struct WeightGradProblems {
  Problem input;
  Problem grad_output;
};

inline WeightGradProblems weight_grad_problems(
    IntArrayRef input, IntArrayRef weight, int64_t out_length, const ConvTranspose1dParams& params) {
  const auto grad_output = grad_input_problem(input, weight, out_length, params);
  auto x = grad_output;
  x.channels = weight[0] / params.groups;
  x.classes = 1;
  x.length = input[2];
  x.position_stride = 1;
  x.class_step = 0;
  x.base = 0;
  return {x, grad_output};
}

template <typename Format_>
struct WeightGradShape {
  using Format = Format_;
  static constexpr int kTile = 128; // channels of either side
  static constexpr int kBlocks = kTile / 8;
  static constexpr int kTaps = 2; // of a block
  static constexpr int kConsumers = 2 * kWarpgroup; // of 64 rows each
  static constexpr int kThreads = kConsumers + kWarpgroup;
  static constexpr int kDepth = Format::kExact ? 32 : 64; // of a stage
  static constexpr int kSums = kTile / 2;
  static constexpr int kBarrierBytes = 128;

  // Of a stage of one factor, with so many positions.
  static constexpr __host__ __device__ int bytes(int positions) {
    return Format::kPlanes * kBlocks * positions * 16;
  }
};

struct WeightGradTiling {
  int row_tiles; // of a group
  int column_tiles;
  int halo;
  int slots; // of stages in shared memory
  int64_t stages; // of the depth
  int64_t parts; // into which they are divided
  int64_t tap_pairs;
  int64_t blocks;
};

template <typename Shape>
WeightGradTiling make_weight_grad_tiling(const WeightGradProblems& p, const Device& device) {
  const auto stages = ceil_div(p.input.pitch() * p.input.batch, Shape::kDepth);
  const auto row_tiles = static_cast<int>(ceil_div(p.input.depth(), Shape::kTile));
  const auto column_tiles = static_cast<int>(ceil_div(p.grad_output.depth(), Shape::kTile));
  const auto tap_pairs = ceil_div(p.input.taps, Shape::kTaps);
  const auto tiles = p.input.groups * tap_pairs * row_tiles * column_tiles;
  // Several rounds of blocks, unless parts become so short that starting them costs more.
  const auto parts = std::max<int64_t>(1, std::min(ceil_div(3 * device.processors, tiles), stages / 16));
  const auto halo = static_cast<int>(p.input.shift * (p.input.taps - 1));
  const auto stage_bytes = Shape::bytes(Shape::kDepth) + Shape::bytes(Shape::kDepth + halo);
  return {
      row_tiles,
      column_tiles,
      halo,
      std::min(4, (device.shared_bytes - Shape::kBarrierBytes) / stage_bytes),
      stages,
      parts,
      tap_pairs,
      tiles * parts};
}

// A factor is packed as [groups][tiles][stages][planes][blocks][positions][16 bytes].
template <typename Shape>
__device__ void pack_factor(
    const Problem& p,
    const typename Shape::Format::scalar_t* source,
    int tiles,
    int64_t stages,
    int halo,
    uint4* packed,
    int* flags,
    int64_t index) {
  using Format = typename Shape::Format;
  constexpr int kQuarters = Shape::kBlocks / kPackBlocks;
  const auto across = ceil_div(stages * Shape::kDepth + halo, kPackThreads);
  const auto column = index % across * kPackThreads + threadIdx.x;
  const int quarter = static_cast<int>(index / across % kQuarters);
  const auto tile = index / across / kQuarters; // of all groups
  const auto group = tile / tiles;
  const int first_block = static_cast<int>(tile % tiles) * Shape::kBlocks + quarter * kPackBlocks;
  const int positions = Shape::kDepth + halo;
  const auto stage = column / Shape::kDepth;
  const int position = static_cast<int>(column % Shape::kDepth);
  constexpr int kRows = Format::kPlanes * Shape::kBlocks;
  Extremes extremes;
  if (column < stages * Shape::kDepth + halo) {
    auto* to = packed + (tile * stages + stage) * kRows * positions + position;
    pack_column<Format>(p, source, group, first_block, column, extremes, [&](int i, int plane, uint4 words) {
      const auto row = (plane * Shape::kBlocks + quarter * kPackBlocks + i) * positions;
      if (stage < stages) {
        to[row] = words;
      }
      // Also in the halos of earlier stages.
      for (int back = 1; position + back * Shape::kDepth < positions && back <= stage; ++back) {
        if (stage - back >= stages) {
          continue;
        }
        to[row - static_cast<int64_t>(back) * kRows * positions + back * Shape::kDepth] = words;
      }
    });
  }
  if constexpr (Format::kExact) {
    const int found = block_flags(extremes);
    if (threadIdx.x == 0 && found) {
      atomicOr(flags, found);
    }
  }
}

// The first blocks pack the input, the others grad_output.
template <typename Shape>
__global__ void __launch_bounds__(kPackThreads) pack_factors(
    const __grid_constant__ WeightGradProblems p,
    const __grid_constant__ WeightGradTiling tiling,
    const typename Shape::Format::scalar_t* input,
    const typename Shape::Format::scalar_t* grad_output,
    int64_t input_blocks,
    uint4* packed_input,
    uint4* packed_grad_output,
    int* flags) {
  const auto index = static_cast<int64_t>(blockIdx.x);
  if (index < input_blocks) {
    pack_factor<Shape>(p.input, input, tiling.row_tiles, tiling.stages, 0, packed_input, flags, index);
  } else {
    pack_factor<Shape>(
        p.grad_output,
        grad_output,
        tiling.column_tiles,
        tiling.stages,
        tiling.halo,
        packed_grad_output,
        flags,
        index - input_blocks);
  }
}

// One part of one tile of two taps.
template <typename Shape>
struct WeightGradTile {
  int64_t group, tap, row_tile, column_tile, part;
  int64_t first; // stages [first, last)
  int64_t last;

  __device__ explicit WeightGradTile(const WeightGradTiling& tiling) {
    int64_t index = blockIdx.x;
    // Taps of a tile read the same: next to each other.
    tap = index % tiling.tap_pairs * Shape::kTaps;
    index /= tiling.tap_pairs;
    row_tile = index % tiling.row_tiles;
    index /= tiling.row_tiles;
    column_tile = index % tiling.column_tiles;
    index /= tiling.column_tiles;
    part = index % tiling.parts;
    group = index / tiling.parts;
    first = tiling.stages * part / tiling.parts;
    last = tiling.stages * (part + 1) / tiling.parts;
  }
};

#if CONV_TRANSPOSE1D_WGMMA

template <typename Shape>
__device__ void start_products_across(
    float (&sums)[Shape::kSums], uint32_t rows, uint32_t columns, int column_positions) {
  using Format = typename Shape::Format;
  using List = Products<Format>;
  const auto a0 = descriptor_across(rows, Shape::kDepth * 16), b0 = descriptor_across(columns, column_positions * 16);
  constexpr int kPlane = Shape::bytes(Shape::kDepth) / Format::kPlanes;
  const int column_plane = Shape::bytes(column_positions) / Format::kPlanes;
  wgmma_fence();
#pragma unroll
  for (int part = 0; part < (List::kCount > 1 ? 2 : 1); ++part) {
#pragma unroll
    for (int step = 0; step < Shape::kDepth / 16; ++step) {
#pragma unroll
      for (int i = 0; i < List::kCount; ++i) {
        if (List::kCount == 1 || (i == List::kCount - 1) == (part == 1)) {
          const auto a = a0 + ((List::weight_plane(i) * kPlane + step * 256) >> 4);
          const auto b = b0 + ((List::source_plane(i) * column_plane + step * 256) >> 4);
          wgmma_across<Format::kElement>(sums, a, b, !(part == 0 && step == 0 && i == 0));
        }
      }
    }
  }
  wgmma_commit();
}

#else

template <typename Shape>
__device__ void add_products_across(
    float (&sums)[Shape::kSums], uint32_t rows, uint32_t columns, int column_positions) {
  using Format = typename Shape::Format;
  using List = Products<Format>;
  constexpr int kPlane = Shape::bytes(Shape::kDepth) / Format::kPlanes;
  const int column_plane = Shape::bytes(column_positions) / Format::kPlanes;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
  const int row = lane % 8, matrix = lane / 8;
#pragma unroll
  for (int n = 0; n < Shape::kBlocks; n += 2) {
    float part[8] = {};
#pragma unroll
    for (int step = 0; step < Shape::kDepth / 16; ++step) {
      uint32_t a[Format::kPlanes][4], b[Format::kPlanes][4];
#pragma unroll
      for (int plane = 0; plane < Format::kPlanes; ++plane) {
        // Matrices: rows 0-7 and 8-15 at the first 8 of the depth, then at the others.
        load_transposed(
            rows + plane * kPlane + (2 * warp + matrix % 2) * Shape::kDepth * 16 +
                (16 * step + matrix / 2 * 8 + row) * 16,
            a[plane]);
        // Matrices: columns 0-7 at both halves of the depth, then 8-15.
        load_transposed(
            columns + plane * column_plane + (n + matrix / 2) * column_positions * 16 +
                (16 * step + matrix % 2 * 8 + row) * 16,
            b[plane]);
      }
#pragma unroll
      for (int i = 0; i < List::kCount; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const auto& from = b[List::source_plane(i)];
          mma<Format::kElement>(part + 4 * m, a[List::weight_plane(i)], from[2 * m], from[2 * m + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sums[n * 4 + i] += part[i];
    }
  }
}

#endif

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) weight_grad_kernel(
    const __grid_constant__ Problem p, // of grad_output
    const __grid_constant__ WeightGradTiling tiling,
    const char* input,
    const char* grad_output,
    float* sums_out) {
  extern __shared__ __align__(128) char memory[];
  const auto address = shared_address(memory);
  const auto full = [&](int slot) { return address + 16 * slot; };
  const auto empty = [&](int slot) { return address + 16 * slot + 8; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < tiling.slots; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), Shape::kConsumers / kWarp);
    }
    fence_async();
  }
  __syncthreads();
  const WeightGradTile<Shape> tile(tiling);
  const int positions = Shape::kDepth + tiling.halo;
  const int row_bytes = Shape::bytes(Shape::kDepth), column_bytes = Shape::bytes(positions);
  const auto stage_at = [&](int slot) { return Shape::kBarrierBytes + slot * (row_bytes + column_bytes); };
  Ring ring(tiling.slots);
  if (threadIdx.x >= Shape::kConsumers) {
#if CONV_TRANSPOSE1D_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
    if (threadIdx.x < Shape::kConsumers + kWarp) {
      const auto* rows = input + (tile.group * tiling.row_tiles + tile.row_tile) * tiling.stages * row_bytes;
      const auto* columns =
          grad_output + (tile.group * tiling.column_tiles + tile.column_tile) * tiling.stages * column_bytes;
      for (auto stage = tile.first; stage < tile.last; ++stage) {
        begin_copies(empty(ring.slot), full(ring.slot), ring.parity ^ 1, row_bytes + column_bytes);
        copy(memory, stage_at(ring.slot), rows + stage * row_bytes, row_bytes, full(ring.slot));
        copy(
            memory, stage_at(ring.slot) + row_bytes, columns + stage * column_bytes, column_bytes, full(ring.slot));
        end_copies(full(ring.slot));
        ring.advance();
      }
    }
    return;
  }
#if CONV_TRANSPOSE1D_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
#endif
  const int warpgroup = threadIdx.x / kWarpgroup, lane = threadIdx.x % kWarp, warp = threadIdx.x % kWarpgroup / kWarp;
  const auto taps = static_cast<int>(min(static_cast<int64_t>(Shape::kTaps), p.taps - tile.tap));
  float sums[Shape::kTaps][Shape::kSums];
#pragma unroll
  for (int tap = 0; tap < Shape::kTaps; ++tap) {
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      sums[tap][i] = 0;
    }
  }
  for (auto stage = tile.first; stage < tile.last; ++stage) {
    barrier_wait(full(ring.slot), ring.parity);
    const auto rows = address + stage_at(ring.slot) + warpgroup * (Shape::kBlocks / 2) * Shape::kDepth * 16;
    const auto columns = address + stage_at(ring.slot) + row_bytes + static_cast<int>(p.shift * tile.tap) * 16;
#pragma unroll
    for (int tap = 0; tap < Shape::kTaps; ++tap) {
      if (tap < taps) {
        const auto shifted = columns + static_cast<int>(p.shift) * tap * 16;
#if CONV_TRANSPOSE1D_WGMMA
        // Tensor cores cut sums off instead of rounding them, so no more than a stage is summed there.
        float part[Shape::kSums];
        start_products_across<Shape>(part, rows, shifted, positions);
        wgmma_wait<0>();
        keep_in_registers(part);
#pragma unroll
        for (int i = 0; i < Shape::kSums; ++i) {
          sums[tap][i] += part[i];
        }
#else
        add_products_across<Shape>(sums[tap], rows, shifted, positions);
#endif
      }
    }
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(empty(ring.slot));
    }
    ring.advance();
  }
  const auto row = tile.row_tile * Shape::kTile + warpgroup * 64 + warp * 16 + lane / 4;
  const auto width = static_cast<int64_t>(tiling.column_tiles) * Shape::kTile;
  const auto height = static_cast<int64_t>(tiling.row_tiles) * Shape::kTile;
#pragma unroll
  for (int tap = 0; tap < Shape::kTaps; ++tap) {
    if (tap < taps) {
      auto* to = sums_out +
          (((tile.part * p.groups + tile.group) * p.taps + tile.tap + tap) * height + row) * width +
          tile.column_tile * Shape::kTile + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < Shape::kSums / 4; ++i) {
        *reinterpret_cast<float2*>(to + i * 8) = make_float2(sums[tap][i * 4], sums[tap][i * 4 + 1]);
        *reinterpret_cast<float2*>(to + 8 * width + i * 8) = make_float2(sums[tap][i * 4 + 2], sums[tap][i * 4 + 3]);
      }
    }
  }
}

// One element's sum as a chain of float32 multiply-adds.
template <typename scalar_t>
__device__ __noinline__ float plain_weight_grad(
    const Problem& x,
    const Problem& g,
    const scalar_t* input,
    const scalar_t* grad_output,
    int64_t group,
    int64_t ic,
    int64_t oc,
    int64_t k) {
  float sum = 0;
  for (int64_t n = 0; n < x.batch; ++n) {
    const auto* a = input + ((n * x.groups + group) * x.channels + ic) * x.length;
    const auto* b = grad_output + ((n * x.groups + group) * g.channels + oc) * g.length;
    for (int64_t i = 0; i < x.length; ++i) {
      const auto o = g.position_stride * i + g.class_step * k + g.base;
      if (o >= 0 && o < g.length) {
        sum = __fmaf_rn(widen(a[i]), widen(b[o]), sum);
      }
    }
    if (isnan(sum)) {
      break;
    }
  }
  return sum;
}

// An element of the weight a thread: the parts' sums, [parts][groups][taps][rows][columns], in order. The host sees to
// it that a part has less than 2^31.
template <typename Shape>
__global__ void __launch_bounds__(kPackThreads) sum_weight_grads(
    const __grid_constant__ WeightGradProblems p,
    const __grid_constant__ WeightGradTiling tiling,
    const float* sums,
    const typename Shape::Format::scalar_t* input,
    const typename Shape::Format::scalar_t* grad_output,
    const int* flags,
    typename Shape::Format::scalar_t* grad_weight,
    unsigned elements) {
  const auto& g = p.grad_output;
  const unsigned index = blockIdx.x * kPackThreads + threadIdx.x;
  if (index >= elements) {
    return;
  }
  const auto kernel = static_cast<unsigned>(g.kernel), channels = static_cast<unsigned>(g.channels);
  const auto in_channels = static_cast<unsigned>(p.input.channels), step = static_cast<unsigned>(g.tap_step);
  const auto rows = static_cast<unsigned>(tiling.row_tiles * Shape::kTile);
  const auto width = static_cast<unsigned>(tiling.column_tiles * Shape::kTile);
  const auto above = index / kernel, k = index % kernel;
  const auto channel = above / channels, oc = above % channels;
  const auto group = channel / in_channels, ic = channel % in_channels;
  const auto tap = k / step, column = oc * static_cast<unsigned>(g.classes) + k % step;
  const auto* from = sums + ((group * static_cast<unsigned>(g.taps) + tap) * rows + ic) * width + column;
  const auto part_sums = g.groups * g.taps * rows * width;
  float sum = 0;
#pragma unroll 4
  for (int64_t part = 0; part < tiling.parts; ++part) {
    sum += from[part * part_sums];
  }
  const auto least = Shape::Format::kExact ? Extremes::least_sum(*flags) : 0.0f;
  if (!(fabsf(sum) >= least) || !is_finite(sum)) {
    sum = plain_weight_grad(p.input, g, input, grad_output, group, ic, oc, k);
  }
  grad_weight[index] = narrow<typename Shape::Format::scalar_t>(sum);
}

// Whether the matrix kernel can take a problem at all.
inline bool fits_weight_grad(const WeightGradProblems& p) {
  return fits_gemm(p.grad_output) && p.input.length > 0 && p.input.batch > 0 &&
      p.input.channels * p.input.length < (int64_t(1) << 31);
}

// Parts of the memory that the kernels need besides their tensors.
template <typename Shape>
struct WeightGradWorkspace {
  int64_t input_blocks; // of the packing kernel
  int64_t grad_output_blocks;
  int64_t grad_output; // where that begins, behind the packed input
  int64_t sums;
  int64_t flags;
  int64_t bytes;

  WeightGradWorkspace(const WeightGradProblems& p, const WeightGradTiling& tiling) {
    const auto groups = p.input.groups;
    const auto blocks = [&](int tiles, int halo) {
      const auto across = ceil_div(tiling.stages * Shape::kDepth + halo, kPackThreads);
      return across * (Shape::kBlocks / kPackBlocks) * tiles * groups;
    };
    const auto packed_bytes = [&](int tiles, int halo) {
      return groups * tiles * tiling.stages * Shape::bytes(Shape::kDepth + halo);
    };
    input_blocks = blocks(tiling.row_tiles, 0);
    grad_output_blocks = blocks(tiling.column_tiles, tiling.halo);
    grad_output = packed_bytes(tiling.row_tiles, 0);
    sums = grad_output + packed_bytes(tiling.column_tiles, tiling.halo);
    flags = sums +
        tiling.parts * groups * p.input.taps * tiling.row_tiles * Shape::kTile * tiling.column_tiles * Shape::kTile *
            static_cast<int64_t>(sizeof(float));
    bytes = flags + static_cast<int64_t>(sizeof(int));
  }
};

// `memory`: WeightGradWorkspace's bytes, 128-byte aligned.
template <typename Shape>
void launch_weight_grad(
    const WeightGradProblems& p,
    const WeightGradTiling& tiling,
    const typename Shape::Format::scalar_t* input,
    const typename Shape::Format::scalar_t* grad_output,
    typename Shape::Format::scalar_t* grad_weight,
    char* memory,
    cudaStream_t stream) {
  const WeightGradWorkspace<Shape> workspace(p, tiling);
  auto* sums = reinterpret_cast<float*>(memory + workspace.sums);
  auto* flags = reinterpret_cast<int*>(memory + workspace.flags);
  if constexpr (Shape::Format::kExact) {
    C10_CUDA_CHECK(cudaMemsetAsync(flags, 0, sizeof(int), stream));
  }
  const auto pack_blocks = static_cast<unsigned>(workspace.input_blocks + workspace.grad_output_blocks);
  pack_factors<Shape><<<pack_blocks, kPackThreads, 0, stream>>>(
      p,
      tiling,
      input,
      grad_output,
      workspace.input_blocks,
      reinterpret_cast<uint4*>(memory),
      reinterpret_cast<uint4*>(memory + workspace.grad_output),
      flags);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const int bytes = Shape::kBarrierBytes +
      tiling.slots * (Shape::bytes(Shape::kDepth) + Shape::bytes(Shape::kDepth + tiling.halo));
  C10_CUDA_CHECK(
      cudaFuncSetAttribute(weight_grad_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  weight_grad_kernel<Shape><<<static_cast<unsigned>(tiling.blocks), Shape::kThreads, bytes, stream>>>(
      p.grad_output, tiling, memory, memory + workspace.grad_output, sums);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const auto elements = p.input.groups * p.input.channels * p.grad_output.channels * p.grad_output.kernel;
  sum_weight_grads<Shape><<<static_cast<unsigned>(ceil_div(elements, kPackThreads)), kPackThreads, 0, stream>>>(
      p, tiling, sums, input, grad_output, flags, grad_weight, static_cast<unsigned>(elements));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace at::native::conv_transpose1d
