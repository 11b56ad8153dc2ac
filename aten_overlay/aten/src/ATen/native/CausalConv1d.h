#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>

namespace at::native {

// A call of causal_conv1d after its checks, in the one form that every backend computes in.
// All members are views of the caller's tensors; an absent one is undefined.
struct CausalConv1dArgs {
  Tensor input; // [B, D, T]
  Tensor weight; // [D, W]
  Tensor bias; // [D]
  Tensor initial_state; // [N, D, W-1]; N = B, or the number of segments of cu_seqlens
  Tensor seq_idx; // [B, T], int32 or int64
  Tensor cu_seqlens; // [N+1], int32 or int64
  bool silu = false;
};

// The gradients of the above, in the same form; an undefined one is not wanted.
struct CausalConv1dGrads {
  Tensor input;
  Tensor weight;
  Tensor bias;
  Tensor initial_state;
};

// A call of causal_conv1d_update, likewise. The state changes in place.
struct CausalConv1dUpdateArgs {
  Tensor input; // [B, D, T]
  Tensor state; // [S, D, L], L >= W-1
  Tensor weight; // [D, W]
  Tensor bias; // [D]
  Tensor state_indices; // [B], int32 or int64
  Tensor cache_seqlens; // [B], int32 or int64
  bool silu = false;
};

// Checks shapes, dtypes and devices (never values) and brings the arguments into that form.
// Works on symbolic sizes.
CausalConv1dArgs causal_conv1d_args(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens);

CausalConv1dUpdateArgs causal_conv1d_update_args(
    const Tensor& input,
    const Tensor& state,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& state_indices,
    const std::optional<Tensor>& cache_seqlens);

// An uninitialised tensor of the input's shape in the memory layout of causal_conv1d's output: the
// input's strides where it is dense and does not overlap; else channels-last if its channel
// stride is 1, else contiguous.
Tensor causal_conv1d_empty_output(const Tensor& input);

// `output` and `final_state` may each be undefined (not wanted).
using causal_conv1d_fn =
    void (*)(const CausalConv1dArgs& args, const Tensor& output, const Tensor& final_state);
using causal_conv1d_backward_fn = void (*)(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads);
using causal_conv1d_update_fn = void (*)(const CausalConv1dUpdateArgs& args, const Tensor& output);

DECLARE_DISPATCH(causal_conv1d_fn, causal_conv1d_stub)
DECLARE_DISPATCH(causal_conv1d_backward_fn, causal_conv1d_backward_stub)
DECLARE_DISPATCH(causal_conv1d_update_fn, causal_conv1d_update_stub)

} // namespace at::native
