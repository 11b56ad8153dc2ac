#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i > 10) {
    throw 1; // error: Metal has no exceptions
  }
  out[i] = 1;
}
