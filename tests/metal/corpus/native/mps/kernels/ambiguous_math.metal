#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], constant int* in [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = exp(in[i]); // error: call to 'exp' is ambiguous
}
