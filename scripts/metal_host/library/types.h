// Address spaces, scalar types and type traits of the Metal Shading Language, for clang on a CPU.
//
// The address spaces are clang's own for OpenCL: distinct in the type system, so that every conversion,
// overload and template argument is checked as on a GPU, and all the same memory in the code for a CPU.
#pragma once

#define device __attribute__((opencl_global))
#define constant __attribute__((opencl_constant)) const
#define threadgroup __attribute__((opencl_local))
#define thread

using size_t = __SIZE_TYPE__;
using ptrdiff_t = __PTRDIFF_TYPE__;
using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using half = _Float16;

namespace metal {

// ---- Traits --------------------------------------------------------------------------------

template <class T, T v>
struct integral_constant {
  static constexpr constant T value = v;
  using type = integral_constant;
  using value_type = T;
  constexpr operator T() const {
    return v;
  }
};

using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <bool condition, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool condition, class T = void>
using enable_if_t = typename enable_if<condition, T>::type;

template <bool condition, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool condition, class T, class F>
using conditional_t = typename conditional<condition, T, F>::type;

template <class... T>
using void_t = void;

template <class T>
struct remove_cv {
  using type = __remove_cv(T);
};
template <class T>
using remove_cv_t = typename remove_cv<T>::type;

template <class T>
struct remove_const {
  using type = __remove_const(T);
};
template <class T>
using remove_const_t = typename remove_const<T>::type;

template <class T>
struct remove_volatile {
  using type = __remove_volatile(T);
};
template <class T>
using remove_volatile_t = typename remove_volatile<T>::type;

template <class T>
struct remove_reference {
  using type = __remove_reference_t(T);
};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;

template <class T>
struct remove_pointer {
  using type = __remove_pointer(T);
};
template <class T>
using remove_pointer_t = typename remove_pointer<T>::type;

template <class T>
struct make_signed {
  using type = __make_signed(T);
};
template <class T>
using make_signed_t = typename make_signed<T>::type;

template <class T>
struct make_unsigned {
  using type = __make_unsigned(T);
};
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;

template <class T>
remove_reference_t<T>&& declval() noexcept;

namespace detail {

template <class T>
struct remove_address_space {
  using type = T;
};
template <class T>
struct remove_address_space<device T> {
  using type = T;
};
template <class T>
struct remove_address_space<__attribute__((opencl_constant)) T> {
  using type = T;
};
template <class T>
struct remove_address_space<threadgroup T> {
  using type = T;
};

// T without its address space and cv-qualifiers.
template <class T>
using value_t = typename remove_address_space<__remove_cv(T)>::type;

// Whether T is Value in another address space (or cv-qualified): what a copy constructor does not take.
template <class T, class Value>
constexpr bool is_elsewhere_v = __is_same(value_t<T>, Value) && !__is_same(__remove_cv(T), Value);

} // namespace detail

} // namespace metal

// ---- bfloat --------------------------------------------------------------------------------

// It converts to float by itself, and from float only where that is spelled out: the stricter reading
// of the language, so what compiles here compiles there.
struct bfloat {
  unsigned short bits;

  bfloat() = default;

  template <class T, metal::enable_if_t<metal::detail::is_elsewhere_v<T, bfloat>, bool> = true>
  constexpr bfloat(const T& other) : bits(other.bits) {}

  template <class T, metal::enable_if_t<__is_integral(T), bool> = true>
  constexpr bfloat(T value) : bits(round(static_cast<float>(value))) {}

  template <class T, metal::enable_if_t<__is_floating_point(T), bool> = true>
  constexpr explicit bfloat(T value) : bits(round(static_cast<float>(value))) {}

  // Not a template: of one, only the very type it names is considered, and this also leads on to int or half.
  constexpr operator float(this const bfloat& self) {
    return widen(self.bits);
  }
  constexpr operator float(this const device bfloat& self) {
    return widen(self.bits);
  }
  constexpr operator float(this constant bfloat& self) {
    return widen(self.bits);
  }
  constexpr operator float(this const threadgroup bfloat& self) {
    return widen(self.bits);
  }

  template <class Self>
  constexpr Self& operator=(this Self& self, bfloat value) {
    self.bits = value.bits;
    return self;
  }

#define METAL_HOST_OPERATOR(op)                                                  \
  friend constexpr bfloat operator op(bfloat a, bfloat b) {                      \
    return bfloat(static_cast<float>(a) op static_cast<float>(b));               \
  }                                                                              \
  template <class T, metal::enable_if_t<__is_integral(T), bool> = true>          \
  friend constexpr bfloat operator op(bfloat a, T b) {                           \
    return a op bfloat(b);                                                       \
  }                                                                              \
  template <class T, metal::enable_if_t<__is_integral(T), bool> = true>          \
  friend constexpr bfloat operator op(T a, bfloat b) {                           \
    return bfloat(a) op b;                                                       \
  }                                                                              \
  template <class Self, class T>                                                 \
  constexpr Self& operator op##=(this Self& self, T value) {                     \
    return self = bfloat(static_cast<float>(self) op static_cast<float>(value)); \
  }
  METAL_HOST_OPERATOR(+)
  METAL_HOST_OPERATOR(-)
  METAL_HOST_OPERATOR(*)
  METAL_HOST_OPERATOR(/)
#undef METAL_HOST_OPERATOR

  friend constexpr bfloat operator-(bfloat a) {
    return bfloat(-static_cast<float>(a));
  }

  friend constexpr bfloat operator+(bfloat a) {
    return a;
  }

 private:
  static constexpr float widen(unsigned short bits) {
    return __builtin_bit_cast(float, static_cast<uint>(bits) << 16);
  }

  // To the nearest, ties to even.
  static constexpr unsigned short round(float value) {
    const uint word = __builtin_bit_cast(uint, value);
    if ((word & 0x7fffffff) > 0x7f800000) {
      return static_cast<unsigned short>((word >> 16) | 0x40);
    }
    return static_cast<unsigned short>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
};

namespace metal {

// ---- Type categories -----------------------------------------------------------------------

template <class T, int n>
struct vec;

namespace detail {

template <class T>
struct element {
  using type = T;
  static constexpr int size = 1;
};
template <class T, int n>
struct element<vec<T, n>> {
  using type = T;
  static constexpr int size = n;
};

// The element type of a vector; a scalar is its own.
template <class T>
using element_t = typename element<value_t<T>>::type;

} // namespace detail

template <class T, class U>
constexpr constant bool is_same_v = __is_same(T, U);
template <class T>
constexpr constant bool is_const_v = __is_const(T);
template <class T>
constexpr constant bool is_void_v = __is_void(T);
template <class T>
constexpr constant bool is_pointer_v = __is_pointer(T);
template <class T>
constexpr constant bool is_array_v = __is_array(T);
template <class T>
constexpr constant bool is_enum_v = __is_enum(T);
template <class T, class U>
constexpr constant bool is_base_of_v = __is_base_of(T, U);
template <class T, class U>
constexpr constant bool is_convertible_v = __is_convertible(T, U);
template <class T, class... U>
constexpr constant bool is_constructible_v = __is_constructible(T, U...);
template <class T>
constexpr constant bool is_trivially_copyable_v = __is_trivially_copyable(T);

// As in Metal's own library, these hold for vectors by their elements.
template <class T>
constexpr constant bool is_integral_v = __is_integral(detail::element_t<T>);
template <class T>
constexpr constant bool is_floating_point_v =
    __is_floating_point(detail::element_t<T>) || __is_same(detail::element_t<T>, bfloat);
template <class T>
constexpr constant bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T>
constexpr constant bool is_vector_v = detail::element<detail::value_t<T>>::size > 1;
template <class T>
constexpr constant bool is_scalar_v = !is_vector_v<T> && (is_arithmetic_v<T> || __is_scalar(T));
template <class T>
constexpr constant bool is_signed_v =
    is_floating_point_v<T> || (is_integral_v<T> && __is_signed(detail::element_t<T>));
template <class T>
constexpr constant bool is_unsigned_v = is_integral_v<T> && !is_signed_v<T>;

#define METAL_HOST_TRAIT(name) \
  template <class T>           \
  struct name : integral_constant<bool, name##_v<T>> {};
METAL_HOST_TRAIT(is_const)
METAL_HOST_TRAIT(is_void)
METAL_HOST_TRAIT(is_pointer)
METAL_HOST_TRAIT(is_array)
METAL_HOST_TRAIT(is_enum)
METAL_HOST_TRAIT(is_integral)
METAL_HOST_TRAIT(is_floating_point)
METAL_HOST_TRAIT(is_arithmetic)
METAL_HOST_TRAIT(is_vector)
METAL_HOST_TRAIT(is_scalar)
METAL_HOST_TRAIT(is_signed)
METAL_HOST_TRAIT(is_unsigned)
#undef METAL_HOST_TRAIT
template <class T, class U>
struct is_same : integral_constant<bool, is_same_v<T, U>> {};
template <class T, class U>
struct is_convertible : integral_constant<bool, is_convertible_v<T, U>> {};

// ---- Limits --------------------------------------------------------------------------------

template <class T>
struct numeric_limits {
  static_assert(__is_integral(T), "numeric_limits: not an arithmetic type");
  static constexpr constant bool is_signed = __is_signed(T);
  static constexpr constant int digits = __is_same(T, bool) ? 1 : sizeof(T) * 8 - is_signed;
  static constexpr T max() {
    return __is_same(T, bool) ? T(1) : T(~T(0) ^ lowest());
  }
  static constexpr T lowest() {
    return is_signed ? T(1ul << (sizeof(T) * 8 - 1)) : T(0);
  }
  static constexpr T min() {
    return lowest();
  }
};

#define METAL_HOST_LIMITS(type, word, lowest_, max_, min_, epsilon_, infinity_, nan_) \
  template <>                                                                         \
  struct numeric_limits<type> {                                                       \
    static constexpr constant bool is_signed = true;                                  \
    static constexpr type from_bits(word bits) {                                      \
      return __builtin_bit_cast(type, bits);                                          \
    }                                                                                 \
    static constexpr type lowest() {                                                  \
      return from_bits(lowest_);                                                      \
    }                                                                                 \
    static constexpr type max() {                                                     \
      return from_bits(max_);                                                         \
    }                                                                                 \
    static constexpr type min() {                                                     \
      return from_bits(min_);                                                         \
    }                                                                                 \
    static constexpr type epsilon() {                                                 \
      return from_bits(epsilon_);                                                     \
    }                                                                                 \
    static constexpr type infinity() {                                                \
      return from_bits(infinity_);                                                    \
    }                                                                                 \
    static constexpr type quiet_NaN() {                                               \
      return from_bits(nan_);                                                         \
    }                                                                                 \
  };
METAL_HOST_LIMITS(float, uint, 0xff7fffff, 0x7f7fffff, 0x00800000, 0x34000000, 0x7f800000, 0x7fc00000)
METAL_HOST_LIMITS(half, ushort, 0xfbff, 0x7bff, 0x0400, 0x1400, 0x7c00, 0x7e00)
METAL_HOST_LIMITS(bfloat, ushort, 0xff7f, 0x7f7f, 0x0080, 0x3c00, 0x7f80, 0x7fc0)
#undef METAL_HOST_LIMITS

} // namespace metal

template <class To, class From>
constexpr To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the two types differ in size");
  return __builtin_bit_cast(To, value);
}
