#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = quad_sum(out[i]); // error: use of undeclared identifier 'quad_sum'
}
