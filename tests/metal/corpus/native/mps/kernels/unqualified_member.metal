#include <metal_stdlib>
using namespace metal;

struct Row {
  float* data; // error: `data` is a pointer without an address space
  uint size;
};

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = sizeof(Row);
}
