#include <metal_stdlib>
using namespace metal;

kernel void f(device bfloat* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = simd_sum(out[i]); // error: no matching function for call to 'simd_sum'
}
