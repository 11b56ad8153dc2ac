// How conv_transpose1d's matrix kernel stores the sums of a tile: phases of a channel interleaved, bias added, and what
// tensor cores cannot be trusted with computed again.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dPlain.cuh>
#include <ATen/native/cuda/ConvTranspose1dTiling.cuh>

namespace at::native::conv_transpose1d {

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
    float check[4] = {}; // NaN if any sum is infinite or NaN
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      check[i % 4] = __fmaf_rn(sums[i], 0.0f, check[i % 4]);
    }
    const bool finite = check[0] + check[1] + check[2] + check[3] == 0;
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

} // namespace at::native::conv_transpose1d
