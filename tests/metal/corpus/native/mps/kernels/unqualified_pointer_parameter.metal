#include <metal_stdlib>
using namespace metal;

inline float first(float* p) { // error: this parameter is a pointer without an address space
  return p[0];
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = 1;
}
