// Operators of each kind that MetalShaderLibrary runs.
#include <c10/metal/indexing.h>
#include <metal_stdlib>

using namespace metal;
using namespace c10::metal;

struct twice_functor {
  template <typename T>
  inline T operator()(const T x) {
    return x + x;
  }
};

struct shifted_functor {
  template <typename T, typename A>
  inline T operator()(const T x, const A by) {
    return x + by;
  }
};

struct less_half_functor {
  template <typename T>
  inline T operator()(const T a, const T b) {
    return a - b / 2;
  }
};

struct below_functor {
  template <typename T>
  inline bool operator()(const T a, const T b) {
    return a < b;
  }
};

struct along_functor {
  template <typename T, typename A>
  inline T operator()(const T a, const T b, const A step) {
    return a + step * b;
  }
};

struct mixed_functor {
  template <typename T>
  inline T operator()(const T a, const T b, const T c) {
    return a + b * 2 - c;
  }
};

REGISTER_UNARY_OP(twice, float, float);
REGISTER_UNARY_OP(twice, half, half);
REGISTER_UNARY_OP(twice, long, long);
REGISTER_UNARY_ALPHA_OP(shifted, float, float, float);
REGISTER_UNARY_ALPHA_OP(shifted, int, int, int);

REGISTER_BINARY_OP(less_half, float, float);
REGISTER_BINARY_OP(less_half, half, half);
REGISTER_BINARY_OP(less_half, long, long);
REGISTER_BINARY_OP(below, float, bool);
REGISTER_BINARY_OP(below, long, bool);
REGISTER_BINARY_CASTOUT_OP(below, float, bool);
REGISTER_BINARY_ALPHA_OP(along, float, float, float);
REGISTER_BINARY_ALPHA_OP(along, long, long, long);

REGISTER_TERNARY_OP(mixed, float, float);
REGISTER_TERNARY_OP(mixed, half, half);
REGISTER_TERNARY_OP(mixed, int, int);
