#include <metal_stdlib>
using namespace metal;

kernel void f(device half2* out [[buffer(0)]], constant float2* in [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = in[i]; // error: no viable overloaded '='
}
