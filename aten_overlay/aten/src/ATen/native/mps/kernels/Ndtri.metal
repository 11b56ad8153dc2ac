// special.ndtri on Metal: the quantile of the standard normal distribution.
#include <c10/metal/indexing.h>
#include <c10/metal/utils.h>
#include <metal_stdlib>

using namespace metal;

// Algorithm AS 241 (Wichura, 1988), PPND7: rational functions for the middle and the two parts of a tail,
// to about one part in 10^7.
inline float normal_quantile(float p) {
  const float q = p - 0.5f;
  if (fabs(q) <= 0.425f) {
    const float r = 0.180625f - q * q;
    return q * (((59.109374720f * r + 159.29113202f) * r + 50.434271938f) * r + 3.3871327179f) /
        (((67.187563600f * r + 78.757757664f) * r + 17.895169469f) * r + 1.0f);
  }
  const float tail = q < 0 ? p : 1 - p;
  if (tail == 0) {
    return copysign(INFINITY, q);
  }
  if (!(tail > 0)) { // out of [0, 1], or NaN
    return NAN;
  }
  float r = precise::sqrt(-precise::log(tail));
  float x;
  if (r <= 5) {
    r -= 1.6f;
    x = (((0.17023821103f * r + 1.3067284816f) * r + 2.7568153900f) * r + 1.4234372777f) /
        ((0.12021132975f * r + 0.73700164250f) * r + 1.0f);
  } else {
    r -= 5;
    x = (((0.017337203997f * r + 0.42868294337f) * r + 3.0812263860f) * r + 6.6579051150f) /
        ((0.012258202635f * r + 0.24197894225f) * r + 1.0f);
  }
  return copysign(x, q);
}

struct ndtri_functor {
  template <typename T>
  inline enable_if_t<is_floating_point_v<T>, T> operator()(const T p) {
    return static_cast<T>(normal_quantile(static_cast<float>(p)));
  }
  template <typename T>
  inline enable_if_t<is_integral_v<T>, float> operator()(const T p) {
    return normal_quantile(static_cast<float>(p));
  }
};

REGISTER_UNARY_OP(ndtri, float, float);
REGISTER_UNARY_OP(ndtri, half, half);
REGISTER_UNARY_OP(ndtri, bfloat, bfloat);
REGISTER_UNARY_OP(ndtri, long, float);
REGISTER_UNARY_OP(ndtri, int, float);
REGISTER_UNARY_OP(ndtri, short, float);
REGISTER_UNARY_OP(ndtri, char, float);
REGISTER_UNARY_OP(ndtri, uchar, float);
REGISTER_UNARY_OP(ndtri, bool, float);
