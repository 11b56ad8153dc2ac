#include <metal_stdlib>
using namespace metal;

inline void twice(float& x) { // error: this parameter is a reference without an address space
  x *= 2;
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float x = out[i];
  twice(x);
  out[i] = x;
}
