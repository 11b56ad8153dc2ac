#include <metal_stdlib>
using namespace metal;

#include "shared_layout.h"

kernel void f(device float* out [[buffer(0)]], constant Params& params [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = params.sizes.x;
}
