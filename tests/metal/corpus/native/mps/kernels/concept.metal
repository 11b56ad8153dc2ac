#include <metal_stdlib>
using namespace metal;

template <typename T>
concept Small = sizeof(T) <= 4; // error: Metal 4.0 is C++17

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = Small<float>;
}
