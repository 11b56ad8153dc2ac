#include <metal_stdlib>
using namespace metal;

kernel void f(
    device float* out [[buffer(0)]],
    uint2 i [[thread_position_in_grid]],
    uint size [[threads_per_grid]]) { // error: differ in their number of coordinates
  out[i.x] = size;
}
