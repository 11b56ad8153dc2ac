#include <metal_stdlib>
using namespace metal;

template <typename... T>
inline float sum(T... values) {
  return (values + ...); // error: fold expression needs C++17; Metal 3.1 is C++14
}

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = sum(1.0, 2.0);
}
