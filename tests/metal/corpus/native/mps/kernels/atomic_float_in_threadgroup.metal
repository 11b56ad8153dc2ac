#include <metal_stdlib>
using namespace metal;

kernel void f(device float* out [[buffer(0)]], threadgroup atomic<float>* sum [[threadgroup(0)]], uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(sum, out[i], memory_order_relaxed); // error: no matching function for call to 'atomic_fetch_add_explicit'
}
