// The formats in which conv_transpose1d's matrix kernels multiply: how numbers are split into terms ("planes") that
// tensor cores take, and which products of terms add up to the product.
#pragma once

#include <ATen/native/cuda/ConvTranspose1dMma.cuh>

namespace at::native::conv_transpose1d {

template <typename T>
__device__ uint32_t as_word(const T& pair) {
  static_assert(sizeof(T) == 4);
  return reinterpret_cast<const uint32_t&>(pair);
}

// A block is 16 bytes of a plane: kBlock numbers along the depth.

template <typename T, Element kType>
struct SinglePass16 {
  using scalar_t = T;
  static constexpr Element kElement = kType;
  static constexpr int kPlanes = 1;
  static constexpr int kBlock = 8;
  static constexpr bool kExact = false;

  static __device__ void split(const scalar_t (&values)[kBlock], uint32_t (&words)[kPlanes][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[0][i] = reinterpret_cast<const uint16_t&>(values[2 * i]) |
          static_cast<uint32_t>(reinterpret_cast<const uint16_t&>(values[2 * i + 1])) << 16;
    }
  }
};

using BFloat16Format = SinglePass16<__nv_bfloat16, Element::BFloat16>;
using HalfFormat = SinglePass16<__half, Element::Half>;

struct TF32Format {
  using scalar_t = float;
  static constexpr Element kElement = Element::TF32;
  static constexpr int kPlanes = 1;
  static constexpr int kBlock = 4;
  static constexpr bool kExact = false;

  static __device__ void split(const float (&values)[kBlock], uint32_t (&words)[kPlanes][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(words[0][i]) : "f"(values[i]));
    }
  }
};

// float32 as a sum of bfloat16, which have its range. Three together have its 24 bits; of the nine products of terms the
// three smallest are below float32's rounding. A non-finite factor gives a non-finite sum, as does one that rounds up
// beyond the range; numbers so small that a term would be subnormal are looked for. Two have more bits than TF32, where
// tensor cores do not take TF32 in the order in which factors lie.
template <int kTerms>
struct SplitFormat {
  using scalar_t = float;
  static constexpr Element kElement = Element::BFloat16;
  static constexpr int kPlanes = kTerms;
  static constexpr int kBlock = 8;
  static constexpr bool kExact = kTerms == 3;

  static __device__ void split(const float (&values)[kBlock], uint32_t (&words)[kPlanes][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float a = values[2 * i], b = values[2 * i + 1];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        const auto term = __floats2bfloat162_rn(a, b);
        words[plane][i] = as_word(term);
        a -= __uint_as_float(words[plane][i] << 16);
        b -= __uint_as_float(words[plane][i] & 0xFFFF0000u);
      }
    }
  }
};

using ExactFormat = SplitFormat<3>;
using TwoTermFormat = SplitFormat<2>;

// float32 as a sum of two half numbers, together 22 bits, for half the products of ExactFormat; for numbers that lie
// within Extremes::fits_scaled. They are scaled by a power of two that they share, and the second term is kSecond times
// what it stands for, so that neither is subnormal. Products with a second term are summed by themselves therefore.
struct ScaledFormat {
  using scalar_t = float;
  static constexpr Element kElement = Element::Half;
  static constexpr int kPlanes = 2;
  static constexpr int kBlock = 8;
  static constexpr bool kExact = false;
  static constexpr float kSecond = 2048.0f;

  static __device__ void split(const float (&values)[kBlock], float scale, uint32_t (&words)[kPlanes][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = values[2 * i] * scale, b = values[2 * i + 1] * scale;
      const auto first = __floats2half2_rn(a, b);
      words[0][i] = as_word(first);
      words[1][i] =
          as_word(__floats2half2_rn((a - __low2float(first)) * kSecond, (b - __high2float(first)) * kSecond));
    }
  }
};

// The products of planes (of the weight, of the source), small ones first.
template <typename Format>
struct Products {
  static constexpr int kCount = Format::kPlanes * (Format::kPlanes + 1) / 2;
  static_assert(Format::kPlanes <= 3);

  static constexpr __host__ __device__ int weight_plane(int i) {
    constexpr int kOfThree[] = {2, 1, 0, 1, 0, 0}, kOfTwo[] = {1, 0, 0};
    return Format::kPlanes == 3 ? kOfThree[i] : Format::kPlanes == 2 ? kOfTwo[i] : 0;
  }
  static constexpr __host__ __device__ int source_plane(int i) {
    constexpr int kOfThree[] = {0, 1, 2, 0, 1, 0}, kOfTwo[] = {0, 1, 0};
    return Format::kPlanes == 3 ? kOfThree[i] : Format::kPlanes == 2 ? kOfTwo[i] : 0;
  }
};

// What ExactFormat's terms do not hold to float32's accuracy: a number below 2^-100 may be off by 2^-134. With other
// factors up to 2^20 that is below float32's rounding of all sums but those below 2^-60.
struct Extremes {
  uint32_t least = ~0u; // of twice the bits of magnitudes minus 1, so that 0 is the largest
  uint32_t most = 0;

  static constexpr uint32_t kSmall = (127u - 100u) << 23, kLarge = (127u + 20u) << 23;
  static constexpr int kHasSmall = 1, kHasLarge = 2;

  __device__ void add_least(float value) {
    least = min(least, 2 * __float_as_uint(value) - 1);
  }

  __device__ void add_most(float value) {
    most = max(most, __float_as_uint(value) & 0x7FFFFFFFu);
  }

  __device__ void add(float value) {
    add_least(value);
    add_most(value);
  }

  __device__ void join_warp() {
    least = __reduce_min_sync(0xFFFFFFFFu, least);
    most = __reduce_max_sync(0xFFFFFFFFu, most);
  }

  // With those of warps: (least, most) each.
  __device__ void join(const uint2* of_warps, int warps) {
    for (int i = 0; i < warps; ++i) {
      least = min(least, of_warps[i].x);
      most = max(most, of_warps[i].y);
    }
  }

  __device__ bool has_small() const {
    return least < 2 * kSmall - 1;
  }

  __device__ int flags() const {
    return (has_small() ? kHasSmall : 0) | (most > kLarge ? kHasLarge : 0);
  }

  // Whether ScaledFormat holds numbers of these magnitudes: not too many octaves, and near enough to 1 for the product
  // of two scales. Scaled, the largest is 2^14 or more, but below 2^15.
  __device__ bool fits_scaled() const {
    const int high = static_cast<int>(most >> 23), low = static_cast<int>((least + 1) >> 24);
    return most == 0 || (high >= 127 - 40 && high <= 127 + 40 && low >= high - 28);
  }

  __device__ float scale() const {
    return most == 0 ? 1.0f : __uint_as_float((127 + 14 + 127 - (most >> 23)) << 23);
  }

  __device__ float unscale() const {
    return most == 0 ? 1.0f : __uint_as_float(((most >> 23) - 14) << 23);
  }

  // Sums below this are computed again, if factors have these flags.
  static __device__ float least_sum(int flags) {
    return !(flags & kHasSmall) ? 0.0f : __int_as_float(flags & kHasLarge ? 0x7F800000 : (127 - 60) << 23);
  }
};

} // namespace at::native::conv_transpose1d
