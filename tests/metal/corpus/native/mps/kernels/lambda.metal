#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  auto twice = [](float x) { return 2 * x; }; // error: Metal 3.1 has no lambdas
  out[i] = twice(out[i]);
}
