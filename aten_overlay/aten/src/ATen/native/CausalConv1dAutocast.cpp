// causal_conv1d under autocast: in the lower precision, as other convolutions. The update step
// takes the dtype of its state, which changes in place and is never cast.
#include <ATen/autocast_mode.h>

#include <ATen/ops/_causal_conv1d_with_state.h>
#include <ATen/ops/causal_conv1d.h>
#include <ATen/ops/causal_conv1d_update.h>
#include <torch/library.h>

namespace at::native {

namespace {

using autocast::cached_cast;

template <c10::DeviceType kDevice>
Tensor causal_conv1d_autocast(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  c10::impl::ExcludeDispatchKeyGuard guard(autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const auto dtype = autocast::get_autocast_dtype(kDevice);
  return at::causal_conv1d(
      cached_cast(dtype, input, kDevice), cached_cast(dtype, weight, kDevice), cached_cast(dtype, bias, kDevice),
      activation, cached_cast(dtype, initial_state, kDevice), seq_idx, cu_seqlens);
}

template <c10::DeviceType kDevice>
std::tuple<Tensor, Tensor> causal_conv1d_with_state_autocast(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  c10::impl::ExcludeDispatchKeyGuard guard(autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const auto dtype = autocast::get_autocast_dtype(kDevice);
  return at::_causal_conv1d_with_state(
      cached_cast(dtype, input, kDevice), cached_cast(dtype, weight, kDevice), cached_cast(dtype, bias, kDevice),
      activation, cached_cast(dtype, initial_state, kDevice), seq_idx, cu_seqlens);
}

template <c10::DeviceType kDevice>
Tensor causal_conv1d_update_autocast(
    const Tensor& input,
    Tensor& state,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& state_indices,
    const std::optional<Tensor>& cache_seqlens) {
  c10::impl::ExcludeDispatchKeyGuard guard(autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const auto dtype = state.scalar_type();
  return at::causal_conv1d_update(
      cached_cast(dtype, input, kDevice), state, cached_cast(dtype, weight, kDevice), cached_cast(dtype, bias, kDevice),
      activation, state_indices, cache_seqlens);
}

template <c10::DeviceType kDevice>
void register_autocast(torch::Library& m) {
  m.impl("causal_conv1d", &causal_conv1d_autocast<kDevice>);
  m.impl("_causal_conv1d_with_state", &causal_conv1d_with_state_autocast<kDevice>);
  m.impl("causal_conv1d_update", &causal_conv1d_update_autocast<kDevice>);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
  register_autocast<c10::DeviceType::CPU>(m);
}

TORCH_LIBRARY_IMPL(aten, Autocast, m) {
  register_autocast<c10::DeviceType::CUDA>(m);
}

TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
  register_autocast<c10::DeviceType::MPS>(m);
}

} // namespace at::native
