// frexp on Metal. It works on the bits, so that denormals are right although the GPU takes them for zero.
#include <c10/metal/indexing.h>
#include <metal_stdlib>

using namespace metal;

inline uint float_bits(float x) {
  return as_type<uint>(x);
}

inline uint float_bits(half x) {
  return as_type<uint>(static_cast<float>(x));
}

inline uint float_bits(bfloat x) {
  return static_cast<uint>(as_type<ushort>(x)) << 16;
}

template <typename T>
inline T from_float_bits(uint bits) {
  return static_cast<T>(as_type<float>(bits));
}

template <>
inline bfloat from_float_bits<bfloat>(uint bits) {
  return as_type<bfloat>(static_cast<ushort>(bits >> 16));
}

constant constexpr uint kSign = 0x80000000;
constant constexpr uint kInfinity = 0x7f800000;
constant constexpr uint kOne = 0x00800000; // the least normal number, and the bit above a fraction
constant constexpr uint kHalf = 0x3f000000; // 0.5

// Zeros, infinities and NaN are their own mantissa, with exponent 0.
template <typename T>
inline T split(T x, thread int& exponent) {
  const uint bits = float_bits(x);
  uint magnitude = bits & ~kSign;
  exponent = 0;
  if (magnitude == 0 || magnitude >= kInfinity) {
    return x;
  }
  if (magnitude < kOne) {
    const uint shift = clz(magnitude) - 8;
    magnitude <<= shift;
    exponent = -125 - static_cast<int>(shift);
  } else {
    exponent = static_cast<int>(magnitude >> 23) - 126;
  }
  return from_float_bits<T>((bits & kSign) | kHalf | (magnitude & (kOne - 1)));
}

template <typename T>
kernel void frexp_dense(
    device T* mantissa [[buffer(0)]],
    device int* exponent [[buffer(1)]],
    constant T* self [[buffer(2)]],
    uint index [[thread_position_in_grid]]) {
  int power;
  mantissa[index] = split(self[index], power);
  exponent[index] = power;
}

template <typename T>
kernel void frexp_strided(
    device void* mantissa [[buffer(0)]],
    device void* exponent [[buffer(1)]],
    constant void* self [[buffer(2)]],
    constant long* sizes [[buffer(3)]],
    constant long* mantissa_strides [[buffer(4)]],
    constant long* exponent_strides [[buffer(5)]],
    constant long* self_strides [[buffer(6)]],
    constant uint& ndim [[buffer(7)]],
    uint index [[thread_position_in_grid]]) {
  int pos[c10::metal::max_ndim];
  c10::metal::pos_from_thread_index(static_cast<int>(index), pos, sizes, ndim);
  const T x = c10::metal::val_at_offs<T>(self, c10::metal::offset_from_coord(pos, self_strides, ndim));
  int power;
  c10::metal::ref_at_offs<T>(mantissa, c10::metal::offset_from_coord(pos, mantissa_strides, ndim)) = split(x, power);
  c10::metal::ref_at_offs<int>(exponent, c10::metal::offset_from_coord(pos, exponent_strides, ndim)) = power;
}

#define REGISTER_FREXP(T)                                                             \
  template [[host_name("frexp_dense_" #T)]] kernel void frexp_dense<T>(               \
      device T * mantissa, device int* exponent, constant T* self, uint index);       \
  template [[host_name("frexp_strided_" #T)]] kernel void frexp_strided<T>(           \
      device void* mantissa,                                                          \
      device void* exponent,                                                          \
      constant void* self,                                                            \
      constant long* sizes,                                                           \
      constant long* mantissa_strides,                                                \
      constant long* exponent_strides,                                                \
      constant long* self_strides,                                                    \
      constant uint& ndim,                                                            \
      uint index)

REGISTER_FREXP(float);
REGISTER_FREXP(half);
REGISTER_FREXP(bfloat);
