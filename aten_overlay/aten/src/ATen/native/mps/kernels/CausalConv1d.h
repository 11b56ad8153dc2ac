// What the Metal kernels of causal_conv1d and their host code share.
#pragma once

#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

// Positions that a thread of the forward and of the input's gradient takes, one after the other.
C10_METAL_CONSTEXPR unsigned kCausalConv1dPositions = 4;
// The gradients of weight and bias are summed over positions in an order that nothing but the shape
// decides: every 32nd position of a stretch, then over these 32 lanes, then over the stretches.
C10_METAL_CONSTEXPR unsigned kCausalConv1dLanes = 32;
C10_METAL_CONSTEXPR unsigned kCausalConv1dStretch = 2048;
// Channels in a threadgroup of that sum.
C10_METAL_CONSTEXPR unsigned kCausalConv1dChannels = 8;

// In elements: from a row [D, T] of a tensor to the next, and within it.
struct CausalConv1dStrides {
  int64_t row;
  int64_t channel;
  int64_t time;
};

struct CausalConv1dParams {
  CausalConv1dStrides input;
  CausalConv1dStrides output; // or its gradient
  CausalConv1dStrides grad_input;
  CausalConv1dStrides initial_state;
  CausalConv1dStrides final_state; // or its gradient
  CausalConv1dStrides grad_initial_state;
  int64_t weight_channel;
  int64_t weight_tap;
  int64_t bias_channel;
  int64_t seq_idx_row;
  int64_t seq_idx_time;
  int64_t cu_seqlens_stride;
  int64_t rows; // B
  int64_t channels; // D
  int64_t time; // T
  int64_t width; // W
  int64_t sequences; // N: rows of the states
  bool silu;
  bool wide_parameters; // weight and bias are float beside a half or bfloat input
  bool wide_indices; // int64
  bool bias_given;
  bool initial_state_given;
  bool seq_idx_given;
  bool cu_seqlens_given;
  bool grad_output_given;
  bool grad_final_state_given;
  bool time_contiguous; // which dimension neighbouring threads go along
};

struct CausalConv1dUpdateParams {
  CausalConv1dStrides input;
  CausalConv1dStrides state;
  CausalConv1dStrides output;
  int64_t weight_channel;
  int64_t weight_tap;
  int64_t bias_channel;
  int64_t state_indices_stride;
  int64_t cache_seqlens_stride;
  int64_t channels; // D
  int64_t time; // T
  int64_t width; // W
  int64_t states; // S
  int64_t places; // L
  bool silu;
  bool wide_parameters;
  bool wide_state_indices;
  bool wide_cache_seqlens;
  bool bias_given;
  bool state_indices_given;
  bool cache_seqlens_given;
};
