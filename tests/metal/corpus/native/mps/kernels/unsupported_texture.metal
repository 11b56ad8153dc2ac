#include <metal_stdlib>
using namespace metal;

kernel void f(
    device float* out [[buffer(0)]],
    texture2d<float> image [[texture(0)]], // error: [[texture]] is not supported by the CPU executor
    uint i [[thread_position_in_grid]]) {
  out[i] = 1;
}
