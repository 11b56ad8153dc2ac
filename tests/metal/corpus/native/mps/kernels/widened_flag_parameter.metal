#include <metal_stdlib>
using namespace metal;

kernel void f(
    device float* out [[buffer(0)]],
    constant uint& has_bias [[buffer(1)]], // error: is widened to an integer
    uint i [[thread_position_in_grid]]) {
  out[i] = has_bias != 0u;
}
