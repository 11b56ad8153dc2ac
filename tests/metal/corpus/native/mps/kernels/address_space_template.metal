#include <metal_stdlib>
using namespace metal;

template <typename T>
inline T load(constant T* p, uint i) {
  return p[i];
}

template <typename T>
kernel void f(device T* out [[buffer(0)]], device T* in [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = load(in, i); // error: no matching function for call to 'load'
}

template [[host_name("f_float")]] kernel void f<float>(device float* out, device float* in, uint i);
