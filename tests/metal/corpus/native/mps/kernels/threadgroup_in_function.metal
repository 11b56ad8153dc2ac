#include <metal_stdlib>
using namespace metal;

inline float sum(float x, uint i) {
  threadgroup float shared[32]; // error: a threadgroup variable outside of a kernel's body
  shared[i] = x;
  return shared[0];
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = sum(out[i], i);
}
