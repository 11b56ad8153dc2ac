#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void f(device T* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if constexpr (sizeof(T) == 4) { // error: constexpr if needs C++17; Metal 3.1 is C++14
    out[i] = 1;
  }
}

template [[host_name("f_float")]] kernel void f<float>(device float* out, uint i);
