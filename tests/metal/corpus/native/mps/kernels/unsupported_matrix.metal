#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float4x4 m(1.0); // error: unknown type name 'float4x4'
  out[i] = m[0][0];
}
