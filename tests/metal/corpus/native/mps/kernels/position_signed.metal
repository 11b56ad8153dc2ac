#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], int i [[thread_position_in_grid]]) { // error: [[thread_position_in_grid]] is ushort or uint
  out[i] = 1;
}
