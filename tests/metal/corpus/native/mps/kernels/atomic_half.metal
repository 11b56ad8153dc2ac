#include <metal_stdlib>
using namespace metal;

kernel void f(device atomic<half>* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(out + i, half(1), memory_order_relaxed); // error: atomic<T>: T must be int, uint, bool, float or ulong
}
