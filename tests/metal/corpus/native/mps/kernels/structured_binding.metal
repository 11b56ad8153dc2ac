#include <metal_stdlib>
using namespace metal;

struct Pair {
  float a, b;
};

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  Pair pair = {1, 2};
  auto [a, b] = pair; // error: structured binding declarations needs C++17; Metal 3.1 is C++14
  out[i] = a + b;
}
