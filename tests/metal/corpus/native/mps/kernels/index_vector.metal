#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint2 i [[thread_index_in_threadgroup]]) { // error: [[thread_index_in_threadgroup]] is ushort or uint
  out[i.x] = 1;
}
