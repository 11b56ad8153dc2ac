#include <metal_stdlib>
using namespace metal;

inline float first(thread float* p) {
  return p[0];
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = first(out); // error: no matching function for call to 'first'
}
