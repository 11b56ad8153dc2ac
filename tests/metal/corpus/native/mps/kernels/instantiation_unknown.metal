#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void f(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = T(1);
}

template [[host_name("g_float")]] kernel void g<float>(device float* out, uint i); // error: no kernel template `g` is defined above
