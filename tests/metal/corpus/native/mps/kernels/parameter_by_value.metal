#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint size, uint i [[thread_position_in_grid]]) { // error: kernel parameter `uint size` has no attribute
  out[i] = size;
}
