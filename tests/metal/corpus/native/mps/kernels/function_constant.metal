#include <metal_stdlib>
using namespace metal;

constant bool with_bias [[function_constant(0)]]; // error: function constants are not supported by the CPU executor

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = 1;
}
