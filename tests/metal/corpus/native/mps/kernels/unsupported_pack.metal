#include <metal_stdlib>
using namespace metal;

kernel void f(device float4* out [[buffer(0)]], constant uint* in [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = unpack_unorm4x8_to_float(in[i]); // error: use of undeclared identifier 'unpack_unorm4x8_to_float'
}
