#include <metal_stdlib>
using namespace metal;

kernel void f(device atomic<uint>* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(out, i, memory_order_seq_cst); // error: use of undeclared identifier 'memory_order_seq_cst'
}
