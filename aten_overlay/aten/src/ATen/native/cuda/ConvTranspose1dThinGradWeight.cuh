// conv_transpose1d's gradient of the weight straight from the tensors, without packing them first: rows are channels
// of grad_output by class (see ConvTranspose1dProblem.h), columns those of the input, depth is positions.
//
// A block (one warpgroup) has one tile and one part of the depth, in stages. It splits grad_output into registers and
// the input into shared memory, [planes][blocks of 8 channels][positions][16 bytes], where a tap is a shift of the
// input; so each is read once for all taps of a tile. Each block leaves its sums in memory, and a last kernel adds
// those of all parts in order. The gradient of the bias is the sum of what the rows hold, in the same pass.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dGradWeightGemm.cuh>
#include <ATen/native/cuda/ConvTranspose1dThinRows.cuh>

namespace at::native::conv_transpose1d {

template <typename Format_, int kChannels_, int kTaps_, int kHalo_, int kDepth_, int kBlocksPerProcessor_>
struct ThinGradShape {
  using Format = Format_;
  using scalar_t = typename Format::scalar_t;
  static constexpr int kRows = kGroupRows;
  static constexpr int kChannels = kChannels_; // of the input
  static constexpr int kTaps = kTaps_;
  static constexpr int kDepth = kDepth_; // of a stage
  static constexpr int kHalo = kHalo_; // at most
  static constexpr int kBlocksPerProcessor = kBlocksPerProcessor_;
  static constexpr int kSteps = kDepth / 16;
  static constexpr int kBlocks = kChannels / 8;
  static constexpr int kSums = kChannels / 2;
  static constexpr int kMaxSlots = 8;
  static_assert(kDepth == 64); // sum_half_row
  static constexpr int kTileSums = kTaps * kRows * kChannels;
  static constexpr int kBlockSums = kTileSums + kRows; // and those of the bias

  // In shared memory: barriers, places, planes, slots.
  static constexpr int kPlaces = 128;
  static constexpr int kPlanes = kPlaces + kChannels * 4;
  static constexpr int kPitch = kDepth + kHalo;
  static constexpr int kBlockBytes = kPitch * 16;
  static constexpr int kPlaneBytes = kBlocks * kBlockBytes;
  static constexpr int kSlots = kPlanes + Format::kPlanes * kPlaneBytes;
};

struct ThinGradTiling {
  int channels; // of grad_output, of a tile
  int row_tiles; // of a group
  int column_tiles;
  int tap_tiles;
  int64_t tiles; // of all groups
  int halo;
  ThinRowLayout grad_output;
  ThinRowLayout input;
  int slots;
  int slot_bytes;
  int64_t stages_of_sample;
  int64_t stages;
  int64_t parts;
};

template <typename Shape>
ThinGradTiling make_thin_grad_tiling(const WeightGradProblems& p, const Device& device) {
  constexpr int kSize = sizeof(typename Shape::scalar_t);
  const auto& g = p.grad_output;
  ThinGradTiling tiling{};
  tiling.channels = static_cast<int>(std::min(std::max<int64_t>(1, Shape::kRows / g.classes), g.channels));
  tiling.row_tiles = static_cast<int>(ceil_div(g.channels, tiling.channels));
  tiling.column_tiles = static_cast<int>(ceil_div(p.input.channels, Shape::kChannels));
  tiling.tap_tiles = static_cast<int>(ceil_div(g.taps, Shape::kTaps));
  tiling.tiles = g.groups * tiling.row_tiles * tiling.column_tiles * tiling.tap_tiles;
  tiling.halo = static_cast<int>(g.shift * (std::min<int64_t>(g.taps, Shape::kTaps) - 1));
  // A stage also has all of the row that no other has, for the bias.
  tiling.grad_output = thin_row_layout(g, Shape::kDepth + (g.position_stride > 1 ? 1 : 0), kSize, true);
  tiling.input = thin_row_layout(p.input, Shape::kDepth + tiling.halo, kSize, false);
  set_slots<Shape>(
      tiling,
      int64_t{tiling.channels} * tiling.grad_output.pitch + int64_t{Shape::kChannels} * tiling.input.pitch,
      device);
  tiling.stages_of_sample = ceil_div(g.pitch(), Shape::kDepth);
  tiling.stages = tiling.stages_of_sample * g.batch;
  const auto blocks = device.processors * Shape::kBlocksPerProcessor;
  tiling.parts = std::max<int64_t>(1, std::min(blocks / tiling.tiles, tiling.stages / 4));
  return tiling;
}

// The tile of a block. Blocks side by side share a part, so that they read the same at the same time.
struct ThinGradTile {
  int64_t group;
  int channel; // of grad_output, the first
  int in_channel;
  int tap;

  __device__ ThinGradTile(const ThinGradTiling& tiling, int index, int in_channels, int taps)
      : group(index / (tiling.tap_tiles * tiling.column_tiles * tiling.row_tiles)),
        channel(index / (tiling.tap_tiles * tiling.column_tiles) % tiling.row_tiles * tiling.channels),
        in_channel(index / tiling.tap_tiles % tiling.column_tiles * in_channels),
        tap(index % tiling.tap_tiles * taps) {}
};

// A stage of the depth.
struct ThinGradStage {
  int64_t left; // including this one
  int64_t n;
  int64_t within; // stages of the sample before it

  __device__ ThinGradStage(const ThinGradTiling& tiling, int64_t part) {
    const auto first = tiling.stages * part / tiling.parts;
    left = tiling.stages * (part + 1) / tiling.parts - first;
    n = first / tiling.stages_of_sample;
    within = first % tiling.stages_of_sample;
  }

  __device__ void advance(const ThinGradTiling& tiling) {
    --left;
    if (++within == tiling.stages_of_sample) {
      within = 0;
      ++n;
    }
  }
};

#if CONV_TRANSPOSE1D_WGMMA

// A thread's share of grad_output: of each 16 positions, those at 2 * (lane % 4) and the next, and 8 behind, of two
// rows. kStride is that of positions, or 0 for any.
template <typename Shape, bool kInside, int kStride>
__device__ __forceinline__ void load_fragments(
    RowFragments<typename Shape::Format, Shape::kSteps>& fragments,
    const Problem& g,
    const char* const (&rows)[2],
    const int (&first)[2],
    Extremes& extremes) {
  using scalar_t = typename Shape::scalar_t;
  const int stride = kStride > 0 ? kStride : static_cast<int>(g.position_stride);
  const auto length = static_cast<unsigned>(g.length);
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    scalar_t values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = i / 2 % 2, at = (16 * step + i / 4 * 8 + i % 2) * stride;
      if (kInside || static_cast<unsigned>(first[row] + at) < length) {
        values[i] = reinterpret_cast<const scalar_t*>(rows[row])[at];
      } else {
        values[i] = narrow<scalar_t>(0.0f);
      }
      if constexpr (Shape::Format::kExact) {
        extremes.add_least(values[i]);
      }
    }
    Shape::Format::split(values, fragments.words[step]);
  }
}

template <typename Shape>
__device__ __forceinline__ void multiply_stage(
    float (&sums)[Shape::kTaps][Shape::kSums],
    RowFragments<typename Shape::Format, Shape::kSteps>& fragments,
    uint32_t planes,
    int shift,
    int taps) {
  using Format = typename Shape::Format;
  // Of taps beyond the last, nothing is kept.
  const auto columns = [&](int tap) {
    return descriptor_across(planes + shift * max(0, taps - 1 - tap) * 16, Shape::kBlockBytes);
  };
  if constexpr (Format::kExact) {
    // Tensor cores cut sums off instead of rounding them, so no more than a stage is summed there.
    constexpr int kParts = Shape::kChannels > 32 ? 1 : 2; // at once, as registers allow
    float parts[kParts][Shape::kSums];
#pragma unroll
    for (int tap = 0; tap < Shape::kTaps + kParts - 1; ++tap) {
      if (tap < Shape::kTaps) {
        wgmma_fence();
        start_row_products<Format, true, 256, Shape::kPlaneBytes>(parts[tap % kParts], fragments, columns(tap), true);
      }
      const int done = tap - (kParts - 1);
      if (done >= 0) {
        if (tap < Shape::kTaps) {
          wgmma_wait<kParts - 1>();
        } else {
          wgmma_wait<0>();
        }
        auto& part = parts[done % kParts];
        keep_in_registers(part);
#pragma unroll
        for (int i = 0; i < Shape::kSums; ++i) {
          sums[done][i] += part[i];
        }
      }
    }
  } else {
    wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < Shape::kTaps; ++tap) {
      start_row_products<Format, true, 256, Shape::kPlaneBytes>(sums[tap], fragments, columns(tap), false);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int tap = 0; tap < Shape::kTaps; ++tap) {
      keep_in_registers(sums[tap]);
    }
  }
  fragments.keep();
}

// The sum of `count` times 4 elements, kCount unless that is 0. Threads begin in different banks if they can.
template <int kCount, typename scalar_t>
__device__ __forceinline__ float sum_elements(const scalar_t* elements, int count) {
  if constexpr (kCount > 0) {
    count = kCount;
  }
  const int turn = count % kWarp == 0 || kWarp % count == 0 ? threadIdx.x % kWarp % count : 0;
  float sums[4] = {};
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const auto* from = elements + (i ^ turn);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      sums[part] += widen(from[part * count]);
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The sum of half a row, of which only elements in [first, last) count.
template <typename scalar_t>
__device__ __forceinline__ float sum_half_row(const scalar_t* row, int elements, int stride, int first, int last) {
  if (first <= 0 && last >= elements) {
    return stride == 1 ? sum_elements<8>(row, 8)
        : stride == 2  ? sum_elements<16>(row, 16)
                       : sum_elements<0>(row, elements / 4);
  }
  float sum = 0;
  for (int i = max(0, first); i < min(elements, last); ++i) {
    sum += widen(row[i]);
  }
  return sum;
}

#endif

template <typename Shape>
__global__ void __launch_bounds__(kWarpgroup, Shape::kBlocksPerProcessor) thin_grad_kernel(
    const __grid_constant__ WeightGradProblems p,
    const __grid_constant__ ThinGradTiling tiling,
    const typename Shape::scalar_t* input,
    const typename Shape::scalar_t* grad_output,
    bool with_bias,
    float* sums_out,
    int* flags_out) {
#if CONV_TRANSPOSE1D_WGMMA
  using scalar_t = typename Shape::scalar_t;
  using Format = typename Shape::Format;
  extern __shared__ __align__(128) char memory[];
  const auto& x = p.input;
  const auto& g = p.grad_output;
  const auto address = shared_address(memory);
  const auto full = [&](int slot) { return address + 8 * slot; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < tiling.slots; ++i) {
      barrier_init(full(i), 2 * kWarpgroup);
    }
    fence_async();
  }
  __syncthreads();
  const auto tiles = static_cast<int>(tiling.tiles);
  const int part = blockIdx.x / tiles, index = blockIdx.x % tiles;
  const ThinGradTile tile(tiling, index, Shape::kChannels, Shape::kTaps);
  const auto taps = min(Shape::kTaps, static_cast<int>(g.taps) - tile.tap);
  const int shift = static_cast<int>(g.shift), stride = static_cast<int>(g.position_stride);
  const auto in_sample = x.groups * x.channels * x.length, sample = g.groups * g.channels * g.length;
  const ThinRows<scalar_t> in{
      input + (tile.group * x.channels + tile.in_channel) * x.length,
      input,
      input + x.batch * in_sample,
      in_sample,
      x.length,
      min(Shape::kChannels, static_cast<int>(x.channels) - tile.in_channel),
      tiling.input};
  const ThinRows<scalar_t> grad{
      grad_output + (tile.group * g.channels + tile.channel) * g.length,
      grad_output,
      grad_output + x.batch * sample,
      sample,
      g.length,
      min(tiling.channels, static_cast<int>(g.channels) - tile.channel),
      tiling.grad_output};
  const int input_at = tiling.channels * tiling.grad_output.pitch;
  const auto origin = [&](const ThinGradStage& stage) {
    return g.position_stride * stage.within * Shape::kDepth + g.base;
  };
  const auto in_origin = [&](const ThinGradStage& stage) {
    return stage.within * Shape::kDepth - shift * (tile.tap + taps - 1);
  };
  const auto start_copies = [&](const ThinGradStage& stage, int slot) {
    const auto to = address + Shape::kSlots + slot * tiling.slot_bytes;
    grad.start_copies(to, stage.n, origin(stage), full(slot));
    in.start_copies(to + input_at, stage.n, in_origin(stage), full(slot));
  };
  ThinGradStage stage(tiling, part), ahead = stage;
  for (int slot = 0; slot < tiling.slots && ahead.left > 0; ++slot) {
    start_copies(ahead, slot);
    ahead.advance(tiling);
  }

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, classes = static_cast<int>(g.classes);
  auto* places = reinterpret_cast<int*>(memory + Shape::kPlaces);
  int rows[2], steps[2], row_places[2]; // of a thread
  int bias_place = 0;
  int placed = -1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 16 * warp + lane / 4 + 8 * i;
    rows[i] = min(row / classes, grad.count - 1); // of those beyond the last, nothing is kept
    steps[i] = static_cast<int>(g.class_step) * (row % classes) + stride * (lane % 4 * 2);
  }
  const int bias_row = threadIdx.x / 2;
  const bool sums_bias = with_bias && tile.tap == 0 && tile.in_channel == 0 && bias_row < grad.count;
  float bias = 0, bias_error = 0;
  float sums[Shape::kTaps][Shape::kSums];
#pragma unroll
  for (int tap = 0; tap < Shape::kTaps; ++tap) {
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      sums[tap][i] = 0;
    }
  }
  int flags = 0;
  Ring ring(tiling.slots);
  for (; stage.left > 0; stage.advance(tiling)) {
    const auto first = static_cast<int>(origin(stage)), in_first = static_cast<int>(in_origin(stage));
    const int phases = 16 * in.phase(stage.n, in_first) + grad.phase(stage.n, first);
    if (phases != placed) {
      placed = phases;
      find_places(x, in, places, Shape::kChannels, stage.n, in_first);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        row_places[i] = grad.place(stage.n, first, rows[i]) + steps[i] * static_cast<int>(sizeof(scalar_t));
      }
      bias_place = grad.place(stage.n, first, min(bias_row, grad.count - 1));
      __syncthreads();
    }
    barrier_wait(full(ring.slot), ring.parity);
    const char* raw = memory + Shape::kSlots + ring.slot * tiling.slot_bytes;
    const auto planes = address + Shape::kPlanes;
    Extremes extremes;
    if (in.inside(in_first)) {
      split_rows<Format, Shape::kBlocks, Shape::kDepth, Shape::kPitch, true>(
          x, places, raw + input_at, planes, in_first, tiling.halo, extremes);
    } else {
      split_rows<Format, Shape::kBlocks, Shape::kDepth, Shape::kPitch, false>(
          x, places, raw + input_at, planes, in_first, tiling.halo, extremes);
    }
    if (sums_bias) {
      const int elements = stride * Shape::kDepth / 2, begin = threadIdx.x % 2 * elements;
      const auto left = min(g.length - first, static_cast<int64_t>(2 * elements));
      // Compensated, since there are many stages.
      const auto term = sum_half_row(
                            reinterpret_cast<const scalar_t*>(raw + bias_place) + begin,
                            elements,
                            stride,
                            -first - begin,
                            static_cast<int>(left) - begin) -
          bias_error;
      const auto sum = bias + term;
      bias_error = is_finite(sum) ? (sum - bias) - term : 0.0f;
      bias = sum;
    }
    const char* const from[2] = {raw + row_places[0], raw + row_places[1]};
    const int at[2] = {first + steps[0], first + steps[1]};
    RowFragments<Format, Shape::kSteps> fragments;
    if (!grad.inside(first)) {
      load_fragments<Shape, false, 0>(fragments, g, from, at, extremes);
    } else if (stride == 1) {
      load_fragments<Shape, true, 1>(fragments, g, from, at, extremes);
    } else if (stride == 2) {
      load_fragments<Shape, true, 2>(fragments, g, from, at, extremes);
    } else {
      load_fragments<Shape, true, 0>(fragments, g, from, at, extremes);
    }
    fence_async();
    if constexpr (Format::kExact) {
      // Large numbers matter only where there are small ones.
      if (__syncthreads_or(extremes.has_small())) {
        bool large = has_large_term(memory + Shape::kPlanes, Shape::kPlaneBytes);
#pragma unroll
        for (int step = 0; step < Shape::kSteps; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            large |= has_large_term(fragments.words[step][0][i]);
          }
        }
        flags |= Extremes::kHasSmall | (__syncthreads_or(large) ? Extremes::kHasLarge : 0);
      }
    } else {
      __syncthreads();
    }
    if (ahead.left > 0) {
      start_copies(ahead, ring.slot);
      ahead.advance(tiling);
    }
    multiply_stage<Shape>(sums, fragments, planes, shift, taps);
    __syncthreads(); // the planes are used up
    ring.advance();
  }

  auto* to = sums_out + static_cast<int64_t>(blockIdx.x) * Shape::kBlockSums;
  bias += __shfl_xor_sync(0xFFFFFFFFu, bias, 1);
  if (threadIdx.x % 2 == 0) {
    to[Shape::kTileSums + bias_row] = bias;
  }
  to += (16 * warp + lane / 4) * Shape::kChannels + lane % 4 * 2;
#pragma unroll
  for (int tap = 0; tap < Shape::kTaps; ++tap) {
#pragma unroll
    for (int i = 0; i < Shape::kSums / 4; ++i) {
      auto* pair = to + tap * Shape::kRows * Shape::kChannels + i * 8;
      *reinterpret_cast<float2*>(pair) = make_float2(sums[tap][i * 4], sums[tap][i * 4 + 1]);
      *reinterpret_cast<float2*>(pair + 8 * Shape::kChannels) = make_float2(sums[tap][i * 4 + 2], sums[tap][i * 4 + 3]);
    }
  }
  if (threadIdx.x == 0) {
    flags_out[blockIdx.x] = flags;
  }
#endif
}

// The sum of all parts' sums at `index`, [parts][count], in an order that only their number decides: each of `slices`
// warps adds up every slices-th part, and the first of them the slices. True for that one.
constexpr int kSumWarps = 8;

inline int sum_slices(int64_t parts) {
  int slices = 1;
  while (slices < kSumWarps && 2 * slices <= parts) {
    slices *= 2;
  }
  return slices;
}

inline unsigned sum_blocks(int64_t count, int64_t parts) {
  return static_cast<unsigned>(ceil_div(count, kSumWarps / sum_slices(parts) * kWarp));
}

static __device__ bool sum_parts(
    const float* sums, int64_t parts, int64_t count, int slices, int64_t& index, float& sum) {
  __shared__ float shared[kSumWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, slice = warp % slices;
  index = (static_cast<int64_t>(blockIdx.x) * (kSumWarps / slices) + warp / slices) * kWarp + lane;
  sum = 0;
  if (index < count) {
#pragma unroll 8
    for (int64_t part = slice; part < parts; part += slices) {
      sum += sums[part * count + index];
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (slice > 0 || index >= count) {
    return false;
  }
  for (int i = 1; i < slices; ++i) {
    sum += shared[warp + i][lane];
  }
  return true;
}

template <typename Shape>
__global__ void __launch_bounds__(kWarp * kSumWarps) sum_thin_grads(
    const __grid_constant__ WeightGradProblems p,
    const __grid_constant__ ThinGradTiling tiling,
    int slices,
    const float* sums,
    const typename Shape::scalar_t* input,
    const typename Shape::scalar_t* grad_output,
    const int* flags,
    typename Shape::scalar_t* grad_weight,
    typename Shape::scalar_t* grad_bias) {
  using scalar_t = typename Shape::scalar_t;
  const auto& g = p.grad_output;
  float least = 0;
  if constexpr (Shape::Format::kExact) {
    int joined = 0;
    for (int64_t i = threadIdx.x; i < tiling.parts * tiling.tiles; i += kWarp * kSumWarps) {
      joined |= flags[i];
    }
    const bool small = __syncthreads_or(joined & Extremes::kHasSmall);
    const bool large = __syncthreads_or(joined & Extremes::kHasLarge);
    least = Extremes::least_sum((small ? Extremes::kHasSmall : 0) | (large ? Extremes::kHasLarge : 0));
  }
  int64_t index;
  float sum;
  if (!sum_parts(sums, tiling.parts, tiling.tiles * Shape::kBlockSums, slices, index, sum)) {
    return;
  }
  const ThinGradTile tile(tiling, static_cast<int>(index / Shape::kBlockSums), Shape::kChannels, Shape::kTaps);
  const int within = static_cast<int>(index % Shape::kBlockSums);
  if (within >= Shape::kTileSums) {
    const int row = within - Shape::kTileSums;
    if (grad_bias && tile.tap == 0 && tile.in_channel == 0 && row < tiling.channels &&
        tile.channel + row < g.channels) {
      grad_bias[tile.group * g.channels + tile.channel + row] = narrow<scalar_t>(sum);
    }
    return;
  }
  const int row = within / Shape::kChannels % Shape::kRows, classes = static_cast<int>(g.classes);
  const auto ic = tile.in_channel + within % Shape::kChannels;
  const auto tap = tile.tap + within / (Shape::kRows * Shape::kChannels);
  const auto oc = tile.channel + row / classes;
  const auto k = g.tap_step * tap + row % classes;
  if (ic >= p.input.channels || row >= tiling.channels * classes || oc >= g.channels || tap >= g.taps ||
      k >= g.kernel) {
    return;
  }
  if (!(fabsf(sum) >= least) || !is_finite(sum)) {
    sum = plain_weight_grad(p.input, g, input, grad_output, tile.group, ic, oc, k);
  }
  grad_weight[((tile.group * p.input.channels + ic) * g.channels + oc) * g.kernel + k] = narrow<scalar_t>(sum);
}

// Whether these kernels can take a problem of fits_weight_grad.
template <typename Shape>
bool fits_thin_grad(const WeightGradProblems& p, const ThinGradTiling& tiling) {
  return p.grad_output.classes <= Shape::kRows && tiling.halo <= Shape::kHalo && tiling.slots >= 1 &&
      tiling.tiles * tiling.parts < (1 << 30) &&
      tiling.tiles * Shape::kBlockSums / kWarp < (1 << 30);
}

// Whether all of a row of grad_output belongs to a stage.
template <typename Shape>
bool covers_bias(const WeightGradProblems& p, const ThinGradTiling& tiling) {
  const auto& g = p.grad_output;
  return g.length <= g.position_stride * tiling.stages_of_sample * Shape::kDepth + g.base;
}

// In floats: the sums, and an int for each block behind them.
template <typename Shape>
int64_t thin_grad_workspace(const ThinGradTiling& tiling) {
  return tiling.parts * tiling.tiles * (Shape::kBlockSums + 1);
}

// `grad_bias` may be null.
template <typename Shape>
void launch_thin_grad(
    const WeightGradProblems& p,
    const ThinGradTiling& tiling,
    const typename Shape::scalar_t* input,
    const typename Shape::scalar_t* grad_output,
    typename Shape::scalar_t* grad_weight,
    typename Shape::scalar_t* grad_bias,
    float* sums,
    cudaStream_t stream) {
  const auto blocks = tiling.parts * tiling.tiles;
  auto* flags = reinterpret_cast<int*>(sums + blocks * Shape::kBlockSums);
  const int bytes = Shape::kSlots + tiling.slots * tiling.slot_bytes;
  C10_CUDA_CHECK(cudaFuncSetAttribute(thin_grad_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  thin_grad_kernel<Shape><<<static_cast<unsigned>(blocks), kWarpgroup, bytes, stream>>>(
      p, tiling, input, grad_output, grad_bias != nullptr, sums, flags);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const auto count = tiling.tiles * Shape::kBlockSums;
  sum_thin_grads<Shape><<<sum_blocks(count, tiling.parts), kWarp * kSumWarps, 0, stream>>>(
      p, tiling, sum_slices(tiling.parts), sums, input, grad_output, flags, grad_weight, grad_bias);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace at::native::conv_transpose1d
