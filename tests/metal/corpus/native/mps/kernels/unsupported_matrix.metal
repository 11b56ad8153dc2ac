#include <metal_stdlib>
using namespace metal;

inline float first(thread float4x4& m) { // error: unknown type name 'float4x4'
  return 0;
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = 1;
}
