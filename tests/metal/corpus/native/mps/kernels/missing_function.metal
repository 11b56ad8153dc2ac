#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = metal::erf(out[i]); // error: no member named 'erf' in namespace 'metal'
}
