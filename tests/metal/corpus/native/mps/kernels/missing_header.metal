#include <metal_stdlib>
using namespace metal;

#include <vector> // error: 'vector' file not found

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = 1;
}
