#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], constant float* in [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  device const float* p = in; // error: cannot initialize a variable of type 'const device float *' with an lvalue of type 'constant float *'
  out[i] = p[i];
}
