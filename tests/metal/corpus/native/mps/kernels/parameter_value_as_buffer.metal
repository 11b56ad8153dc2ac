#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint size [[buffer(1)]], uint i [[thread_position_in_grid]]) { // error: a buffer parameter is a pointer or a reference
  out[i] = size;
}
