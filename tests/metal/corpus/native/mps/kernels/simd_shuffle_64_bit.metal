#include <metal_stdlib>
using namespace metal;

kernel void f(device ulong* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = simd_shuffle_down(out[i], 1); // error: no matching function for call to 'simd_shuffle_down'
}
