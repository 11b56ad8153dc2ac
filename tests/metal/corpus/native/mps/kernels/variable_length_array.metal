#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], constant uint& size [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  float row[size]; // error: variable length arrays
  row[0] = 1;
  out[i] = row[0];
}
