#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = *reinterpret_cast<threadgroup float*>(out + i); // error: reinterpret_cast from 'device float *' to 'threadgroup float *' is not allowed
}
