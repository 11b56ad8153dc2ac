#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void f(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = T(1);
}

template kernel void f<float>(device float* out, uint i); // error: has no [[host_name]]
