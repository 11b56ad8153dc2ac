#include <metal_stdlib>
using namespace metal;

struct Params {
  float scale;
  uint size;
};

kernel void f(device float* out [[buffer(0)]], constant Params& params [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  Params mine = params; // error: no matching constructor for initialization of 'Params'
  out[i] = mine.scale;
}
