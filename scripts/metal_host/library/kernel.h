// How the executor calls a kernel: for each parameter a binding, which the rewriter names by the parameter's
// attribute, turns what the executor has into an argument of the parameter's type.
#pragma once

namespace metal_host {

using metal::enable_if_t;
using metal::is_same_v;

// ---- What a parameter's type says ----------------------------------------------------------

// A pointer or reference into an address space.
template <class T>
struct pointee {
  using type = T;
  static constexpr bool is_pointer = false;
  static constexpr bool is_reference = false;
  static constexpr bool is_constant = false;
  static constexpr bool is_threadgroup = false;
};

#define METAL_HOST_POINTEE(space, is_constant_, is_threadgroup_) \
  template <class T>                                             \
  struct pointee<space T*> {                                     \
    using type = space T;                                        \
    static constexpr bool is_pointer = true;                     \
    static constexpr bool is_reference = false;                  \
    static constexpr bool is_constant = is_constant_;            \
    static constexpr bool is_threadgroup = is_threadgroup_;      \
  };                                                             \
  template <class T>                                             \
  struct pointee<space T&> {                                     \
    using type = space T;                                        \
    static constexpr bool is_pointer = true;                     \
    static constexpr bool is_reference = true;                   \
    static constexpr bool is_constant = is_constant_;            \
    static constexpr bool is_threadgroup = is_threadgroup_;      \
  };
METAL_HOST_POINTEE(device, false, false)
METAL_HOST_POINTEE(constant, true, false)
METAL_HOST_POINTEE(threadgroup, false, true)
#undef METAL_HOST_POINTEE

template <class T>
constexpr unsigned size_of() {
  if constexpr (__is_void(T)) {
    return 0;
  } else {
    return sizeof(T);
  }
}
template <class T>
constexpr unsigned alignment_of() {
  if constexpr (__is_void(T)) {
    return 1;
  } else {
    return alignof(T);
  }
}

template <class T>
T from_memory(void* memory) {
  using P = typename pointee<T>::type;
  const auto address = reinterpret_cast<size_t>(memory);
  if constexpr (!pointee<T>::is_pointer) {
    __builtin_unreachable(); // refused by describe()
  } else if constexpr (pointee<T>::is_reference) {
    return *reinterpret_cast<P*>(address);
  } else {
    return reinterpret_cast<P*>(address);
  }
}

// ---- Bindings ------------------------------------------------------------------------------

template <unsigned index>
struct buffer {
  template <class T>
  static constexpr metal_host_argument describe() {
    static_assert(
        pointee<T>::is_pointer,
        "a buffer parameter is a pointer or a reference into device or constant memory: `device T*`, `constant T&`");
    static_assert(!pointee<T>::is_threadgroup, "threadgroup memory is bound by [[threadgroup(n)]], not [[buffer(n)]]");
    using P = typename pointee<T>::type;
    return {
        METAL_HOST_BUFFER,
        index,
        size_of<P>(),
        alignment_of<P>(),
        pointee<T>::is_reference,
        pointee<T>::is_constant};
  }
  template <class T>
  static T get(const metal_host_group& group, unsigned) {
    return from_memory<T>(group.buffers[index]);
  }
};

template <unsigned index>
struct threadgroup_memory {
  template <class T>
  static constexpr metal_host_argument describe() {
    static_assert(
        pointee<T>::is_pointer && pointee<T>::is_threadgroup,
        "a [[threadgroup(n)]] parameter is a pointer or a reference into threadgroup memory");
    using P = typename pointee<T>::type;
    return {METAL_HOST_THREADGROUP_MEMORY, index, size_of<P>(), alignment_of<P>(), pointee<T>::is_reference, false};
  }
  template <class T>
  static T get(const metal_host_group& group, unsigned) {
    return from_memory<T>(group.threadgroup_memory[index]);
  }
};

template <class T>
constexpr bool is_coordinate_v =
    is_same_v<metal::detail::element_t<T>, uint> || is_same_v<metal::detail::element_t<T>, ushort>;

// Attributes of three coordinates: `value(group, thread, i)` is coordinate i.
#define METAL_HOST_COORDINATES(name, expression)                                                               \
  struct name {                                                                                                \
    template <class T>                                                                                         \
    static constexpr metal_host_argument describe() {                                                          \
      static_assert(is_coordinate_v<T>, "[[" #name "]] is ushort or uint, or a vector of 2 or 3 of these");    \
      static_assert(metal::detail::element<T>::size <= 3, "[[" #name "]] has at most 3 coordinates");          \
      return {METAL_HOST_POSITION, 0, 0, 1, false, false};                                                     \
    }                                                                                                          \
    static unsigned value(const metal_host_group& group, unsigned thread_index, int i) {                       \
      return expression;                                                                                       \
    }                                                                                                          \
    template <class T>                                                                                         \
    static T get(const metal_host_group& group, unsigned thread_index) {                                       \
      if constexpr (metal::detail::element<T>::size == 1) {                                                    \
        return T(value(group, thread_index, 0));                                                               \
      } else if constexpr (metal::detail::element<T>::size == 2) {                                             \
        return T(value(group, thread_index, 0), value(group, thread_index, 1));                                \
      } else {                                                                                                 \
        return T(value(group, thread_index, 0), value(group, thread_index, 1), value(group, thread_index, 2)); \
      }                                                                                                        \
    }                                                                                                          \
  };

inline unsigned coordinate(const metal_host_group& group, unsigned thread_index, int i) {
  if (group.threads[1] * group.threads[2] == 1) {
    return i == 0 ? thread_index : 0;
  }
  const unsigned x = group.threads[0], y = group.threads[1];
  return i == 0 ? thread_index % x : i == 1 ? thread_index / x % y : thread_index / (x * y);
}

METAL_HOST_COORDINATES(thread_position_in_threadgroup, coordinate(group, thread_index, i))
METAL_HOST_COORDINATES(
    thread_position_in_grid,
    group.position[i] * group.dispatch_threads[i] + coordinate(group, thread_index, i))
METAL_HOST_COORDINATES(threadgroup_position_in_grid, (void(thread_index), group.position[i]))
METAL_HOST_COORDINATES(threads_per_threadgroup, (void(thread_index), group.threads[i]))
METAL_HOST_COORDINATES(dispatch_threads_per_threadgroup, (void(thread_index), group.dispatch_threads[i]))
METAL_HOST_COORDINATES(threadgroups_per_grid, (void(thread_index), group.groups[i]))
METAL_HOST_COORDINATES(threads_per_grid, (void(thread_index), group.grid[i]))
#undef METAL_HOST_COORDINATES

#define METAL_HOST_INDEX(name, expression)                                                                \
  struct name {                                                                                           \
    template <class T>                                                                                    \
    static constexpr metal_host_argument describe() {                                                     \
      static_assert(                                                                                      \
          is_coordinate_v<T> && metal::detail::element<T>::size == 1, "[[" #name "]] is ushort or uint"); \
      return {METAL_HOST_POSITION, 0, 0, 1, false, false};                                                \
    }                                                                                                     \
    template <class T>                                                                                    \
    static T get(const metal_host_group& group, unsigned thread_index) {                                  \
      return T(expression);                                                                               \
    }                                                                                                     \
  };

inline unsigned simdgroups(const unsigned (&threads)[3]) {
  return (threads[0] * threads[1] * threads[2] + 31) / 32;
}

METAL_HOST_INDEX(thread_index_in_threadgroup, (void(group), thread_index))
METAL_HOST_INDEX(thread_index_in_simdgroup, (void(group), thread_index % 32))
METAL_HOST_INDEX(simdgroup_index_in_threadgroup, (void(group), thread_index / 32))
METAL_HOST_INDEX(thread_index_in_quadgroup, (void(group), thread_index % 4))
METAL_HOST_INDEX(quadgroup_index_in_threadgroup, (void(group), thread_index / 4))
METAL_HOST_INDEX(threads_per_simdgroup, (void(group), void(thread_index), 32))
METAL_HOST_INDEX(thread_execution_width, (void(group), void(thread_index), 32))
METAL_HOST_INDEX(simdgroups_per_threadgroup, (void(thread_index), simdgroups(group.threads)))
METAL_HOST_INDEX(dispatch_simdgroups_per_threadgroup, (void(thread_index), simdgroups(group.dispatch_threads)))
#undef METAL_HOST_INDEX

// ---- Registration --------------------------------------------------------------------------

inline const metal_host_kernel* first_kernel = nullptr;

template <class F>
struct signature;

template <class... T>
struct signature<void(T...)> {
  template <void (*f)(T...), class... Binding>
  struct bound {
    static_assert(sizeof...(T) == sizeof...(Binding));
    static constexpr unsigned count = sizeof...(T);
    static constexpr metal_host_argument arguments[count + 1] = {Binding::template describe<T>()..., {}};

    static void run(metal_host_thread_range* range) {
      const metal_host_group group = *range->group; // a copy, which no kernel can write to
      while (range->next != range->end) {
        const unsigned thread_index = range->next;
        range->next += range->step;
        f(Binding::template get<T>(group, thread_index)...);
      }
    }
  };
};

template <class Bound>
struct registration : metal_host_kernel {
  registration(const char* name, unsigned max_total_threads)
      : metal_host_kernel{name, &Bound::run, Bound::arguments, Bound::count, max_total_threads, first_kernel} {
    first_kernel = this;
  }
};

// A threadgroup variable of a kernel, wherever the executor has put it for this group.
struct threadgroup_variable {
  const void* key;
  template <class T>
  operator threadgroup T&() const {
    return *reinterpret_cast<threadgroup T*>(
        reinterpret_cast<size_t>(metal_host_threadgroup_variable(key, sizeof(T), alignof(T))));
  }
};

// ---- Structs outside of thread memory ------------------------------------------------------

// C++ copies a class within an address space; Metal copies it between any two. So structs get an assignment for
// that, and a variable's initial value comes through value().

template <class To, class From, class Struct>
constexpr bool is_copy_v = is_same_v<metal::detail::value_t<To>, Struct> &&
    is_same_v<metal::detail::value_t<From>, Struct> && !__is_const(To) &&
    (metal::detail::is_elsewhere_v<To, Struct> || metal::detail::is_elsewhere_v<From, Struct>);

template <class To, class From>
void copy(To& to, const From& from) {
  __builtin_memcpy(
      reinterpret_cast<void*>(reinterpret_cast<size_t>(&to)),
      reinterpret_cast<const void*>(reinterpret_cast<size_t>(&from)),
      sizeof(to));
}

template <class T>
constexpr decltype(auto) value(T&& from) {
  using From = __remove_reference_t(T);
  using Value = metal::detail::value_t<From>;
  if constexpr (__is_class(Value) && metal::detail::is_elsewhere_v<From, Value> && !__is_constructible(Value, From&)) {
    Value result;
    copy(result, from);
    return result;
  } else {
    return static_cast<T&&>(from);
  }
}

// A string literal, which in Metal lies in constant memory.
inline const constant char* literal(const char* text) {
  return reinterpret_cast<const constant char*>(reinterpret_cast<size_t>(text));
}

} // namespace metal_host

extern "C" __attribute__((visibility("default"), used)) inline const metal_host_kernel* metal_host_first_kernel() {
  return metal_host::first_kernel;
}
