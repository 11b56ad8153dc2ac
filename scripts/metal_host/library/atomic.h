// Atomics, relaxed as Metal 3.1 has them. What the language lacks (64-bit arithmetic, atomics on smaller
// types) has no overload here either.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  static_assert(
      is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, bool> || is_same_v<T, float> || is_same_v<T, ulong>,
      "atomic<T>: T must be int, uint, bool, float or ulong");
  alignas(sizeof(T) < 4 ? 4 : sizeof(T)) T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_bool = atomic<bool>;
using atomic_float = atomic<float>;
using atomic_ulong = atomic<ulong>;

namespace detail {

template <class T>
struct identity {
  using type = T;
};
// T, not deduced from this argument.
template <class T>
using same_t = typename identity<T>::type;

template <class T>
constexpr bool is_atomic_integer_v = is_same_v<T, int> || is_same_v<T, uint>;
template <class T>
constexpr bool is_atomic_32_bit_v = is_atomic_integer_v<T> || is_same_v<T, float>;
template <class T>
constexpr bool is_atomic_exchangeable_v = is_atomic_32_bit_v<T> || is_same_v<T, bool>;

template <class Pointer>
auto* plain_pointer(Pointer pointer) {
  using T = decltype(pointer->value);
  return reinterpret_cast<volatile T*>(reinterpret_cast<size_t>(&pointer->value));
}

template <class T, class F>
T atomic_update(volatile T* pointer, F f) {
  T old, desired;
  __atomic_load(pointer, &old, __ATOMIC_RELAXED);
  do {
    desired = f(old);
  } while (!__atomic_compare_exchange(pointer, &old, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

} // namespace detail

#define METAL_HOST_ATOMIC_FETCH(space, name, condition, expression)                                        \
  template <class T, enable_if_t<condition, bool> = true>                                                  \
  T atomic_##name##_explicit(volatile space atomic<T>* object, detail::same_t<T> value, memory_order) {    \
    return detail::atomic_update(detail::plain_pointer(object), [value](T old) { return T(expression); }); \
  }

#define METAL_HOST_ATOMICS(space, add_condition)                                                        \
  template <class T, enable_if_t<detail::is_atomic_exchangeable_v<T>, bool> = true>                     \
  T atomic_load_explicit(const volatile space atomic<T>* object, memory_order) {                        \
    T value;                                                                                            \
    __atomic_load(detail::plain_pointer(object), &value, __ATOMIC_RELAXED);                             \
    return value;                                                                                       \
  }                                                                                                     \
  template <class T, enable_if_t<detail::is_atomic_exchangeable_v<T>, bool> = true>                     \
  void atomic_store_explicit(volatile space atomic<T>* object, detail::same_t<T> value, memory_order) { \
    __atomic_store(detail::plain_pointer(object), &value, __ATOMIC_RELAXED);                            \
  }                                                                                                     \
  template <class T, enable_if_t<detail::is_atomic_exchangeable_v<T>, bool> = true>                     \
  bool atomic_compare_exchange_weak_explicit(                                                           \
      volatile space atomic<T>* object,                                                                 \
      thread detail::same_t<T>* expected,                                                               \
      detail::same_t<T> desired,                                                                        \
      memory_order,                                                                                     \
      memory_order) {                                                                                   \
    return __atomic_compare_exchange(                                                                   \
        detail::plain_pointer(object), expected, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);   \
  }                                                                                                     \
  METAL_HOST_ATOMIC_FETCH(space, exchange, detail::is_atomic_exchangeable_v<T>, (void(old), value))     \
  METAL_HOST_ATOMIC_FETCH(space, fetch_add, add_condition, detail::wrapping_add(old, value))            \
  METAL_HOST_ATOMIC_FETCH(space, fetch_sub, add_condition, detail::wrapping_subtract(old, value))       \
  METAL_HOST_ATOMIC_FETCH(space, fetch_max, detail::is_atomic_integer_v<T>, old < value ? value : old)  \
  METAL_HOST_ATOMIC_FETCH(space, fetch_min, detail::is_atomic_integer_v<T>, value < old ? value : old)  \
  METAL_HOST_ATOMIC_FETCH(space, fetch_and, detail::is_atomic_integer_v<T>, old & value)                \
  METAL_HOST_ATOMIC_FETCH(space, fetch_or, detail::is_atomic_integer_v<T>, old | value)                 \
  METAL_HOST_ATOMIC_FETCH(space, fetch_xor, detail::is_atomic_integer_v<T>, old ^ value)

namespace detail {
template <class T>
T wrapping_add(T a, T b) {
  return a + b;
}
template <class T>
T wrapping_subtract(T a, T b) {
  return a - b;
}
inline int wrapping_add(int a, int b) {
  return int(uint(a) + uint(b));
}
inline int wrapping_subtract(int a, int b) {
  return int(uint(a) - uint(b));
}
} // namespace detail

METAL_HOST_ATOMICS(device, detail::is_atomic_32_bit_v<T>)
METAL_HOST_ATOMICS(threadgroup, detail::is_atomic_integer_v<T>)

// 64 bits: only these two, without a result, and only in device memory.
template <class T, enable_if_t<is_same_v<T, ulong>, bool> = true>
void atomic_max_explicit(volatile device atomic<T>* object, detail::same_t<T> value, memory_order) {
  detail::atomic_update(detail::plain_pointer(object), [value](T old) { return max(old, value); });
}
template <class T, enable_if_t<is_same_v<T, ulong>, bool> = true>
void atomic_min_explicit(volatile device atomic<T>* object, detail::same_t<T> value, memory_order) {
  detail::atomic_update(detail::plain_pointer(object), [value](T old) { return min(old, value); });
}

} // namespace metal
