// heaviside on Metal.
#include <c10/metal/indexing.h>
#include <c10/metal/utils.h>
#include <metal_stdlib>

using namespace metal;

// NaN is neither zero nor greater, and gives 0, as on the CPU.
struct heaviside_functor {
  template <typename T>
  inline T operator()(const T self, const T values) {
    return self == T(0) ? values : static_cast<T>(self > T(0));
  }
};

REGISTER_BINARY_OP(heaviside, float, float);
REGISTER_BINARY_OP(heaviside, half, half);
REGISTER_BINARY_OP(heaviside, bfloat, bfloat);
REGISTER_BINARY_OP(heaviside, long, long);
REGISTER_BINARY_OP(heaviside, int, int);
REGISTER_BINARY_OP(heaviside, short, short);
REGISTER_BINARY_OP(heaviside, char, char);
REGISTER_BINARY_OP(heaviside, uchar, uchar);
REGISTER_BINARY_OP(heaviside, bool, bool);
