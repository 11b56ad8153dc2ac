#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float x[2] = {1, 2};
  const float* p = x; // error: `p` is a pointer without an address space
  out[i] = p[0];
}
