// causal_conv1d_update under a second name, outside the aten namespace.
//
// torch.compile makes a mutable operator of another namespace functional by a higher-order
// operator that Inductor turns back into the call in place; an aten one becomes its functional
// variant and a copy of the whole state. torch/_decomp/_causal_conv1d.py sends the first to the second.
#include <ATen/core/Tensor.h>
#include <ATen/ops/causal_conv1d_update.h>
#include <torch/library.h>

namespace at::native {

namespace {

Tensor causal_conv1d_update_in_place(
    const Tensor& input,
    Tensor& state,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& state_indices,
    const std::optional<Tensor>& cache_seqlens) {
  return at::causal_conv1d_update(input, state, weight, bias, activation, state_indices, cache_seqlens);
}

} // namespace

TORCH_LIBRARY(aten_overlay, m) {
  m.def(
      "causal_conv1d_update(Tensor input, Tensor(a!) state, Tensor weight, Tensor? bias=None, str? activation=None, *, "
      "Tensor? state_indices=None, Tensor? cache_seqlens=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.impl(
      "causal_conv1d_update",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(causal_conv1d_update_in_place)));
}

} // namespace at::native
