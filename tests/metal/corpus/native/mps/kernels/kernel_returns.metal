#include <metal_stdlib>
using namespace metal;

kernel float f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { // error: kernel `f` does not return void
  return out[i];
}
