#include <metal_stdlib>
using namespace metal;

kernel void f(device bfloat* out [[buffer(0)]], constant float* in [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = in[i]; // error: no viable overloaded '='
}
