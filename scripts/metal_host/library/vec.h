// Vectors: a class for each size, with its components, its swizzles and its operators.
//
// Methods take their object by an explicit parameter, so that they work on one in any address space.
#pragma once

namespace metal {

namespace detail {

// Whether T is not a vector, but stands for one: a swizzle or a packed vector.
template <class T>
struct stands_for_vector {
  static constexpr bool value = false;
};
template <class T>
constexpr bool stands_for_vector_v = stands_for_vector<value_t<T>>::value;

template <class T>
constexpr bool is_component_v =
    __is_arithmetic(value_t<T>) || __is_same(value_t<T>, bfloat) || __is_enum(value_t<T>);

constexpr bool all_distinct() {
  return true;
}
template <class... Index>
constexpr bool all_distinct(int first, Index... rest) {
  return ((first != rest) && ...) && all_distinct(rest...);
}

// v.zx and the like: some components of the size-component vector that it shares its memory with.
template <class T, int size, int... index>
struct swizzle {
  T data[size == 3 ? 4 : size];

  template <class Self>
  constexpr operator vec<T, sizeof...(index)>(this const Self& self) {
    return vec<T, sizeof...(index)>(self.data[index]...);
  }

  template <class Self>
  constexpr Self& operator=(this Self& self, vec<T, sizeof...(index)> value) {
    static_assert(all_distinct(index...), "a component stands twice in this assignment");
    int i = 0;
    ((self.data[index] = value[i++]), ...);
    return self;
  }

  template <class Self>
  constexpr Self& operator=(this Self& self, const swizzle& value) {
    return self = static_cast<vec<T, sizeof...(index)>>(value);
  }

#define METAL_HOST_OPERATOR(op)                                                     \
  template <class Self>                                                             \
  constexpr Self& operator op##=(this Self& self, vec<T, sizeof...(index)> value) { \
    return self = static_cast<vec<T, sizeof...(index)>>(self) op value;             \
  }
  METAL_HOST_OPERATOR(+)
  METAL_HOST_OPERATOR(-)
  METAL_HOST_OPERATOR(*)
  METAL_HOST_OPERATOR(/)
  METAL_HOST_OPERATOR(%)
  METAL_HOST_OPERATOR(&)
  METAL_HOST_OPERATOR(|)
  METAL_HOST_OPERATOR(^)
#undef METAL_HOST_OPERATOR
};

template <class T, int size, int... index>
struct stands_for_vector<swizzle<T, size, index...>> {
  static constexpr bool value = true;
};

template <class T, int of, int... index>
struct element<swizzle<T, of, index...>> {
  using type = T;
  static constexpr int size = sizeof...(index);
};

// The vector that something stands for; anything else is itself.
template <class T>
constexpr auto plain(const T& value) {
  if constexpr (stands_for_vector_v<T>) {
    return vec<element_t<T>, element<value_t<T>>::size>(value);
  } else {
    return static_cast<value_t<T>>(value);
  }
}

} // namespace detail

// Every swizzle as a member: EACH_n_m calls M for the m components of a vector, at nesting level n.
#define METAL_HOST_EACH_1_2(M, a, b, c, d, ...) M(a, 0, __VA_ARGS__) M(b, 1, __VA_ARGS__)
#define METAL_HOST_EACH_1_3(M, a, b, c, d, ...) METAL_HOST_EACH_1_2(M, a, b, c, d, __VA_ARGS__) M(c, 2, __VA_ARGS__)
#define METAL_HOST_EACH_1_4(M, a, b, c, d, ...) METAL_HOST_EACH_1_3(M, a, b, c, d, __VA_ARGS__) M(d, 3, __VA_ARGS__)
#define METAL_HOST_EACH_2_2(M, a, b, c, d, ...) M(a, 0, __VA_ARGS__) M(b, 1, __VA_ARGS__)
#define METAL_HOST_EACH_2_3(M, a, b, c, d, ...) METAL_HOST_EACH_2_2(M, a, b, c, d, __VA_ARGS__) M(c, 2, __VA_ARGS__)
#define METAL_HOST_EACH_2_4(M, a, b, c, d, ...) METAL_HOST_EACH_2_3(M, a, b, c, d, __VA_ARGS__) M(d, 3, __VA_ARGS__)
#define METAL_HOST_EACH_3_2(M, a, b, c, d, ...) M(a, 0, __VA_ARGS__) M(b, 1, __VA_ARGS__)
#define METAL_HOST_EACH_3_3(M, a, b, c, d, ...) METAL_HOST_EACH_3_2(M, a, b, c, d, __VA_ARGS__) M(c, 2, __VA_ARGS__)
#define METAL_HOST_EACH_3_4(M, a, b, c, d, ...) METAL_HOST_EACH_3_3(M, a, b, c, d, __VA_ARGS__) M(d, 3, __VA_ARGS__)
#define METAL_HOST_EACH_4_2(M, a, b, c, d, ...) M(a, 0, __VA_ARGS__) M(b, 1, __VA_ARGS__)
#define METAL_HOST_EACH_4_3(M, a, b, c, d, ...) METAL_HOST_EACH_4_2(M, a, b, c, d, __VA_ARGS__) M(c, 2, __VA_ARGS__)
#define METAL_HOST_EACH_4_4(M, a, b, c, d, ...) METAL_HOST_EACH_4_3(M, a, b, c, d, __VA_ARGS__) M(d, 3, __VA_ARGS__)

#define METAL_HOST_SWIZZLE_XYZW_1(n, i, size) \
  METAL_HOST_EACH_2_##size(METAL_HOST_SWIZZLE_XYZW_2, x, y, z, w, size, n, i)
#define METAL_HOST_SWIZZLE_XYZW_2(n, i, size, n1, i1) \
  detail::swizzle<T, size, i1, i> n1##n;              \
  METAL_HOST_EACH_3_##size(METAL_HOST_SWIZZLE_XYZW_3, x, y, z, w, size, n1##n, i1, i)
#define METAL_HOST_SWIZZLE_XYZW_3(n, i, size, n2, i1, i2) \
  detail::swizzle<T, size, i1, i2, i> n2##n;              \
  METAL_HOST_EACH_4_##size(METAL_HOST_SWIZZLE_4, x, y, z, w, size, n2##n, i1, i2, i)
#define METAL_HOST_SWIZZLE_RGBA_1(n, i, size) \
  METAL_HOST_EACH_2_##size(METAL_HOST_SWIZZLE_RGBA_2, r, g, b, a, size, n, i)
#define METAL_HOST_SWIZZLE_RGBA_2(n, i, size, n1, i1) \
  detail::swizzle<T, size, i1, i> n1##n;              \
  METAL_HOST_EACH_3_##size(METAL_HOST_SWIZZLE_RGBA_3, r, g, b, a, size, n1##n, i1, i)
#define METAL_HOST_SWIZZLE_RGBA_3(n, i, size, n2, i1, i2) \
  detail::swizzle<T, size, i1, i2, i> n2##n;              \
  METAL_HOST_EACH_4_##size(METAL_HOST_SWIZZLE_4, r, g, b, a, size, n2##n, i1, i2, i)
#define METAL_HOST_SWIZZLE_4(n, i, size, n3, i1, i2, i3) detail::swizzle<T, size, i1, i2, i3, i> n3##n;

#define METAL_HOST_SWIZZLES(size)                                       \
  METAL_HOST_EACH_1_##size(METAL_HOST_SWIZZLE_XYZW_1, x, y, z, w, size) \
  METAL_HOST_EACH_1_##size(METAL_HOST_SWIZZLE_RGBA_1, r, g, b, a, size)

#define METAL_HOST_ARITHMETIC(op, assign)                         \
  friend constexpr vec operator op(vec left, vec right) {         \
    return map2(left, right, [](T a, T b) { return T(a op b); }); \
  }                                                               \
  template <class Self>                                           \
  constexpr Self& operator assign(this Self& self, vec value) {   \
    return self = vec(self) op value;                             \
  }

#define METAL_HOST_COMPARISON(op)                                      \
  friend constexpr vec<bool, count> operator op(vec left, vec right) { \
    return compare(left, right, [](T a, T b) { return a op b; });      \
  }

// What the three classes share.
#define METAL_HOST_VECTOR(n)                                                                 \
  static constexpr int count = n;                                                            \
  vec() = default;                                                                           \
  vec(const vec&) = default;                                                                 \
  constexpr vec& operator=(const vec&) = default;                                            \
                                                                                             \
  /* From a scalar, by itself. */                                                            \
  template <class A, enable_if_t<detail::is_component_v<A>, bool> = true>                    \
  constexpr vec(const A& value) : vec(fill{}, T(value)) {}                                   \
                                                                                             \
  /* From the same vector in another address space. */                                       \
  template <class A, enable_if_t<detail::is_elsewhere_v<A, vec>, bool> = true, class = void> \
  constexpr vec(const A& other) : vec(components{}, other) {}                                \
                                                                                             \
  /* From a vector of other elements, spelled out. */                                        \
  template <                                                                                 \
      class A,                                                                               \
      enable_if_t<                                                                           \
          is_vector_v<A> && detail::element<detail::value_t<A>>::size == n &&                \
              !__is_same(detail::element_t<A>, T),                                           \
          bool> = true,                                                                      \
      class = void,                                                                          \
      class = void>                                                                          \
  constexpr explicit vec(const A& other) : vec(components{}, detail::plain(other)) {}        \
                                                                                             \
  template <class Self>                                                                      \
  constexpr Self& operator=(this Self& self, vec value) {                                    \
    self.set(value);                                                                         \
    return self;                                                                             \
  }                                                                                          \
                                                                                             \
  template <class Self, class Index>                                                         \
  constexpr auto& operator[](this Self& self, Index index) {                                 \
    return self.data[index];                                                                 \
  }                                                                                          \
                                                                                             \
  METAL_HOST_ARITHMETIC(+, +=)                                                               \
  METAL_HOST_ARITHMETIC(-, -=)                                                               \
  METAL_HOST_ARITHMETIC(*, *=)                                                               \
  METAL_HOST_ARITHMETIC(/, /=)                                                               \
  METAL_HOST_ARITHMETIC(%, %=)                                                               \
  METAL_HOST_ARITHMETIC(&, &=)                                                               \
  METAL_HOST_ARITHMETIC(|, |=)                                                               \
  METAL_HOST_ARITHMETIC(^, ^=)                                                               \
  METAL_HOST_ARITHMETIC(<<, <<=)                                                             \
  METAL_HOST_ARITHMETIC(>>, >>=)                                                             \
  METAL_HOST_COMPARISON(==)                                                                  \
  METAL_HOST_COMPARISON(!=)                                                                  \
  METAL_HOST_COMPARISON(<)                                                                   \
  METAL_HOST_COMPARISON(<=)                                                                  \
  METAL_HOST_COMPARISON(>)                                                                   \
  METAL_HOST_COMPARISON(>=)                                                                  \
  METAL_HOST_COMPARISON(&&)                                                                  \
  METAL_HOST_COMPARISON(||)                                                                  \
                                                                                             \
  friend constexpr vec operator+(vec value) {                                                \
    return value;                                                                            \
  }                                                                                          \
  friend constexpr vec operator-(vec value) {                                                \
    return map1(value, [](T a) { return T(-a); });                                           \
  }                                                                                          \
  friend constexpr vec operator~(vec value) {                                                \
    return map1(value, [](T a) { return T(~a); });                                           \
  }                                                                                          \
  friend constexpr vec<bool, n> operator!(vec value) {                                       \
    return compare(value, value, [](T a, T) { return !a; });                                 \
  }                                                                                          \
  template <class Self>                                                                      \
  constexpr Self& operator++(this Self& self) {                                              \
    return self += T(1);                                                                     \
  }                                                                                          \
  template <class Self>                                                                      \
  constexpr Self& operator--(this Self& self) {                                              \
    return self -= T(1);                                                                     \
  }                                                                                          \
                                                                                             \
 private:                                                                                    \
  struct fill {};                                                                            \
  struct components {};

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    T data[2];
    METAL_HOST_SWIZZLES(2)
  };

  template <class A, class B, enable_if_t<detail::is_component_v<A> && detail::is_component_v<B>, bool> = true>
  constexpr vec(const A& a, const B& b) : x(T(a)), y(T(b)) {}

  METAL_HOST_VECTOR(2)

  constexpr vec(fill, T value) : x(value), y(value) {}
  template <class A>
  constexpr vec(components, const A& other) : x(T(other.x)), y(T(other.y)) {}

  template <class Self>
  constexpr void set(this Self& self, vec value) {
    self.x = value.x;
    self.y = value.y;
  }

  template <class F>
  static constexpr vec map1(vec a, F f) {
    return vec(f(a.x), f(a.y));
  }
  template <class F>
  static constexpr vec map2(vec a, vec b, F f) {
    return vec(f(a.x, b.x), f(a.y, b.y));
  }
  template <class F>
  static constexpr vec<bool, 2> compare(vec a, vec b, F f) {
    return vec<bool, 2>(f(a.x, b.x), f(a.y, b.y));
  }

  template <class, int>
  friend struct vec;
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    T data[4];
    METAL_HOST_SWIZZLES(3)
  };

  template <
      class A,
      class B,
      class C,
      enable_if_t<detail::is_component_v<A> && detail::is_component_v<B> && detail::is_component_v<C>, bool> = true>
  constexpr vec(const A& a, const B& b, const C& c) : x(T(a)), y(T(b)), z(T(c)) {}
  constexpr vec(vec<T, 2> a, T b) : vec(a.x, a.y, b) {}
  constexpr vec(T a, vec<T, 2> b) : vec(a, b.x, b.y) {}

  METAL_HOST_VECTOR(3)

  constexpr vec(fill, T value) : vec(value, value, value) {}
  template <class A>
  constexpr vec(components, const A& other) : vec(other.x, other.y, other.z) {}

  template <class Self>
  constexpr void set(this Self& self, vec value) {
    self.x = value.x;
    self.y = value.y;
    self.z = value.z;
  }

  template <class F>
  static constexpr vec map1(vec a, F f) {
    return vec(f(a.x), f(a.y), f(a.z));
  }
  template <class F>
  static constexpr vec map2(vec a, vec b, F f) {
    return vec(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z));
  }
  template <class F>
  static constexpr vec<bool, 3> compare(vec a, vec b, F f) {
    return vec<bool, 3>(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z));
  }

  template <class, int>
  friend struct vec;
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    T data[4];
    METAL_HOST_SWIZZLES(4)
  };

  template <
      class A,
      class B,
      class C,
      class D,
      enable_if_t<
          detail::is_component_v<A> && detail::is_component_v<B> && detail::is_component_v<C> &&
              detail::is_component_v<D>,
          bool> = true>
  constexpr vec(const A& a, const B& b, const C& c, const D& d) : x(T(a)), y(T(b)), z(T(c)), w(T(d)) {}
  constexpr vec(vec<T, 3> a, T b) : vec(a.x, a.y, a.z, b) {}
  constexpr vec(T a, vec<T, 3> b) : vec(a, b.x, b.y, b.z) {}
  constexpr vec(vec<T, 2> a, vec<T, 2> b) : vec(a.x, a.y, b.x, b.y) {}
  constexpr vec(vec<T, 2> a, T b, T c) : vec(a.x, a.y, b, c) {}
  constexpr vec(T a, vec<T, 2> b, T c) : vec(a, b.x, b.y, c) {}
  constexpr vec(T a, T b, vec<T, 2> c) : vec(a, b, c.x, c.y) {}

  METAL_HOST_VECTOR(4)

  constexpr vec(fill, T value) : vec(value, value, value, value) {}
  template <class A>
  constexpr vec(components, const A& other) : vec(other.x, other.y, other.z, other.w) {}

  template <class Self>
  constexpr void set(this Self& self, vec value) {
    self.x = value.x;
    self.y = value.y;
    self.z = value.z;
    self.w = value.w;
  }

  template <class F>
  static constexpr vec map1(vec a, F f) {
    return vec(f(a.x), f(a.y), f(a.z), f(a.w));
  }
  template <class F>
  static constexpr vec map2(vec a, vec b, F f) {
    return vec(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
  }
  template <class F>
  static constexpr vec<bool, 4> compare(vec a, vec b, F f) {
    return vec<bool, 4>(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
  }

  template <class, int>
  friend struct vec;
};

#undef METAL_HOST_VECTOR
#undef METAL_HOST_ARITHMETIC
#undef METAL_HOST_COMPARISON

// Operators that have something on a side that stands for a vector; those of vectors are their friends.
#define METAL_HOST_OPERATOR(op)                                                                   \
  template <                                                                                      \
      class A,                                                                                    \
      class B,                                                                                    \
      enable_if_t<detail::stands_for_vector_v<A> || detail::stands_for_vector_v<B>, bool> = true> \
  constexpr auto operator op(const A& a, const B& b) {                                            \
    return detail::plain(a) op detail::plain(b);                                                  \
  }
METAL_HOST_OPERATOR(+)
METAL_HOST_OPERATOR(-)
METAL_HOST_OPERATOR(*)
METAL_HOST_OPERATOR(/)
METAL_HOST_OPERATOR(%)
METAL_HOST_OPERATOR(&)
METAL_HOST_OPERATOR(|)
METAL_HOST_OPERATOR(^)
METAL_HOST_OPERATOR(==)
METAL_HOST_OPERATOR(!=)
METAL_HOST_OPERATOR(<)
METAL_HOST_OPERATOR(<=)
METAL_HOST_OPERATOR(>)
METAL_HOST_OPERATOR(>=)
#undef METAL_HOST_OPERATOR

namespace detail {
using ::metal::operator+;
using ::metal::operator-;
using ::metal::operator*;
using ::metal::operator/;
using ::metal::operator%;
using ::metal::operator&;
using ::metal::operator|;
using ::metal::operator^;
using ::metal::operator==;
using ::metal::operator!=;
using ::metal::operator<;
using ::metal::operator<=;
using ::metal::operator>;
using ::metal::operator>=;
} // namespace detail

// ---- Packed vectors: storage without padding -----------------------------------------------

template <class T, int n>
struct packed_vec;

namespace detail {

template <class T, int n>
struct stands_for_vector<packed_vec<T, n>> {
  static constexpr bool value = true;
};

template <class T, int n>
struct element<packed_vec<T, n>> {
  using type = T;
  static constexpr int size = n;
};

} // namespace detail

template <class T, int n>
struct packed_vec {
  T data[n];

  packed_vec() = default;
  packed_vec(const packed_vec&) = default;
  packed_vec& operator=(const packed_vec&) = default;
  constexpr packed_vec(vec<T, n> value) {
    *this = value;
  }
  template <class... A, enable_if_t<sizeof...(A) == n && n != 1, bool> = true>
  constexpr packed_vec(A... values) : data{T(values)...} {}

  template <class Self>
  constexpr operator vec<T, n>(this const Self& self) {
    vec<T, n> value;
    for (int i = 0; i < n; ++i) {
      value[i] = self.data[i];
    }
    return value;
  }

  template <class Self>
  constexpr Self& operator=(this Self& self, vec<T, n> value) {
    for (int i = 0; i < n; ++i) {
      self.data[i] = value[i];
    }
    return self;
  }

  template <class Self, class Index>
  constexpr auto& operator[](this Self& self, Index index) {
    return self.data[index];
  }
};

// ---- Arrays --------------------------------------------------------------------------------

template <class T, size_t n>
struct array {
  T elements[n];

  template <class Self, class Index>
  constexpr auto& operator[](this Self& self, Index index) {
    return self.elements[index];
  }
  template <class Self>
  constexpr size_t size(this const Self&) {
    return n;
  }
  template <class Self>
  constexpr auto* data(this Self& self) {
    return &self.elements[0];
  }
  template <class Self>
  constexpr auto* begin(this Self& self) {
    return &self.elements[0];
  }
  template <class Self>
  constexpr auto* end(this Self& self) {
    return &self.elements[0] + n;
  }
};

} // namespace metal

#define METAL_HOST_VECTOR_NAMES(T, name)     \
  using name##2 = metal::vec<T, 2>;          \
  using name##3 = metal::vec<T, 3>;          \
  using name##4 = metal::vec<T, 4>;          \
  namespace metal {                          \
  using ::name##2;                           \
  using ::name##3;                           \
  using ::name##4;                           \
  using packed_##name##2 = packed_vec<T, 2>; \
  using packed_##name##3 = packed_vec<T, 3>; \
  using packed_##name##4 = packed_vec<T, 4>; \
  }                                          \
  using metal::packed_##name##2;             \
  using metal::packed_##name##3;             \
  using metal::packed_##name##4;
METAL_HOST_VECTOR_NAMES(bool, bool)
METAL_HOST_VECTOR_NAMES(char, char)
METAL_HOST_VECTOR_NAMES(unsigned char, uchar)
METAL_HOST_VECTOR_NAMES(short, short)
METAL_HOST_VECTOR_NAMES(unsigned short, ushort)
METAL_HOST_VECTOR_NAMES(int, int)
METAL_HOST_VECTOR_NAMES(unsigned int, uint)
METAL_HOST_VECTOR_NAMES(long, long)
METAL_HOST_VECTOR_NAMES(unsigned long, ulong)
METAL_HOST_VECTOR_NAMES(half, half)
METAL_HOST_VECTOR_NAMES(bfloat, bfloat)
METAL_HOST_VECTOR_NAMES(float, float)
#undef METAL_HOST_VECTOR_NAMES
