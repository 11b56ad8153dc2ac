#include <metal_stdlib>
using namespace metal;

inline float load(threadgroup float* p, uint i) {
  return p[i];
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = load(out, i); // error: no matching function for call to 'load'
}
