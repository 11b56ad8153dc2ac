#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], threadgroup float* shared, uint i [[thread_position_in_grid]]) { // error: has no index
  out[i] = shared[0];
}
