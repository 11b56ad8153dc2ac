#include <metal_stdlib>
using namespace metal;

kernel void f(float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { // error: this parameter is a pointer without an address space
  out[i] = 1;
}
