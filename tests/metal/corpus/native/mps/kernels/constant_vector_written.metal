#include <metal_stdlib>
using namespace metal;

kernel void f(constant float4* in [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  in[i].x = 0; // error: read-only variable is not assignable
}
