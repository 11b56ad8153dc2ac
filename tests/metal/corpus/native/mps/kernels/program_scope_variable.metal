#include <metal_stdlib>
using namespace metal;

device float total; // error: a device variable at program scope

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = 1;
}
