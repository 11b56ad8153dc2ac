#include <metal_stdlib>
using namespace metal;

struct Op {
  virtual float apply(float x) const; // error: Metal has no virtual functions
};

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = sizeof(Op);
}
