#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  [[unrolled]] for (uint n = 0; n < 4; ++n) { // error: [[unrolled]] is not an attribute
    out[i] += n;
  }
}
