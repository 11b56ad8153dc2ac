// Mathematical functions, each with the overloads that Metal has: float, half, and vectors of these.
//
// They are the C library's, computed in float: more accurate than a GPU's. bfloat has no overloads of its
// own; it converts to float.
#pragma once

namespace metal {

// name(x)
#define METAL_HOST_FLOAT_1(name, expression)                        \
  inline float name(float x) {                                      \
    return expression;                                              \
  }                                                                 \
  template <int n>                                                  \
  vec<float, n> name(vec<float, n> x) {                             \
    return vec<float, n>::map1(x, [](float a) { return name(a); }); \
  }
#define METAL_HOST_HALF_1(name)                                   \
  inline half name(half x) {                                      \
    return half(name(float(x)));                                  \
  }                                                               \
  template <int n>                                                \
  vec<half, n> name(vec<half, n> x) {                             \
    return vec<half, n>::map1(x, [](half a) { return name(a); }); \
  }

// name(x, y)
#define METAL_HOST_FLOAT_2(name, expression)                                       \
  inline float name(float x, float y) {                                            \
    return expression;                                                             \
  }                                                                                \
  template <int n>                                                                 \
  vec<float, n> name(vec<float, n> x, vec<float, n> y) {                           \
    return vec<float, n>::map2(x, y, [](float a, float b) { return name(a, b); }); \
  }
#define METAL_HOST_HALF_2(name)                                                 \
  inline half name(half x, half y) {                                            \
    return half(name(float(x), float(y)));                                      \
  }                                                                             \
  template <int n>                                                              \
  vec<half, n> name(vec<half, n> x, vec<half, n> y) {                           \
    return vec<half, n>::map2(x, y, [](half a, half b) { return name(a, b); }); \
  }

// name(x, y, z)
#define METAL_HOST_FLOAT_3(name, expression)                              \
  inline float name(float x, float y, float z) {                          \
    return expression;                                                    \
  }                                                                       \
  template <int n>                                                        \
  vec<float, n> name(vec<float, n> x, vec<float, n> y, vec<float, n> z) { \
    vec<float, n> result;                                                 \
    for (int i = 0; i < n; ++i) {                                         \
      result[i] = name(x[i], y[i], z[i]);                                 \
    }                                                                     \
    return result;                                                        \
  }
#define METAL_HOST_HALF_3(name)                                       \
  inline half name(half x, half y, half z) {                          \
    return half(name(float(x), float(y), float(z)));                  \
  }                                                                   \
  template <int n>                                                    \
  vec<half, n> name(vec<half, n> x, vec<half, n> y, vec<half, n> z) { \
    vec<half, n> result;                                              \
    for (int i = 0; i < n; ++i) {                                     \
      result[i] = name(x[i], y[i], z[i]);                             \
    }                                                                 \
    return result;                                                    \
  }

#define METAL_HOST_FUNCTIONS(F1, F2)                                  \
  F1(acos, __builtin_acosf(x))                                        \
  F1(acosh, __builtin_acoshf(x))                                      \
  F1(asin, __builtin_asinf(x))                                        \
  F1(asinh, __builtin_asinhf(x))                                      \
  F1(atan, __builtin_atanf(x))                                        \
  F1(atanh, __builtin_atanhf(x))                                      \
  F1(ceil, __builtin_ceilf(x))                                        \
  F1(cos, __builtin_cosf(x))                                          \
  F1(cosh, __builtin_coshf(x))                                        \
  F1(cospi, __builtin_cosf(M_PI_F * __builtin_remainderf(x, 2.0f)))   \
  F1(exp, __builtin_expf(x))                                          \
  F1(exp2, __builtin_exp2f(x))                                        \
  F1(exp10, __builtin_powf(10.0f, x))                                 \
  F1(fabs, __builtin_fabsf(x))                                        \
  F1(abs, __builtin_fabsf(x))                                         \
  F1(floor, __builtin_floorf(x))                                      \
  F1(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f)) \
  F1(log, __builtin_logf(x))                                          \
  F1(log2, __builtin_log2f(x))                                        \
  F1(log10, __builtin_log10f(x))                                      \
  F1(rint, __builtin_rintf(x))                                        \
  F1(round, __builtin_roundf(x))                                      \
  F1(rsqrt, 1.0f / __builtin_sqrtf(x))                                \
  F1(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))       \
  F1(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f) \
  F1(sin, __builtin_sinf(x))                                          \
  F1(sinh, __builtin_sinhf(x))                                        \
  F1(sinpi, __builtin_sinf(M_PI_F * __builtin_remainderf(x, 2.0f)))   \
  F1(sqrt, __builtin_sqrtf(x))                                        \
  F1(tan, __builtin_tanf(x))                                          \
  F1(tanh, __builtin_tanhf(x))                                        \
  F1(tanpi, __builtin_tanf(M_PI_F * __builtin_remainderf(x, 1.0f)))   \
  F1(trunc, __builtin_truncf(x))                                      \
  F2(atan2, __builtin_atan2f(x, y))                                   \
  F2(copysign, __builtin_copysignf(x, y))                             \
  F2(divide, x / y)                                                   \
  F2(fdim, __builtin_fdimf(x, y))                                     \
  F2(fmod, __builtin_fmodf(x, y))                                     \
  F2(fmax, __builtin_fmaxf(x, y))                                     \
  F2(fmin, __builtin_fminf(x, y))                                     \
  F2(max, __builtin_fmaxf(x, y))                                      \
  F2(min, __builtin_fminf(x, y))                                      \
  F2(nextafter, __builtin_nextafterf(x, y))                           \
  F2(pow, __builtin_powf(x, y))                                       \
  F2(powr, x < 0.0f ? NAN : __builtin_powf(x, y))                     \
  F2(step, y < x ? 0.0f : 1.0f)

#define METAL_HOST_FUNCTIONS_3(F3)                     \
  F3(clamp, __builtin_fminf(__builtin_fmaxf(x, y), z)) \
  F3(fma, __builtin_fmaf(x, y, z))                     \
  F3(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z))) \
  F3(fmin3, __builtin_fminf(x, __builtin_fminf(y, z))) \
  F3(max3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))  \
  F3(min3, __builtin_fminf(x, __builtin_fminf(y, z)))  \
  F3(mix, x + (y - x) * z)

#define METAL_HOST_FUNCTION_1(name, expression) METAL_HOST_FLOAT_1(name, expression) METAL_HOST_HALF_1(name)
#define METAL_HOST_FUNCTION_2(name, expression) METAL_HOST_FLOAT_2(name, expression) METAL_HOST_HALF_2(name)
#define METAL_HOST_FUNCTION_3(name, expression) METAL_HOST_FLOAT_3(name, expression) METAL_HOST_HALF_3(name)
METAL_HOST_FUNCTIONS(METAL_HOST_FUNCTION_1, METAL_HOST_FUNCTION_2)
METAL_HOST_FUNCTIONS_3(METAL_HOST_FUNCTION_3)

template <class T>
enable_if_t<is_same_v<T, float> || is_same_v<T, half>, T> smoothstep(T low, T high, T x) {
  const T t = clamp((x - low) / (high - low), T(0), T(1));
  return t * t * (T(3) - T(2) * t);
}

// Results by reference: into the thread's own memory.
inline float sincos(float x, thread float& cosine) {
  cosine = __builtin_cosf(x);
  return __builtin_sinf(x);
}
inline float modf(float x, thread float& integral) {
  integral = __builtin_truncf(x);
  return __builtin_isinf(x) ? __builtin_copysignf(0.0f, x) : __builtin_copysignf(x - integral, x);
}
inline float frexp(float x, thread int& exponent) {
  return __builtin_frexpf(x, &exponent);
}
inline float ldexp(float x, int exponent) {
  return __builtin_ldexpf(x, exponent);
}
inline int ilogb(float x) {
  return __builtin_ilogbf(x);
}
inline half sincos(half x, thread half& cosine) {
  cosine = cos(x);
  return sin(x);
}
inline half modf(half x, thread half& integral) {
  float whole;
  const float fraction = modf(float(x), whole);
  integral = half(whole);
  return half(fraction);
}
inline half frexp(half x, thread int& exponent) {
  return half(frexp(float(x), exponent));
}
inline half ldexp(half x, int exponent) {
  return half(ldexp(float(x), exponent));
}
inline int ilogb(half x) {
  return ilogb(float(x));
}

// The two namespaces have float alone. Neither is less accurate here.
#define METAL_HOST_NAMESPACE(name)                             \
  namespace name {                                             \
  METAL_HOST_FUNCTIONS(METAL_HOST_FLOAT_1, METAL_HOST_FLOAT_2) \
  METAL_HOST_FUNCTIONS_3(METAL_HOST_FLOAT_3)                   \
  using ::metal::frexp;                                        \
  using ::metal::ldexp;                                        \
  using ::metal::modf;                                         \
  inline float sincos(float x, thread float& cosine) {         \
    return ::metal::sincos(x, cosine);                         \
  }                                                            \
  }
METAL_HOST_NAMESPACE(precise)
METAL_HOST_NAMESPACE(fast)

// ---- Classification ------------------------------------------------------------------------

#define METAL_HOST_PREDICATE(name, expression)                                \
  inline bool name(float x) {                                                 \
    return expression;                                                        \
  }                                                                           \
  inline bool name(half half_x) {                                             \
    const float x = half_x;                                                   \
    return expression;                                                        \
  }                                                                           \
  template <class T, int n, enable_if_t<is_floating_point_v<T>, bool> = true> \
  vec<bool, n> name(vec<T, n> x) {                                            \
    return vec<T, n>::compare(x, x, [](T a, T) { return name(a); });          \
  }
METAL_HOST_PREDICATE(isnan, __builtin_isnan(x))
METAL_HOST_PREDICATE(isinf, __builtin_isinf(x))
METAL_HOST_PREDICATE(isfinite, __builtin_isfinite(x))
METAL_HOST_PREDICATE(signbit, __builtin_signbit(x))
#undef METAL_HOST_PREDICATE

inline bool isnormal(float x) {
  return __builtin_isnormal(x);
}
inline bool isnormal(half x) {
  return isfinite(x) && __builtin_fabsf(x) >= 0x1p-14f;
}

#define METAL_HOST_RELATION(name, expression)                                 \
  inline bool name(float x, float y) {                                        \
    return expression;                                                        \
  }                                                                           \
  inline bool name(half x, half y) {                                          \
    return name(float(x), float(y));                                          \
  }                                                                           \
  template <class T, int n, enable_if_t<is_floating_point_v<T>, bool> = true> \
  vec<bool, n> name(vec<T, n> x, vec<T, n> y) {                               \
    return vec<T, n>::compare(x, y, [](T a, T b) { return name(a, b); });     \
  }
METAL_HOST_RELATION(isordered, !__builtin_isunordered(x, y))
METAL_HOST_RELATION(isunordered, __builtin_isunordered(x, y))
#undef METAL_HOST_RELATION

template <int n>
bool any(vec<bool, n> x) {
  bool result = false;
  for (int i = 0; i < n; ++i) {
    result |= x[i];
  }
  return result;
}
template <int n>
bool all(vec<bool, n> x) {
  return !any(!x);
}
inline bool any(bool x) {
  return x;
}
inline bool all(bool x) {
  return x;
}

template <class T, enable_if_t<is_scalar_v<T>, bool> = true>
T select(T if_false, T if_true, bool condition) {
  return condition ? if_true : if_false;
}
template <class T, int n>
vec<T, n> select(vec<T, n> if_false, vec<T, n> if_true, vec<bool, n> condition) {
  for (int i = 0; i < n; ++i) {
    if_false[i] = condition[i] ? if_true[i] : if_false[i];
  }
  return if_false;
}
template <class T, int n>
vec<T, n> select(vec<T, n> if_false, vec<T, n> if_true, bool condition) {
  return condition ? if_true : if_false;
}

// ---- Geometry ------------------------------------------------------------------------------

template <class T, int n>
constexpr T dot(vec<T, n> x, vec<T, n> y) {
  T sum = x[0] * y[0];
  for (int i = 1; i < n; ++i) {
    sum = sum + x[i] * y[i];
  }
  return sum;
}
template <class T, int n>
T length_squared(vec<T, n> x) {
  return dot(x, x);
}
template <class T, int n>
T length(vec<T, n> x) {
  return sqrt(dot(x, x));
}
template <class T, int n>
T distance(vec<T, n> x, vec<T, n> y) {
  return length(x - y);
}
template <class T, int n>
vec<T, n> normalize(vec<T, n> x) {
  return x * rsqrt(dot(x, x));
}
template <class T>
vec<T, 3> cross(vec<T, 3> x, vec<T, 3> y) {
  return vec<T, 3>(x.y * y.z - x.z * y.y, x.z * y.x - x.x * y.z, x.x * y.y - x.y * y.x);
}

// ---- Integers ------------------------------------------------------------------------------

namespace detail {
template <class T, class F>
constexpr T map(T x, F f) {
  if constexpr (is_vector_v<T>) {
    return T::map1(x, f);
  } else {
    return f(x);
  }
}
} // namespace detail

#define METAL_HOST_INTEGER(T)                                                                                 \
  constexpr T max(T x, T y) {                                                                                 \
    return x < y ? y : x;                                                                                     \
  }                                                                                                           \
  constexpr T min(T x, T y) {                                                                                 \
    return y < x ? y : x;                                                                                     \
  }                                                                                                           \
  constexpr T clamp(T x, T low, T high) {                                                                     \
    return min(max(x, low), high);                                                                            \
  }                                                                                                           \
  constexpr T max3(T x, T y, T z) {                                                                           \
    return max(x, max(y, z));                                                                                 \
  }                                                                                                           \
  constexpr T min3(T x, T y, T z) {                                                                           \
    return min(x, min(y, z));                                                                                 \
  }                                                                                                           \
  constexpr T abs(T x) {                                                                                      \
    return is_signed_v<T> && x < T(0) ? T(0ul - ulong(x)) : x;                                                \
  }                                                                                                           \
  constexpr make_unsigned_t<T> absdiff(T x, T y) {                                                            \
    return make_unsigned_t<T>(x < y ? ulong(y) - ulong(x) : ulong(x) - ulong(y));                             \
  }                                                                                                           \
  constexpr T addsat(T x, T y) {                                                                              \
    T sum;                                                                                                    \
    const bool over = __builtin_add_overflow(x, y, &sum);                                                     \
    return !over ? sum : is_signed_v<T> && x < T(0) ? numeric_limits<T>::lowest() : numeric_limits<T>::max(); \
  }                                                                                                           \
  constexpr T subsat(T x, T y) {                                                                              \
    T difference;                                                                                             \
    const bool over = __builtin_sub_overflow(x, y, &difference);                                              \
    return !over                          ? difference                                                        \
        : !is_signed_v<T> || x < T(0)     ? numeric_limits<T>::lowest()                                       \
                                          : numeric_limits<T>::max();                                         \
  }                                                                                                           \
  constexpr T mulhi(T x, T y) {                                                                               \
    using wide = conditional_t<is_signed_v<T>, __int128, unsigned __int128>;                                  \
    return T((wide(x) * wide(y)) >> (8 * sizeof(T)));                                                         \
  }                                                                                                           \
  constexpr T madhi(T x, T y, T z) {                                                                          \
    return T(make_unsigned_t<T>(mulhi(x, y)) + make_unsigned_t<T>(z));                                        \
  }                                                                                                           \
  constexpr T hadd(T x, T y) {                                                                                \
    return T((__int128(x) + __int128(y)) >> 1);                                                               \
  }                                                                                                           \
  constexpr T rhadd(T x, T y) {                                                                               \
    return T((__int128(x) + __int128(y) + 1) >> 1);                                                           \
  }                                                                                                           \
  constexpr T popcount(T x) {                                                                                 \
    return T(__builtin_popcountg(make_unsigned_t<T>(x)));                                                     \
  }                                                                                                           \
  constexpr T clz(T x) {                                                                                      \
    return T(__builtin_clzg(make_unsigned_t<T>(x), int(8 * sizeof(T))));                                      \
  }                                                                                                           \
  constexpr T ctz(T x) {                                                                                      \
    return T(__builtin_ctzg(make_unsigned_t<T>(x), int(8 * sizeof(T))));                                      \
  }                                                                                                           \
  constexpr T rotate(T x, T by) {                                                                             \
    using U = make_unsigned_t<T>;                                                                             \
    const uint bits = 8 * sizeof(T), shift = uint(by) % bits;                                                 \
    return shift ? T(U(U(x) << shift) | U(U(x) >> (bits - shift))) : x;                                       \
  }                                                                                                           \
  constexpr T reverse_bits(T x) {                                                                             \
    make_unsigned_t<T> result = 0;                                                                            \
    for (uint i = 0; i < 8 * sizeof(T); ++i) {                                                                \
      result |= make_unsigned_t<T>(((make_unsigned_t<T>(x) >> i) & 1ul) << (8 * sizeof(T) - 1 - i));          \
    }                                                                                                         \
    return T(result);                                                                                         \
  }
METAL_HOST_INTEGER(char)
METAL_HOST_INTEGER(uchar)
METAL_HOST_INTEGER(short)
METAL_HOST_INTEGER(ushort)
METAL_HOST_INTEGER(int)
METAL_HOST_INTEGER(uint)
METAL_HOST_INTEGER(long)
METAL_HOST_INTEGER(ulong)
#undef METAL_HOST_INTEGER

inline int mul24(int x, int y) {
  return int(uint(x) * uint(y));
}
inline uint mul24(uint x, uint y) {
  return x * y;
}
inline int mad24(int x, int y, int z) {
  return int(uint(x) * uint(y) + uint(z));
}
inline uint mad24(uint x, uint y, uint z) {
  return x * y + z;
}

// These, element by element.
#define METAL_HOST_INTEGER_VECTOR_1(name)                               \
  template <class T, int n, enable_if_t<is_integral_v<T>, bool> = true> \
  vec<T, n> name(vec<T, n> x) {                                         \
    return vec<T, n>::map1(x, [](T a) { return name(a); });             \
  }
#define METAL_HOST_INTEGER_VECTOR_2(name)                               \
  template <class T, int n, enable_if_t<is_integral_v<T>, bool> = true> \
  vec<T, n> name(vec<T, n> x, vec<T, n> y) {                            \
    return vec<T, n>::map2(x, y, [](T a, T b) { return name(a, b); });  \
  }
METAL_HOST_INTEGER_VECTOR_1(abs)
METAL_HOST_INTEGER_VECTOR_1(popcount)
METAL_HOST_INTEGER_VECTOR_1(clz)
METAL_HOST_INTEGER_VECTOR_1(ctz)
METAL_HOST_INTEGER_VECTOR_2(max)
METAL_HOST_INTEGER_VECTOR_2(min)
METAL_HOST_INTEGER_VECTOR_2(mulhi)
METAL_HOST_INTEGER_VECTOR_2(addsat)
METAL_HOST_INTEGER_VECTOR_2(subsat)
template <class T, int n, enable_if_t<is_integral_v<T>, bool> = true>
vec<T, n> clamp(vec<T, n> x, vec<T, n> low, vec<T, n> high) {
  return min(max(x, low), high);
}

} // namespace metal
