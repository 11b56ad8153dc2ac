#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(31)]], uint i [[thread_position_in_grid]]) { // error: the index is a number from 0 to 30
  out[i] = 1;
}
