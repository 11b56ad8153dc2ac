#include <metal_stdlib>
using namespace metal;

kernel void f(
    device float* out [[buffer(0)]],
    constant float* a [[buffer(1)]],
    constant float* b [[buffer(1)]], // error: [[buffer(1)]] is bound twice
    uint i [[thread_position_in_grid]]) {
  out[i] = a[i] + b[i];
}
