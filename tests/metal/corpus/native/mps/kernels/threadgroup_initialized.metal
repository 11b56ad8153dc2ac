#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float sum = 0; // error: a threadgroup variable has no initial value
  out[i] = sum;
}
