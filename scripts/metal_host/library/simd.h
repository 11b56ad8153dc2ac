// Barriers, operations across the 32 lanes of a simdgroup, and 8x8 matrices that such a group holds.
#pragma once

namespace metal {

enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(int(a) | int(b));
}

__attribute__((always_inline)) inline void threadgroup_barrier(mem_flags flags) {
  metal_host_barrier(static_cast<uint>(flags));
}

namespace detail {

enum class simd_operation : uint {
  barrier,
  sum,
  product,
  max,
  min,
  bit_and,
  bit_or,
  bit_xor,
  shuffle,
  broadcast,
  broadcast_first,
  shuffle_xor,
  shuffle_down,
  shuffle_up,
  shuffle_and_fill_down,
  shuffle_and_fill_up,
  shuffle_rotate_down,
  shuffle_rotate_up,
  prefix_exclusive_sum,
  prefix_inclusive_sum,
  prefix_exclusive_product,
  prefix_inclusive_product,
  ballot,
  is_first,
  lane,
  matrix_multiply,
};

// Types that a simdgroup can exchange: numbers of at most 32 bits, and vectors of these.
template <class T>
constexpr bool takes_at_most_32_bits_v =
    is_arithmetic_v<T> && !is_same_v<element_t<T>, bool> && !is_same_v<element_t<T>, bfloat> &&
    sizeof(element_t<T>) <= 4;

template <class T>
__attribute__((always_inline)) inline metal_host_lanes exchange(simd_operation operation, const T& value) {
  return metal_host_exchange(&value, sizeof(T), static_cast<uint>(operation));
}

template <class T>
T value_of(const metal_host_lanes& lanes, uint lane) {
  T value;
  __builtin_memcpy(&value, lanes.values[lane], sizeof(T));
  return value;
}

inline bool is_active(const metal_host_lanes& lanes, uint lane) {
  return lane < 32 && (lanes.active >> lane & 1);
}

// Beyond the simdgroup a lane keeps what it has. What a lane that is not there gives is undefined: something
// that shows.
template <class T>
T shuffled(const metal_host_lanes& lanes, uint lane) {
  lane = lane < 32 ? lane : lanes.lane;
  if (is_active(lanes, lane)) {
    return value_of<T>(lanes, lane);
  }
  T garbage;
  __builtin_memset(&garbage, 0xaa, sizeof(T));
  return garbage;
}

template <class T, class F>
T reduce(const metal_host_lanes& lanes, F f) {
  uint lane = __builtin_ctz(lanes.active);
  T result = value_of<T>(lanes, lane);
  while (++lane < 32) {
    if (is_active(lanes, lane)) {
      result = T(f(result, value_of<T>(lanes, lane)));
    }
  }
  return result;
}

// Over the lanes before the caller, and the caller's own if inclusive.
template <class T, class F>
T prefix(const metal_host_lanes& lanes, T identity, bool inclusive, F f) {
  T result = identity;
  for (uint lane = 0; lane < lanes.lane + inclusive; ++lane) {
    if (is_active(lanes, lane)) {
      result = T(f(result, value_of<T>(lanes, lane)));
    }
  }
  return result;
}

template <class T>
T add(T a, T b) {
  if constexpr (is_same_v<T, int>) {
    return int(uint(a) + uint(b));
  } else {
    return T(a + b);
  }
}
template <class T>
T multiply(T a, T b) {
  if constexpr (is_same_v<T, int>) {
    return int(uint(a) * uint(b));
  } else {
    return T(a * b);
  }
}

} // namespace detail

#define METAL_HOST_SIMD(condition)                                                                \
  template <class T, enable_if_t<detail::takes_at_most_32_bits_v<T> && (condition), bool> = true> \
  __attribute__((always_inline)) inline T

#define METAL_HOST_SIMD_REDUCTION(name, operation, condition, expression)                                 \
  METAL_HOST_SIMD(condition) name(T value) {                                                              \
    return detail::reduce<T>(                                                                             \
        detail::exchange(detail::simd_operation::operation, value), [](T a, T b) { return expression; }); \
  }
METAL_HOST_SIMD_REDUCTION(simd_sum, sum, true, detail::add(a, b))
METAL_HOST_SIMD_REDUCTION(simd_product, product, true, detail::multiply(a, b))
METAL_HOST_SIMD_REDUCTION(simd_max, max, true, ::metal::max(a, b))
METAL_HOST_SIMD_REDUCTION(simd_min, min, true, ::metal::min(a, b))
METAL_HOST_SIMD_REDUCTION(simd_and, bit_and, is_integral_v<T>, a & b)
METAL_HOST_SIMD_REDUCTION(simd_or, bit_or, is_integral_v<T>, a | b)
METAL_HOST_SIMD_REDUCTION(simd_xor, bit_xor, is_integral_v<T>, a ^ b)
#undef METAL_HOST_SIMD_REDUCTION

#define METAL_HOST_SIMD_SHUFFLE(name, operation, source)                           \
  METAL_HOST_SIMD(true) simd_##name(T value, ushort by) {                          \
    const auto lanes = detail::exchange(detail::simd_operation::operation, value); \
    return detail::shuffled<T>(lanes, source);                                     \
  }
METAL_HOST_SIMD_SHUFFLE(shuffle, shuffle, by)
METAL_HOST_SIMD_SHUFFLE(broadcast, broadcast, by)
METAL_HOST_SIMD_SHUFFLE(shuffle_xor, shuffle_xor, lanes.lane ^ by)
METAL_HOST_SIMD_SHUFFLE(shuffle_down, shuffle_down, lanes.lane + by)
METAL_HOST_SIMD_SHUFFLE(shuffle_up, shuffle_up, lanes.lane - by)
METAL_HOST_SIMD_SHUFFLE(shuffle_rotate_down, shuffle_rotate_down, (lanes.lane + by) % 32)
METAL_HOST_SIMD_SHUFFLE(shuffle_rotate_up, shuffle_rotate_up, (lanes.lane + 32 - by % 32) % 32)
#undef METAL_HOST_SIMD_SHUFFLE

METAL_HOST_SIMD(true) simd_broadcast_first(T value) {
  const auto lanes = detail::exchange(detail::simd_operation::broadcast_first, value);
  return detail::value_of<T>(lanes, __builtin_ctz(lanes.active));
}
METAL_HOST_SIMD(true) simd_shuffle_and_fill_down(T value, T fill, ushort by) {
  const auto lanes = detail::exchange(detail::simd_operation::shuffle_and_fill_down, value);
  return lanes.lane + by < 32 ? detail::shuffled<T>(lanes, lanes.lane + by) : fill;
}
METAL_HOST_SIMD(true) simd_shuffle_and_fill_up(T value, T fill, ushort by) {
  const auto lanes = detail::exchange(detail::simd_operation::shuffle_and_fill_up, value);
  return lanes.lane >= by ? detail::shuffled<T>(lanes, lanes.lane - by) : fill;
}

#define METAL_HOST_SIMD_PREFIX(name, operation, identity, inclusive, expression) \
  METAL_HOST_SIMD(is_scalar_v<T>) simd_##name(T value) {                         \
    return detail::prefix<T>(                                                    \
        detail::exchange(detail::simd_operation::operation, value),              \
        T(identity),                                                             \
        inclusive,                                                               \
        [](T a, T b) { return expression; });                                    \
  }
METAL_HOST_SIMD_PREFIX(prefix_exclusive_sum, prefix_exclusive_sum, 0, false, detail::add(a, b))
METAL_HOST_SIMD_PREFIX(prefix_inclusive_sum, prefix_inclusive_sum, 0, true, detail::add(a, b))
METAL_HOST_SIMD_PREFIX(prefix_exclusive_product, prefix_exclusive_product, 1, false, detail::multiply(a, b))
METAL_HOST_SIMD_PREFIX(prefix_inclusive_product, prefix_inclusive_product, 1, true, detail::multiply(a, b))
#undef METAL_HOST_SIMD_PREFIX
#undef METAL_HOST_SIMD

class simd_vote {
 public:
  using vote_t = ulong;
  constexpr explicit simd_vote(vote_t vote = 0) : vote_(vote) {}
  constexpr explicit operator vote_t() const {
    return vote_;
  }
  constexpr bool all() const {
    return vote_ == 0xffffffff;
  }
  constexpr bool any() const {
    return vote_ != 0;
  }

 private:
  vote_t vote_;
};

__attribute__((always_inline)) inline simd_vote simd_ballot(bool value) {
  const auto lanes = detail::exchange(detail::simd_operation::ballot, value);
  ulong vote = 0;
  for (uint lane = 0; lane < 32; ++lane) {
    if (detail::is_active(lanes, lane) && detail::value_of<bool>(lanes, lane)) {
      vote |= 1ul << lane;
    }
  }
  return simd_vote(vote);
}
__attribute__((always_inline)) inline simd_vote simd_active_threads_mask() {
  return simd_ballot(true);
}
__attribute__((always_inline)) inline bool simd_any(bool value) {
  return simd_ballot(value).any();
}
__attribute__((always_inline)) inline bool simd_all(bool value) {
  return !simd_ballot(!value).any();
}
__attribute__((always_inline)) inline bool simd_is_first() {
  const auto lanes = detail::exchange(detail::simd_operation::is_first, false);
  return lanes.lane == uint(__builtin_ctz(lanes.active));
}
__attribute__((always_inline)) inline void simdgroup_barrier(mem_flags) {
  detail::exchange(detail::simd_operation::barrier, false);
}

// ---- simdgroup_matrix: each lane holds two neighbours of a row -----------------------------

template <class T, int columns, int rows>
struct simdgroup_matrix {
  static_assert(columns == 8 && rows == 8, "simdgroup_matrix: only 8x8 exists");
  static_assert(
      is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>,
      "simdgroup_matrix: T must be float, half or bfloat");
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  __attribute__((always_inline)) explicit simdgroup_matrix(T diagonal) {
    const uint lane = detail::exchange(detail::simd_operation::lane, false).lane;
    elements.x = row(lane) == column(lane) ? diagonal : T(0);
    elements.y = row(lane) == column(lane) + 1 ? diagonal : T(0);
  }

  vec<T, 2>& thread_elements() {
    return elements;
  }
  const vec<T, 2>& thread_elements() const {
    return elements;
  }

  // Where the lane's first element stands.
  static uint row(uint lane) {
    return lane / 16 * 4 + lane / 2 % 4;
  }
  static uint column(uint lane) {
    return lane / 8 % 2 * 4 + lane % 2 * 2;
  }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int columns, int rows>
__attribute__((always_inline)) inline simdgroup_matrix<T, columns, rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, columns, rows> matrix;
  matrix.elements = vec<T, 2>(value);
  return matrix;
}

#define METAL_HOST_SIMDGROUP_MEMORY(space)                                                                   \
  template <class T>                                                                                         \
  __attribute__((always_inline)) inline void simdgroup_load(                                                 \
      thread simdgroup_matrix<T, 8, 8>& matrix,                                                              \
      const space T* from,                                                                                   \
      ulong elements_per_row = 8,                                                                            \
      ulong2 origin = ulong2(0),                                                                             \
      bool transpose = false) {                                                                              \
    const uint lane = detail::exchange(detail::simd_operation::lane, false).lane;                            \
    const uint row = matrix.row(lane), column = matrix.column(lane);                                         \
    for (uint i = 0; i < 2; ++i) {                                                                           \
      matrix.elements[i] = transpose ? T(from[(origin.y + column + i) * elements_per_row + origin.x + row])  \
                                     : T(from[(origin.y + row) * elements_per_row + origin.x + column + i]); \
    }                                                                                                        \
  }                                                                                                          \
  template <class T>                                                                                         \
  __attribute__((always_inline)) inline void simdgroup_store(                                                \
      simdgroup_matrix<T, 8, 8> matrix,                                                                      \
      space T* to,                                                                                           \
      ulong elements_per_row = 8,                                                                            \
      ulong2 origin = ulong2(0),                                                                             \
      bool transpose = false) {                                                                              \
    const uint lane = detail::exchange(detail::simd_operation::lane, false).lane;                            \
    const uint row = matrix.row(lane), column = matrix.column(lane);                                         \
    for (uint i = 0; i < 2; ++i) {                                                                           \
      to[transpose ? (origin.y + column + i) * elements_per_row + origin.x + row                             \
                   : (origin.y + row) * elements_per_row + origin.x + column + i] = matrix.elements[i];      \
    }                                                                                                        \
  }
METAL_HOST_SIMDGROUP_MEMORY(device)
METAL_HOST_SIMDGROUP_MEMORY(threadgroup)
#undef METAL_HOST_SIMDGROUP_MEMORY

template <class D, class A, class B, class C>
__attribute__((always_inline)) inline void simdgroup_multiply_accumulate(
    thread simdgroup_matrix<D, 8, 8>& result,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    simdgroup_matrix<C, 8, 8> c) {
  const float4 mine(float(a.elements.x), float(a.elements.y), float(b.elements.x), float(b.elements.y));
  const auto lanes = detail::exchange(detail::simd_operation::matrix_multiply, mine);
  float left[8][8], right[8][8];
  for (uint lane = 0; lane < 32; ++lane) {
    const auto theirs = detail::shuffled<float4>(lanes, lane);
    const uint row = result.row(lane), column = result.column(lane);
    left[row][column] = theirs.x;
    left[row][column + 1] = theirs.y;
    right[row][column] = theirs.z;
    right[row][column + 1] = theirs.w;
  }
  const uint row = result.row(lanes.lane), column = result.column(lanes.lane);
  for (uint i = 0; i < 2; ++i) {
    float sum = float(c.elements[i]);
    for (uint k = 0; k < 8; ++k) {
      sum += left[row][k] * right[k][column + i];
    }
    result.elements[i] = D(sum);
  }
}
template <class D, class A, class B>
__attribute__((always_inline)) inline void simdgroup_multiply(
    thread simdgroup_matrix<D, 8, 8>& result,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(result, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)));
}

} // namespace metal
