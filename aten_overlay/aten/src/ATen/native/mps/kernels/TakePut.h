// What the Metal kernels of take and put_ and their host code share.
#pragma once

#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

// Dimension 0 is the innermost.
struct TakePutParams {
  // What is iterated over: the index, and beside it take's output or put_'s source. Strides in bytes.
  ::c10::metal::array<int64_t, c10::metal::max_ndim> sizes;
  ::c10::metal::array<int64_t, c10::metal::max_ndim> value_strides;
  ::c10::metal::array<int64_t, c10::metal::max_ndim> index_strides;
  // What the index goes into. Strides in elements.
  ::c10::metal::array<int64_t, c10::metal::max_ndim> self_sizes;
  ::c10::metal::array<int64_t, c10::metal::max_ndim> self_strides;
  int64_t self_numel;
  int64_t self_offset; // from the start of the word that it begins in, which is where atomics on words count from
  uint32_t ndim;
  uint32_t self_ndim;
};
