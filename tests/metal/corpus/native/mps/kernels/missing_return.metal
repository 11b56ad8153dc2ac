#include <metal_stdlib>
using namespace metal;

inline float sign_of(float x) {
  if (x > 0) {
    return 1;
  }
} // error: non-void function does not return a value in all control paths

kernel void f(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = sign_of(out[i]);
}
