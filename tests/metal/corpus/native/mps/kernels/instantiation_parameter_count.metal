#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void f(device T* out [[buffer(0)]], constant uint& size [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = T(size);
}

template [[host_name("f_float")]] kernel void f<float>(device float* out, uint i); // error: kernel `f` has 3 parameters, but this instantiation 2
