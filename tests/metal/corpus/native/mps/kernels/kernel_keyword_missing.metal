#include <metal_stdlib>
using namespace metal;

void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { // error: on a function that is not marked `kernel`
  out[i] = 1;
}
