#include <metal_stdlib>
using namespace metal;

inline __attribute__((pure_function)) float twice(float x) { // error: unknown attribute 'pure_function' ignored
  return 2 * x;
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = twice(out[i]);
}
