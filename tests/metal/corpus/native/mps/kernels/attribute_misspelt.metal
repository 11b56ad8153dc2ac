#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_gird]]) { // error: [[thread_position_in_gird]] is not an attribute
  out[i] = 1;
}
