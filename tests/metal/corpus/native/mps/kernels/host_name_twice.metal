#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void f(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = T(1);
}

template [[host_name("f_float")]] kernel void f<float>(device float* out, uint i);
template [[host_name("f_float")]] kernel void f<half>(device half* out, uint i); // error: host_name "f_float" is used twice
