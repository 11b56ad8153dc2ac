#include <metal_stdlib>
using namespace metal;

kernel void f(constant float* in [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  in[i] = 0; // error: read-only variable is not assignable
}
