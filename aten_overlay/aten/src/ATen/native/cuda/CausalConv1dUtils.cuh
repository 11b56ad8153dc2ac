// What the CUDA kernels of causal_conv1d and causal_conv1d_update share: how tensors, parameters
// and indices are read, and the arithmetic.
#pragma once

#if defined(USE_ROCM)
#error "The CUDA kernels of causal_conv1d have not been ported to HIP"
#endif

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/detail/IntegerDivider.cuh>
#include <ATen/native/CausalConv1d.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace at::native {

namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes; // of a block
constexpr unsigned kEveryLane = 0xffffffff;

// An array that is passed and returned by value: of registers, wherever its indices are constants.
template <typename T, int kSize>
struct Values {
  T data[kSize > 0 ? kSize : 1];

  __host__ __device__ T& operator[](int i) {
    return data[i];
  }

  __host__ __device__ const T& operator[](int i) const {
    return data[i];
  }
};

// Computes a value here, not where it is used: so that the register of what it comes from can take what is loaded
// next, or so that a load is not put off.
__device__ inline void settle(float& value) {
  asm volatile("" : "+f"(value));
}

__device__ inline void settle(double& value) {
  asm volatile("" : "+d"(value));
}

__device__ inline void settle(int& value) {
  asm volatile("" : "+r"(value));
}

template <typename T, int kSize>
__device__ void settle(Values<T, kSize>& values) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    settle(values[i]);
  }
}

// Keeps a pointer in a register, rather than what it is computed from.
template <typename T>
__device__ void settle(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

// Where a branch is rare: so that it stays one.
__device__ inline void keep_branch() {
  asm volatile("");
}

// ---- Vectors -------------------------------------------------------------------------------

// Elements as they lie in memory, in whole words: taken apart only where they are used, so that a
// load is waited for no earlier.
template <typename scalar_t, int kSize>
struct alignas(sizeof(scalar_t) * kSize >= 4 ? sizeof(scalar_t) * kSize : 4) Vector {
  static constexpr int kBytes = sizeof(scalar_t) * kSize;
  static constexpr int kPerWord = sizeof(scalar_t) < 4 ? 4 / sizeof(scalar_t) : 1;
  static constexpr int kBits = sizeof(scalar_t) < 4 ? 8 * sizeof(scalar_t) : 32;
  static constexpr int kWords = (kBytes + 3) / 4;
  unsigned words[kWords];

  // Element i in the arithmetic type; i is a constant.
  __device__ at::opmath_type<scalar_t> widen(int i) const {
    if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
      return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000 : words[i / 2] << 16);
    } else if constexpr (std::is_same_v<scalar_t, c10::Half>) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 ? words[i / 2] >> 16 : words[i / 2])));
    } else if constexpr (std::is_same_v<scalar_t, float>) {
      return __uint_as_float(words[i]);
    } else {
      return __hiloint2double(words[2 * i + 1], words[2 * i]);
    }
  }

  // The bits of element i of at most 32 bits, and its setting in a vector of zeros; i may be anything.
  __device__ unsigned bits(int i) const {
    unsigned word = words[0];
#pragma unroll
    for (int w = 1; w < kWords; ++w) {
      word = i / kPerWord == w ? words[w] : word;
    }
    return kBits == 32 ? word : word >> i % kPerWord * kBits & ((1ull << kBits) - 1);
  }

  __device__ void set_bits(int i, unsigned value) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      words[w] |= i / kPerWord == w ? value << i % kPerWord * kBits : 0;
    }
  }
};

// The built-in type of so many bytes, for which there are load and store instructions.
template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using type = unsigned char;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// What no kernel writes while this one runs.
template <typename scalar_t, int kSize>
__device__ Vector<scalar_t, kSize> load_vector(const scalar_t* from) {
  constexpr int kBytes = sizeof(scalar_t) * kSize;
  const auto word = __ldg(reinterpret_cast<const typename Word<kBytes>::type*>(from));
  if constexpr (kBytes < 4) {
    return {word};
  } else {
    return reinterpret_cast<const Vector<scalar_t, kSize>&>(word);
  }
}

// What no kernel reads soon.
template <typename scalar_t, int kSize>
__device__ void store_vector(scalar_t* to, const Vector<scalar_t, kSize>& vector) {
  constexpr int kBytes = sizeof(scalar_t) * kSize;
  using word_t = typename Word<kBytes>::type;
  if constexpr (kBytes < 4) {
    __stcs(reinterpret_cast<word_t*>(to), static_cast<word_t>(vector.words[0]));
  } else {
    __stcs(reinterpret_cast<word_t*>(to), reinterpret_cast<const word_t&>(vector));
  }
}

template <typename scalar_t>
__device__ scalar_t load_element(const scalar_t* from) {
  const auto word = __ldg(reinterpret_cast<const typename Word<sizeof(scalar_t)>::type*>(from));
  return reinterpret_cast<const scalar_t&>(word);
}

// Loads far ahead go to shared memory, where each thread reads no more than it has asked for, so that no thread waits
// for another; they are waited for in groups, oldest first. What does not exist is read as zeros.
template <typename scalar_t, int kSize>
__device__ void load_async(Vector<scalar_t, kSize>* to, const scalar_t* from, bool exists = true) {
  constexpr int kBytes = sizeof(scalar_t) * kSize;
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared),
               "l"(from),
               "n"(kBytes),
               "r"(exists ? kBytes : 0)
               : "memory");
}

__device__ inline void end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups but the last kGroups.
template <int kGroups>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// ---- Tensors -------------------------------------------------------------------------------

// A [B, D, T] tensor, or one of states [N, D, W-1]; null if absent or empty. Strides are in elements.
template <typename scalar_t>
struct View {
  scalar_t* data = nullptr;
  int64_t batch = 0;
  int64_t channel = 0;
  int64_t time = 0;

  __device__ scalar_t* at(int64_t b, int64_t d, int64_t t) const {
    return data + b * batch + d * channel + t * time;
  }

  // Row (b, d) where both numbers fit into 32 bits.
  __device__ scalar_t* row(int64_t b, int64_t d) const {
    return data + (static_cast<unsigned>(b) * batch + static_cast<unsigned>(d) * channel);
  }
};

template <typename scalar_t>
View<scalar_t> view(const Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) {
    return {};
  }
  auto* data = [&] {
    if constexpr (std::is_const_v<scalar_t>) {
      return tensor.const_data_ptr<std::remove_const_t<scalar_t>>();
    } else {
      return tensor.mutable_data_ptr<scalar_t>();
    }
  }();
  // The stride of a dimension of one element says nothing.
  const auto stride = [&](int64_t dim) { return tensor.size(dim) == 1 ? 0 : tensor.stride(dim); };
  return {data, stride(0), stride(1), stride(2)};
}

// kSize elements in a row, at an address that is a multiple of their size up to 16 bytes, in the arithmetic type.
template <typename scalar_t, int kSize>
__device__ void load_dense(const scalar_t* from, Values<at::opmath_type<scalar_t>, kSize>& to) {
  constexpr int kBytes = sizeof(scalar_t) * kSize;
  constexpr int kWordBytes = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : kBytes % 4 == 0 ? 4 : sizeof(scalar_t);
  constexpr int kVec = kWordBytes / sizeof(scalar_t);
#pragma unroll
  for (int i = 0; i < kSize; i += kVec) {
    const auto vector = load_vector<scalar_t, kVec>(from + i);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      to[i + j] = vector.widen(j);
    }
  }
}

// weight [D, W] and bias [D], of the input's dtype or of the arithmetic type, read as the latter and multiplied by a
// scale: see Silu.
template <typename scalar_t>
struct Parameters {
  using acc_t = at::opmath_type<scalar_t>;
  const void* weight;
  const void* bias; // without one, the weight, so that a load needs no branch
  int64_t weight_channel;
  int64_t weight_tap;
  int64_t bias_channel;
  bool has_bias;
  bool narrow;
  bool dense; // both contiguous, from a multiple of 16 bytes on
  acc_t scale;

  Parameters(const Tensor& weight, const Tensor& bias, acc_t scale)
      : weight(weight.const_data_ptr()),
        bias((bias.defined() ? bias : weight).const_data_ptr()),
        weight_channel(weight.stride(0)),
        weight_tap(weight.stride(1)),
        bias_channel(bias.defined() ? bias.stride(0) : 0),
        has_bias(bias.defined()),
        narrow(weight.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value),
        dense(is_dense(weight) && (!bias.defined() || is_dense(bias))),
        scale(scale) {}

  __device__ acc_t get(const void* data, int64_t offset) const {
    const auto value = narrow ? static_cast<acc_t>(load_element(static_cast<const scalar_t*>(data) + offset))
                              : load_element(static_cast<const acc_t*>(data) + offset);
    return value * scale;
  }

  __device__ acc_t tap(int64_t d, int64_t k) const {
    return get(weight, d * weight_channel + k * weight_tap);
  }

  __device__ acc_t offset(int64_t d) const {
    return has_bias ? get(bias, d * bias_channel) : acc_t(0);
  }

  // All taps of a channel, and its bias.
  template <int W>
  __device__ void load(int64_t d, Values<acc_t, W>& taps, acc_t& offset) const {
    if (dense) {
      Values<acc_t, 1> offsets;
      load_dense<W, 1>(d, taps, offsets);
      offset = offsets[0];
      return;
    }
    with_type([&](auto zero) {
      using param_t = decltype(zero);
      const auto* from = static_cast<const param_t*>(weight) + d * weight_channel;
      // All loads before the first use.
      const auto last = load_element(static_cast<const param_t*>(bias) + d * bias_channel);
      param_t loaded[W];
#pragma unroll
      for (int k = 0; k < W; ++k) {
        loaded[k] = load_element(from + k * weight_tap);
      }
#pragma unroll
      for (int k = 0; k < W; ++k) {
        taps[k] = static_cast<acc_t>(loaded[k]) * scale;
      }
      offset = static_cast<acc_t>(last);
      settle(offset);
      offset = has_bias ? offset * scale : acc_t(0);
    });
  }

  // Those of kCount channels of dense parameters, from a multiple of kCount on.
  template <int W, int kCount>
  __device__ void load_dense(int64_t d, Values<acc_t, kCount * W>& taps, Values<acc_t, kCount>& offsets) const {
    with_type([&](auto zero) {
      using param_t = decltype(zero);
      native::load_dense<param_t>(static_cast<const param_t*>(weight) + d * W, taps);
      if (has_bias) {
        native::load_dense<param_t>(static_cast<const param_t*>(bias) + d, offsets);
      } else {
        offsets = {};
      }
#pragma unroll
      for (int i = 0; i < kCount * W; ++i) {
        taps[i] *= scale;
      }
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        offsets[c] *= scale;
      }
    });
  }

 private:
  static bool is_dense(const Tensor& tensor) {
    return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  }

  template <typename F>
  __device__ void with_type(const F& f) const {
    if (narrow) {
      f(scalar_t());
    } else {
      f(acc_t());
    }
  }
};

// A tensor of int32 or int64 indices, [B, T] or [N], read as int64; null if absent.
struct Indices {
  const void* data = nullptr;
  bool wide = false;
  int64_t row = 0;
  int64_t stride = 0;

  explicit Indices(const Tensor& tensor) {
    if (tensor.defined()) {
      data = tensor.const_data_ptr();
      wide = tensor.scalar_type() == kLong;
      row = tensor.dim() == 2 ? tensor.stride(0) : 0;
      stride = tensor.size(-1) == 1 ? 1 : tensor.stride(-1);
    }
  }

  __device__ int64_t at(int64_t b, int64_t i) const {
    const auto offset = b * row + i * stride;
    return wide ? load_element(static_cast<const int64_t*>(data) + offset)
                : load_element(static_cast<const int32_t*>(data) + offset);
  }
};

// ---- Arithmetic: one spelling for all kernels, so that all give the same bits --------------

__device__ inline float multiply_add(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}

__device__ inline double multiply_add(double a, double b, double c) {
  return __fma_rn(a, b, c);
}

// z / (1 + exp(-z)) and its derivative, without a branch and such that infinities and NaN go through as in
// torch.nn.functional.silu. Both take z multiplied by a scale, which comes with the weights for nothing and saves
// instructions where the arithmetic is more precise than the type.
template <typename scalar_t>
struct Silu {
  using acc_t = at::opmath_type<scalar_t>;
  static constexpr bool kFast = sizeof(scalar_t) == 2;
  static constexpr acc_t kLog2E = 1.4426950408889634;
  static constexpr acc_t kScale = kFast ? 0.25 : 1;
  static constexpr acc_t kSlopeScale = kFast ? -kLog2E : 1;

  // Of values z * kScale.
  template <int kSize>
  static __device__ Values<acc_t, kSize> silu(const Values<acc_t, kSize>& z) {
    Values<acc_t, kSize> y;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      // The error of the approximate instructions (relatively 2^-18) is far below half an ulp of these types.
      if constexpr (kFast) {
        y[i] = exp2_approximate(multiply_add(z[i], -4 * kLog2E, acc_t(-2))) + acc_t(0.25);
      } else {
        y[i] = multiply_add(exp(-z[i]), acc_t(0.25), acc_t(0.25));
      }
    }
    y = reciprocals(y);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      y[i] *= kFast ? z[i] : acc_t(0.25) * z[i];
    }
    return y;
  }

  static __device__ acc_t silu(acc_t z) {
    return silu(Values<acc_t, 1>{{z}})[0];
  }

  // grad * the derivative / kSlopeScale, of values z * kSlopeScale.
  template <int kSize>
  static __device__ Values<acc_t, kSize> times_slopes(Values<acc_t, kSize> grad, const Values<acc_t, kSize>& z) {
    // With s = 1 / (1 + exp(-z)) the derivative is s * (1 + z * (1 - s)).
    Values<acc_t, kSize> s;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      s[i] = multiply_add(kFast ? exp2_approximate(z[i]) : exp(-z[i]), acc_t(0.25), acc_t(0.25));
    }
    s = reciprocals(s);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      constexpr acc_t kZ = acc_t(0.25) / (kSlopeScale * kSlopeScale);
      const auto slope = multiply_add(z[i], multiply_add(s[i], acc_t(-0.25) * kZ, kZ), acc_t(0.25) / kSlopeScale);
      grad[i] = grad[i] * s[i] * slope;
    }
    return grad;
  }

  static __device__ acc_t times_slope(acc_t grad, acc_t z) {
    return times_slopes(Values<acc_t, 1>{{grad}}, Values<acc_t, 1>{{z}})[0];
  }

 private:
  static __device__ acc_t exp2_approximate(acc_t x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(static_cast<float>(x)));
    return y;
  }

  // 4 / (1 + exp(-z)) of a quarter of the divisor: so the reciprocals of all finite values of exp(-z) stay above the
  // smallest normal number, below which the instruction for them returns 0. In steps, so that the slow instructions
  // of all values are on their way together.
  template <int kSize>
  static __device__ Values<acc_t, kSize> reciprocals(Values<acc_t, kSize> e) {
    Values<acc_t, kSize> r;
    settle(e);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if constexpr (sizeof(scalar_t) == 8) {
        r[i] = 1 / e[i];
      } else {
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r[i]) : "f"(e[i]));
      }
    }
    settle(r);
    if constexpr (sizeof(scalar_t) == 4) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const auto better = multiply_add(r[i], multiply_add(-e[i], r[i], 1.0f), r[i]); // a step of Newton's
        r[i] = e[i] < std::numeric_limits<float>::infinity() ? better : r[i]; // 0 for infinity, NaN for NaN
      }
    }
    return r;
  }
};

template <typename scalar_t, int kSize>
__device__ Vector<scalar_t, kSize> narrow(const Values<at::opmath_type<scalar_t>, kSize>& values) {
  Vector<scalar_t, kSize> vector{};
  if constexpr (sizeof(scalar_t) == 2 && kSize % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
        reinterpret_cast<__nv_bfloat162&>(vector.words[i]) = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      } else {
        reinterpret_cast<__half2&>(vector.words[i]) = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
      }
    }
  } else if constexpr (sizeof(scalar_t) == 8) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      vector.words[2 * i] = __double2loint(values[i]);
      vector.words[2 * i + 1] = __double2hiint(values[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const auto value = static_cast<scalar_t>(values[i]);
      vector.set_bits(i, reinterpret_cast<const typename Word<sizeof(scalar_t)>::type&>(value));
    }
  }
  return vector;
}

// An element by an index that is not a constant.
template <typename T, int kSize>
__device__ void set_element(Values<T, kSize>& values, int i, T value) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    values[j] = i == j ? value : values[j];
  }
}

template <typename T, int kSize>
__device__ T get_element(const Values<T, kSize>& values, int i) {
  T value{};
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    value = i == j ? values[j] : value;
  }
  return value;
}

// ---- Launching ----------------------------------------------------------------------------

// Division by a number known on the host: fast for all but numerators of 2^31 and more.
struct Divisor {
  int64_t value;
  bool fast;
  at::cuda::detail::IntDivider<unsigned> divider;

  // For numerators below `limit`.
  Divisor(int64_t value, int64_t limit)
      : value(value),
        fast(std::max(value, limit) <= std::numeric_limits<int32_t>::max()),
        divider(fast && value > 0 ? value : 1) {}

  __device__ void divide(int64_t n, int64_t& quotient, int64_t& remainder) const {
    if (fast) {
      const auto result = divider.divmod(static_cast<unsigned>(n));
      quotient = result.div;
      remainder = result.mod;
    } else {
      quotient = n / value;
      remainder = n % value;
    }
  }

  // Where it is fast.
  __device__ void divide(unsigned n, unsigned& quotient, unsigned& remainder) const {
    const auto result = divider.divmod(n);
    quotient = result.div;
    remainder = result.mod;
  }
};

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, c10::cuda::current_device()));
  return value;
}

// Launches on the current stream. With `overlap` the kernel may begin as soon as all blocks of the one before it have
// called let_next_begin() or ended, and calls wait_for_previous() before it reads what that one writes. (From sm_90 on;
// elsewhere kernels follow each other.)
template <typename... Params, typename... Args>
void launch_kernel(void (*kernel)(Params...), int64_t blocks, int threads, bool overlap, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  // Before CUDA 12.3 such a launch cannot be captured in a graph.
  overlap = overlap && CUDART_VERSION >= 12030 && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.stream = c10::cuda::getCurrentCUDAStream();
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Up to this W there are kernels for each one. A compilation that is only a test takes fewer.
#ifndef CAUSAL_CONV1D_MAX_WIDTH
#define CAUSAL_CONV1D_MAX_WIDTH 8
#endif
constexpr int kMaxWidth = CAUSAL_CONV1D_MAX_WIDTH;

// Calls f with the width, from 1 to kMaxWidth, as a compile-time constant.
template <int W = 1, typename F>
void with_width(int64_t width, const F& f) {
  if (width == W) {
    f(std::integral_constant<int, W>());
  } else if constexpr (W < kMaxWidth) {
    with_width<W + 1>(width, f);
  }
}

inline bool contiguous_along(const Tensor& tensor, int64_t dim) {
  return !tensor.defined() || tensor.size(dim) == 1 || tensor.stride(dim) == 1;
}

} // namespace

} // namespace at::native
