// What the CUDA kernels of causal_conv1d and causal_conv1d_update share: how tensors, parameters
// and indices are read, the arithmetic, and which taps of an output count.
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
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace at::native {

namespace {

constexpr int kThreads = 128;

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

// Loads far ahead go to shared memory, where each thread reads no more than it has asked for, so that
// no thread waits for another; they are waited for in groups, oldest first.
template <typename scalar_t, int kSize>
__device__ void load_async(Vector<scalar_t, kSize>* to, const scalar_t* from) {
  constexpr int kBytes = sizeof(scalar_t) * kSize;
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(kBytes) : "memory");
  }
}

__device__ inline void end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups but the last kGroups.
template <int kGroups>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Waits for all of them.
__device__ inline void wait_for_loads() {
  end_group();
  wait_for_groups<0>();
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

// weight [D, W] and bias [D], of the input's dtype or of the arithmetic type, read as the latter.
template <typename scalar_t>
struct Parameters {
  using acc_t = at::opmath_type<scalar_t>;
  const void* weight;
  const void* bias;
  int64_t weight_channel;
  int64_t weight_tap;
  int64_t bias_channel;
  bool narrow;

  Parameters(const Tensor& weight, const Tensor& bias)
      : weight(weight.const_data_ptr()),
        bias(bias.defined() ? bias.const_data_ptr() : nullptr),
        weight_channel(weight.stride(0)),
        weight_tap(weight.stride(1)),
        bias_channel(bias.defined() ? bias.stride(0) : 0),
        narrow(weight.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value) {}

  __device__ acc_t get(const void* data, int64_t offset) const {
    return narrow ? static_cast<acc_t>(load_element(static_cast<const scalar_t*>(data) + offset))
                  : load_element(static_cast<const acc_t*>(data) + offset);
  }

  __device__ acc_t tap(int64_t d, int64_t k) const {
    return get(weight, d * weight_channel + k * weight_tap);
  }

  __device__ acc_t offset(int64_t d) const {
    return bias ? get(bias, d * bias_channel) : acc_t(0);
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
    return wide ? load_element(static_cast<const int64_t*>(data) + offset) : load_element(static_cast<const int32_t*>(data) + offset);
  }
};

// ---- Arithmetic: one spelling for all kernels, so that all give the same bits --------------

__device__ inline float multiply_add(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}

__device__ inline double multiply_add(double a, double b, double c) {
  return __fma_rn(a, b, c);
}

// z / (1 + exp(-z)) and its derivative, spelled so that infinities and NaN go through as in
// torch.nn.functional.silu.
template <typename scalar_t>
struct Silu {
  using acc_t = at::opmath_type<scalar_t>;
  static constexpr float kLog2E = 1.4426950408889634f;

  static __device__ acc_t silu(acc_t z) {
    if constexpr (sizeof(scalar_t) == 2) {
      return (0.25f * z) * quarter_reciprocal(z);
    } else {
      return z / (acc_t(1) + exp(-z));
    }
  }

  // The derivative of silu.
  static __device__ acc_t slope(acc_t z) {
    acc_t s;
    if constexpr (sizeof(scalar_t) == 2) {
      // Where the reciprocal below 2^-126 becomes 0, the slope is as good as that.
      float e;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * -kLog2E));
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    } else {
      s = acc_t(1) / (acc_t(1) + exp(-z));
    }
    return s * multiply_add(z, acc_t(1) - s, acc_t(1));
  }

 private:
  // 4 / (1 + exp(-z)) by the approximate instructions, whose error (relatively 2^-18) is far below
  // half an ulp of float16 and bfloat16. The factor keeps the reciprocal of all finite values of
  // exp(-z) above the smallest normal number, below which these instructions return 0.
  static __device__ float quarter_reciprocal(float z) {
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(__fmaf_rn(z, -kLog2E, -2.0f)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(0.25f + e));
    return r;
  }
};

template <typename scalar_t, int kSize>
__device__ Vector<scalar_t, kSize> narrow(const at::opmath_type<scalar_t> (&values)[kSize]) {
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

// An element of an array in registers, by an index that is not a constant.
template <typename T, int kSize>
__device__ void set_element(T (&array)[kSize], int i, T value) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    array[j] = i == j ? value : array[j];
  }
}

template <typename T, int kSize>
__device__ T get_element(const T (&array)[kSize], int i) {
  T value{};
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    value = i == j ? array[j] : value;
  }
  return value;
}

// ---- Sequences: which taps count -----------------------------------------------------------

// A stretch of one row of the input that has a state of its own.
struct Segment {
  int64_t state; // row of the states
  int64_t start;
  int64_t end;
};

// How a call's rows are divided. Values out of range never lead out of bounds: the segments of
// cu_seqlens are clamped to [0, T], and what no segment covers belongs to its neighbour.
struct Sequences {
  Indices seq_idx;
  Indices cu_seqlens;
  const int64_t* last; // with seq_idx: the last position of each row that is not padding
  int64_t time; // T
  int64_t count; // N

  Sequences(const CausalConv1dArgs& args, const Tensor& last)
      : seq_idx(args.seq_idx),
        cu_seqlens(args.cu_seqlens),
        last(last.defined() ? last.const_data_ptr<int64_t>() : nullptr),
        time(args.input.size(2)),
        count(args.cu_seqlens.defined() ? args.cu_seqlens.size(0) - 1 : args.input.size(0)) {}

  __device__ int64_t bound(int64_t n) const {
    const auto value = cu_seqlens.at(0, n);
    return value < 0 ? 0 : value > time ? time : value;
  }

  // Segment n as it is (possibly empty).
  __device__ Segment segment(int64_t n) const {
    if (!cu_seqlens.data) {
      return {n, 0, time};
    }
    const auto start = bound(n);
    const auto end = bound(n + 1);
    return {n, start, end < start ? start : end};
  }

  // The segment of row b that position t is in.
  __device__ Segment find(int64_t b, int64_t t) const {
    if (!cu_seqlens.data) {
      return {b, 0, time};
    }
    int64_t low = 0, high = count; // bound(low) <= t, or low is 0; bound(high) > t, or high is N
    while (high - low > 1) {
      const auto middle = (low + high) / 2;
      (bound(middle) <= t ? low : high) = middle;
    }
    return {low, low == 0 ? 0 : bound(low), count == 0 ? time : bound(low + 1)};
  }

  // Moves on to the segment of a later position.
  __device__ void advance(Segment& segment, int64_t t) const {
    while (t >= segment.end && segment.state + 1 < count) {
      ++segment.state;
      segment.start = segment.end;
      segment.end = bound(segment.state + 1);
    }
  }

  // Whether output t sees the input at s <= t, which may lie before the start (in the state).
  __device__ bool counts(int64_t b, int64_t t, int64_t s) const {
    if (!seq_idx.data) {
      return true;
    }
    const auto index = seq_idx.at(b, t);
    return index >= 0 && (s == t || seq_idx.at(b, s < 0 ? 0 : s) == index);
  }

  // The position that place j of a segment's final state holds; below 0 it is place
  // W-1 + position of the initial state. False if it holds 0.
  __device__ bool final_source(int64_t b, const Segment& segment, int64_t width, int64_t j, int64_t& position) const {
    const auto size = segment.end - segment.start;
    const auto end = last ? last[b] : size - 1;
    position = end - (width - 2) + j;
    if (!seq_idx.data || size == 0) {
      return true;
    }
    return end >= 0 && seq_idx.at(b, position < 0 ? 0 : position) == seq_idx.at(b, end);
  }

  // The place of a final state that holds position s, or false.
  __device__ bool final_place(int64_t b, int64_t s, int64_t width, int64_t& state, int64_t& j) const {
    const auto segment = find(b, s);
    state = segment.state;
    const auto end = last ? last[b] : segment.end - segment.start - 1;
    j = s - segment.start - (end - (width - 2));
    return j >= 0 && j < width - 1 && count > 0 &&
        (!seq_idx.data || seq_idx.at(b, s) == seq_idx.at(b, end));
  }
};

// One channel of one row of the input, read through its states and masks, an element at a time:
// for what is rare, and for filters of any width.
template <typename scalar_t>
struct Source {
  using acc_t = at::opmath_type<scalar_t>;
  View<const scalar_t> input;
  View<const scalar_t> state;

  // The input at s as output t sees it.
  __device__ acc_t tap(
      const Sequences& sequences, const Segment& segment, int64_t b, int64_t d, int64_t width, int64_t t, int64_t s)
      const {
    if (!sequences.counts(b, t, s)) {
      return 0;
    }
    if (s >= segment.start) {
      return static_cast<acc_t>(*input.at(b, d, s));
    }
    return state.data ? static_cast<acc_t>(*state.at(segment.state, d, width - 1 + s - segment.start)) : acc_t(0);
  }

  __device__ acc_t preactivation(
      const Sequences& sequences,
      const Segment& segment,
      const Parameters<scalar_t>& parameters,
      int64_t b,
      int64_t d,
      int64_t width,
      int64_t t) const {
    auto z = parameters.offset(d);
    for (int64_t k = 0; k < width; ++k) {
      z = multiply_add(
          parameters.tap(d, k), tap(sequences, segment, b, d, width, t, t + k - (width - 1)), z);
    }
    return z;
  }
};

// The sums again of those of the outputs t.. that see an initial state of cu_seqlens: few, so one by one.
// p: the parameters of either pass.
template <typename scalar_t, int W, typename Params, int kVec, typename acc_t>
__device__ void see_states(const Params& p, int64_t b, int64_t d, int64_t t, acc_t (&z)[kVec]) {
  if (t >= p.time) {
    return;
  }
  const Source<scalar_t> source{p.input, p.initial_state};
  auto segment = p.sequences.find(b, t);
#pragma unroll 1
  for (int j = 0; j < kVec && t + j < p.time; ++j) {
    p.sequences.advance(segment, t + j);
    if (t + j - segment.start < W - 1) {
      set_element(z, j, source.preactivation(p.sequences, segment, p.parameters, b, d, W, t + j));
    }
  }
}

// A byte for each position: bit k says whether tap k of the output there is an input of its own
// sequence. Found once for all channels; positions beyond the row's end have none.
struct TapMasks {
  const uint8_t* data = nullptr; // null where rows are not divided
  int64_t pitch = 0; // of a row, in bytes

  // The masks of kSize positions from t on, which is a multiple of kSize.
  template <int kSize>
  __device__ Vector<uint8_t, kSize> load(int64_t b, int64_t t) const {
    return t < pitch ? load_vector<uint8_t, kSize>(data + b * pitch + t) : Vector<uint8_t, kSize>{};
  }
};

// Whether all taps of all the positions count.
template <int W, int kSize>
__device__ bool every_tap(const Vector<uint8_t, kSize>& masks) {
  bool every = true;
#pragma unroll
  for (int i = 0; i < kSize / 4; ++i) {
    every = every && masks.words[i] == 0x01010101u * ((1u << W) - 1);
  }
  return every;
}

__global__ void __launch_bounds__(kThreads)
find_tap_masks(const Sequences sequences, int64_t width, int64_t pitch, int64_t size, uint8_t* masks) {
  const auto i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) {
    return;
  }
  const auto b = i / pitch, t = i % pitch;
  unsigned mask = 0;
  if (t < sequences.time) {
    const auto segment = sequences.find(b, t);
    for (int k = 0; k < width; ++k) {
      const auto s = t - (width - 1) + k;
      const bool own = sequences.seq_idx.data ? sequences.counts(b, t, s) : s >= segment.start;
      mask |= own ? 1u << k : 0u;
    }
  }
  masks[i] = mask;
}

// ---- Rows along time -----------------------------------------------------------------------

// The 16 bytes that begin `shift` bytes into two neighbouring vectors.
__device__ inline uint4 join(const uint4& low, const uint4& high, unsigned shift) {
  const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  unsigned by_two[6], by_one[5];
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    by_two[i] = shift & 8 ? words[i + 2] : words[i];
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    by_one[i] = shift & 4 ? by_two[i + 1] : by_two[i];
  }
  const auto bits = (shift & 3) * 8;
  return {
      __funnelshift_r(by_one[0], by_one[1], bits),
      __funnelshift_r(by_one[1], by_one[2], bits),
      __funnelshift_r(by_one[2], by_one[3], bits),
      __funnelshift_r(by_one[3], by_one[4], bits)};
}

constexpr int kLanes = 32;
constexpr unsigned kEveryLane = 0xffffffff;

// A row of positions next to each other, of any alignment, which a warp reads kSpan at a time.
template <typename scalar_t>
struct Row {
  static constexpr int kVec = 16 / sizeof(scalar_t);
  static constexpr int kSpan = kLanes * kVec;
  using vector_t = Vector<scalar_t, kVec>;

  const scalar_t* data;
  int64_t size;
  unsigned shift; // bytes by which the warp's vectors miss the alignment
  const scalar_t* state; // the W-1 inputs before the first, or null for zeros
  int64_t state_stride;
  int width; // W

  __device__ unsigned bits(int64_t t) const {
    const auto* from = t >= 0 ? data + t : state + (t + width - 1) * state_stride;
    const bool exists = t >= 0 ? t < size : state && t >= 1 - width;
    return exists ? __ldg(reinterpret_cast<const typename Word<sizeof(scalar_t)>::type*>(from)) : 0;
  }

  // Whether the span from `first` on lies inside the row, with what is read to shift it.
  __device__ bool inside(int64_t first) const {
    const int margin = shift == 0 ? 0 : kVec;
    return first >= margin && first + kSpan + margin <= size;
  }

  // Vector `lane` of the span. These two are called, not inlined: they are long and rarely taken.
  static __device__ __noinline__ vector_t load(Row row, int64_t first, int lane) {
    if (!row.inside(first)) {
      return load_masked(row, first + lane * kVec);
    }
    const auto* from = row.data + first + lane * kVec;
    if (row.shift == 0) {
      return load_vector<scalar_t, kVec>(from);
    }
    const auto* aligned = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(from) - row.shift);
    const auto joined = join(__ldg(aligned), __ldg(aligned + 1), row.shift);
    return reinterpret_cast<const vector_t&>(joined);
  }

  // The vector at t, of which some may lie outside the row.
  static __device__ __noinline__ vector_t load_masked(Row row, int64_t t) {
    vector_t vector{};
    if (t >= 0 && t + kVec <= row.size && row.shift == 0) {
      return load_vector<scalar_t, kVec>(row.data + t);
    }
    if (t < row.size && (t + kVec > 0 || row.state)) {
      unsigned elements[kVec];
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        elements[j] = row.bits(t + j);
      }
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        vector.set_bits(j, elements[j]);
      }
    }
    return vector;
  }

  // Of `count` spans from `first` on, those that lie inside the row and that no shift cuts: [low, high).
  __device__ void straight_spans(int64_t first, int count, int& low, int& high) const {
    const auto inside = (size - first) / kSpan;
    low = first >= 0 ? 0 : 1;
    high = shift != 0 ? 0 : static_cast<int>(min(inside, static_cast<int64_t>(count)));
  }
};

// Stores those of the positions t.. that lie in a row of `size`.
template <typename scalar_t, int kVec>
__device__ void store_masked(scalar_t* row, int64_t size, int64_t t, const Vector<scalar_t, kVec>& values) {
  if (t >= 0 && t + kVec <= size && reinterpret_cast<uintptr_t>(row + t) % 16 == 0) {
    store_vector(row + t, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (t + i >= 0 && t + i < size) {
      using word_t = typename Word<sizeof(scalar_t)>::type;
      *reinterpret_cast<word_t*>(row + t + i) = values.bits(i);
    }
  }
}

// inputs[j + k] = tap k of output j of a lane's vector. In shared memory, where it lies, the vectors of the
// lanes before stand in front of it.
template <typename scalar_t, int W, typename acc_t, int kVec, int kInputs>
__device__ void widen_inputs(const Vector<scalar_t, kVec>* vector, acc_t (&inputs)[kInputs]) {
  constexpr int kBefore = (W - 1 + kVec - 1) / kVec;
#pragma unroll
  for (int q = 0; q <= kBefore; ++q) {
    // Of the first of them, the half that is needed.
    Vector<scalar_t, kVec> words;
    constexpr int kLast = (W - 2 + kVec) % kVec + 1; // elements needed of the vector furthest back
    if (q == kBefore && q > 0 && kLast * sizeof(scalar_t) <= 8) {
      reinterpret_cast<uint2*>(words.words)[1] = reinterpret_cast<const uint2*>(vector - q)[1];
    } else {
      words = vector[-q];
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      const int i = W - 1 + j - q * kVec;
      if (i >= 0) {
        inputs[i] = words.widen(j);
      }
    }
  }
}

// The same from registers: `before[q-1]` is the vector of the lane q before.
template <typename scalar_t, int W, int kBefore, typename acc_t, int kVec, int kInputs>
__device__ void widen_inputs(
    const Vector<scalar_t, kVec> (&before)[kBefore], const Vector<scalar_t, kVec>& vector, acc_t (&inputs)[kInputs]) {
#pragma unroll
  for (int j = 0; j < W - 1; ++j) {
    const int back = W - 1 - j; // positions before the vector
    inputs[j] = before[(back - 1) / kVec].widen((kVec - back % kVec) % kVec);
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    inputs[W - 1 + j] = vector.widen(j);
  }
}

// The vector that lane `from` holds; of it, only the words of the last `elements` elements.
template <typename scalar_t, int kVec>
__device__ Vector<scalar_t, kVec> shuffle_last(const Vector<scalar_t, kVec>& vector, int from, int elements) {
  auto result = vector;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((kVec - elements) * static_cast<int>(sizeof(scalar_t)) < (i + 1) * 4) {
      result.words[i] = __shfl_sync(kEveryLane, result.words[i], from);
    }
  }
  return result;
}

// ---- Access plans --------------------------------------------------------------------------

// Along time: threads take vectors of positions. Along channels: threads take vectors of channels
// and walk along time; with vectors of one channel that serves all other strides too.
inline bool contiguous_along(const Tensor& tensor, int64_t dim) {
  return !tensor.defined() || tensor.size(dim) == 1 || tensor.stride(dim) == 1;
}

inline bool contiguous_along(std::initializer_list<Tensor> tensors, int64_t dim) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& t) { return contiguous_along(t, dim); });
}

// Whether all rows of positions begin at a multiple of 16 bytes.
inline bool aligned_rows(const Tensor& tensor) {
  const auto multiple = [&](int64_t dim) {
    return tensor.size(dim) == 1 || tensor.stride(dim) * tensor.element_size() % 16 == 0;
  };
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0 && multiple(0) && multiple(1);
}

// Bytes by which the rows of channels of a tensor miss an alignment, or -1 if not all by the same.
inline int64_t channel_misalignment(const Tensor& tensor, int64_t bytes) {
  for (const auto dim : {0, 2}) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) * tensor.element_size() % bytes != 0) {
      return -1;
    }
  }
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % bytes;
}

// The channels before the first aligned vector of all the tensors; all channels if they never align.
inline int64_t unaligned_channels(std::initializer_list<Tensor> tensors, int64_t vector) {
  int64_t head = -1;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    const auto bytes = vector * tensor.element_size();
    const auto misalignment = channel_misalignment(tensor, bytes);
    const auto channels = (bytes - misalignment) % bytes / tensor.element_size();
    if (misalignment < 0 || (head >= 0 && head != channels)) {
      return tensor.size(1);
    }
    head = channels;
  }
  return head;
}

// Division by a number known on the host: fast for all but numerators of 2^31 and more.
struct Divisor {
  int64_t value;
  bool fast;
  at::cuda::detail::IntDivider<unsigned> divider;

  // For numerators below `limit`.
  Divisor(int64_t value, int64_t limit)
      : value(value), fast(std::max(value, limit) <= std::numeric_limits<int32_t>::max()), divider(fast && value > 0 ? value : 1) {}

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
};

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Up to this W there are kernels for each one.
constexpr int64_t kMaxWidth = 8;

// Calls f with W as a compile-time constant, or with 0 if it is above kMaxWidth.
template <typename F>
void with_width(int64_t width, const F& f) {
#ifdef CAUSAL_CONV1D_DEV
  if (width == 4) return f(std::integral_constant<int, 4>());
  return f(std::integral_constant<int, 0>());
#else
  switch (width) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    case 6:
      return f(std::integral_constant<int, 6>());
    case 7:
      return f(std::integral_constant<int, 7>());
    case 8:
      return f(std::integral_constant<int, 8>());
    default:
      return f(std::integral_constant<int, 0>());
  }
#endif
}

// The last position of each row of seq_idx that is not padding, or -1.
__global__ void __launch_bounds__(kThreads) find_last_positions(const Indices seq_idx, int64_t time, int64_t* last) {
  __shared__ int64_t found[kThreads];
  const auto b = blockIdx.x;
  for (auto end = time; end > 0; end -= kThreads) {
    const auto t = end - 1 - threadIdx.x;
    const bool valid = t >= 0 && seq_idx.at(b, t) >= 0;
    if (__syncthreads_or(valid)) {
      found[threadIdx.x] = valid ? t : -1;
      __syncthreads();
      if (threadIdx.x == 0) {
        int i = 0;
        while (found[i] < 0) {
          ++i;
        }
        last[b] = found[i];
      }
      return;
    }
  }
  if (threadIdx.x == 0) {
    last[b] = -1;
  }
}

// The same as a tensor [B], if a final state or its gradient asks for it.
inline Tensor last_positions(const CausalConv1dArgs& args, const Tensor& final_state) {
  const auto batch = args.input.size(0);
  if (!args.seq_idx.defined() || !final_state.defined() || batch == 0) {
    return {};
  }
  auto last = at::empty({batch}, args.seq_idx.options().dtype(kLong));
  find_last_positions<<<batch, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      Indices(args.seq_idx), args.input.size(2), last.mutable_data_ptr<int64_t>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return last;
}

// The tap masks of a divided call as a tensor [B, pitch], else an undefined one.
inline Tensor tap_masks(const CausalConv1dArgs& args) {
  if ((!args.seq_idx.defined() && !args.cu_seqlens.defined()) || args.weight.size(1) > kMaxWidth) {
    return {};
  }
  const auto pitch = ceil_div(args.input.size(2), 8) * 8; // the most positions of a vector
  auto masks = at::empty({args.input.size(0), pitch}, args.input.options().dtype(kByte));
  if (masks.numel() > 0) {
    find_tap_masks<<<ceil_div(masks.numel(), kThreads), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        Sequences(args, {}), args.weight.size(1), pitch, masks.numel(), masks.mutable_data_ptr<uint8_t>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return masks;
}

inline TapMasks view_masks(const Tensor& masks) {
  return masks.defined() ? TapMasks{masks.const_data_ptr<uint8_t>(), masks.size(1)} : TapMasks{};
}

} // namespace

} // namespace at::native
