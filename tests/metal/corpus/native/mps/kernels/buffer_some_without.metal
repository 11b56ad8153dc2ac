#include <metal_stdlib>
using namespace metal;

kernel void f(
    device float* out [[buffer(0)]],
    constant float* a, // error: has no [[buffer(n)]], but others have one
    uint i [[thread_position_in_grid]]) {
  out[i] = a[i];
}
