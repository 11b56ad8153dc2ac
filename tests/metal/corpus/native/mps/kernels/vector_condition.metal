#include <metal_stdlib>
using namespace metal;

kernel void f(device float2* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (out[i] > 0) { // error: is not contextually convertible to 'bool'
    out[i] = 0;
  }
}
