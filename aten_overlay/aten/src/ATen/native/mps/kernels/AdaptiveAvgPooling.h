// What the Metal kernels of adaptive average pooling and their host code share.
#pragma once

#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

// A tensor [N, C, T, H, W]. In two dimensions T is 1.
struct AdaptiveAvgPoolTensor {
  int64_t time;
  int64_t height;
  int64_t width;
  // In elements.
  int64_t batch_stride;
  int64_t channel_stride;
  int64_t time_stride;
  int64_t height_stride;
  int64_t width_stride;
};

struct AdaptiveAvgPoolParams {
  AdaptiveAvgPoolTensor input; // or its gradient
  AdaptiveAvgPoolTensor output; // or its gradient
  int64_t channels;
  bool channels_last; // which dimension neighbouring threads go along
};
