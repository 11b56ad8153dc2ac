// vmap over causal_conv1d: the mapped dimension is folded into the batch where the parameters are
// shared, and into the channels where they, or their gradients, are per example. Index tensors
// that are mapped themselves may need a call for each example.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>

#include <ATen/ops/_causal_conv1d_backward.h>
#include <ATen/ops/_causal_conv1d_with_state.h>
#include <ATen/ops/causal_conv1d.h>
#include <ATen/ops/causal_conv1d_update.h>
#include <ATen/ops/stack.h>
#include <c10/util/irange.h>
#include <torch/library.h>

namespace at::functorch {

namespace {

enum class Fold { Batch, Channels, Loop };

// An argument without its wrapper: the mapped dimension, if it has one, comes first. Undefined
// where the caller gave none.
struct Argument {
  Tensor value;
  bool mapped = false;

  bool defined() const {
    return value.defined();
  }

  int64_t logical_dim() const {
    return value.dim() - mapped;
  }

  // With the mapped dimension first, whether it was mapped or not.
  Tensor expanded(const SymInt& size) const {
    if (!defined() || mapped) {
      return value;
    }
    SymDimVector sizes{size};
    sizes.append(value.sym_sizes().begin(), value.sym_sizes().end());
    return value.unsqueeze(0).expand_symint(sizes);
  }

  Tensor example(int64_t i) const {
    return mapped ? value.select(0, i) : value;
  }
};

Argument unwrap(const std::optional<Tensor>& tensor, int64_t level) {
  if (!tensor || !tensor->defined()) {
    return {};
  }
  auto [value, dim] = unwrapTensorAtLevel(*tensor, level);
  return dim ? Argument{value.movedim(*dim, 0), true} : Argument{value, false};
}

std::optional<Tensor> optional(const Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

// The arguments that all operators share.
struct Call {
  Argument input, weight, bias, initial_state, seq_idx, cu_seqlens;
  SymInt size; // of the mapped dimension
  bool mapped = false; // whether there is one, at this level

  Call(
      int64_t level,
      const Tensor& input_,
      const Tensor& weight_,
      const std::optional<Tensor>& bias_,
      const std::optional<Tensor>& initial_state_,
      const std::optional<Tensor>& seq_idx_,
      const std::optional<Tensor>& cu_seqlens_)
      : input(unwrap(input_, level)),
        weight(unwrap(weight_, level)),
        bias(unwrap(bias_, level)),
        initial_state(unwrap(initial_state_, level)),
        seq_idx(unwrap(seq_idx_, level)),
        cu_seqlens(unwrap(cu_seqlens_, level)) {
    for (const auto* argument : {&input, &weight, &bias, &initial_state, &seq_idx, &cu_seqlens}) {
      map(*argument);
    }
  }

  void map(const Argument& argument) {
    if (argument.mapped) {
      size = argument.value.sym_size(0);
      mapped = true;
    }
  }

  bool batched() const {
    return input.logical_dim() == 3;
  }

  // What the folded dimensions are again afterwards. It is not their size over that of the mapped
  // dimension, which may be 0.
  SymInt batch() const {
    return input.value.sym_size(-3);
  }

  SymInt channels() const {
    return input.value.sym_size(-2);
  }

  // Of `parameters`: whether they, or their gradients, differ between the examples.
  Fold fold(bool parameters) const {
    if (cu_seqlens.mapped || (parameters && seq_idx.mapped)) {
      return Fold::Loop;
    }
    return parameters || cu_seqlens.defined() ? Fold::Channels : Fold::Batch;
  }

  bool parameters_mapped() const {
    return weight.mapped || bias.mapped;
  }
};

// [N, B, D, X] -> [N*B, D, X]; [N, D, X] as it is. Also for indices [N, B, T] and [N, T].
Tensor into_batch(const Argument& argument, const SymInt& size, bool batched) {
  const auto value = argument.expanded(size);
  return value.defined() && batched ? value.flatten(0, 1) : value;
}

Tensor out_of_batch(const Tensor& tensor, const Call& call) {
  if (!tensor.defined() || !call.batched()) {
    return tensor;
  }
  SymDimVector sizes{call.size, call.batch()};
  sizes.append(tensor.sym_sizes().begin() + 1, tensor.sym_sizes().end());
  return tensor.reshape_symint(sizes);
}

// [N, B, D, X] -> [B, N*D, X]; [N, D, ...] -> [N*D, ...]. The channels are at `channel` before.
Tensor into_channels(const Argument& argument, const SymInt& size, int64_t channel) {
  const auto value = argument.expanded(size);
  return value.defined() ? value.movedim(0, channel).flatten(channel, channel + 1) : value;
}

Tensor out_of_channels(const Tensor& tensor, const Call& call, int64_t channel) {
  if (!tensor.defined()) {
    return tensor;
  }
  SymDimVector sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
  sizes[channel] = call.channels();
  sizes.insert(sizes.begin() + channel, call.size);
  return tensor.reshape_symint(sizes).movedim(channel, 0);
}

// Calls `op` for each example and stacks what it returns, a fixed number of tensors.
template <size_t kResults, typename Op>
std::array<Tensor, kResults> loop(const SymInt& size, const Op& op) {
  const auto examples = size.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(
      examples > 0,
      "causal_conv1d(): vmap: there is no example to map over; a mapped dimension of size 0 is not supported where "
      "each example needs a call of its own (mapped indices, and causal_conv1d_update)");
  std::array<std::vector<Tensor>, kResults> results;
  for (const auto i : c10::irange(examples)) {
    const auto result = op(i);
    for (const auto r : c10::irange(kResults)) {
      results[r].push_back(result[r]);
    }
  }
  std::array<Tensor, kResults> stacked;
  for (const auto r : c10::irange(kResults)) {
    if (!results[r].empty() && results[r][0].defined()) {
      stacked[r] = at::stack(results[r]);
    }
  }
  return stacked;
}

Tensor wrap(const Tensor& tensor, int64_t level) {
  return tensor.defined() ? makeBatched(tensor, 0, level) : tensor;
}

// Both forward operators: `op` returns the output and, or, the final state.
template <size_t kResults, typename Op>
std::array<Tensor, kResults> forward(const Call& call, int64_t level, const Op& op) {
  const auto& [input, weight, bias, state, seq_idx, cu_seqlens, size, mapped] = call;
  const bool batched = call.batched();
  const auto channel = batched ? 1 : 0;
  const auto state_channel = batched || cu_seqlens.defined() ? 1 : 0;
  std::array<Tensor, kResults> results;
  switch (call.fold(call.parameters_mapped())) {
    case Fold::Batch:
      results = op(
          into_batch(input, size, batched), weight.value, optional(bias.value),
          optional(into_batch(state, size, batched)), optional(into_batch(seq_idx, size, batched)), std::nullopt);
      for (auto& result : results) {
        result = out_of_batch(result, call);
      }
      break;
    case Fold::Channels:
      results = op(
          into_channels(input, size, channel), into_channels(weight, size, 0), optional(into_channels(bias, size, 0)),
          optional(into_channels(state, size, state_channel)), optional(seq_idx.value), optional(cu_seqlens.value));
      for (const auto r : c10::irange(kResults)) {
        results[r] = out_of_channels(results[r], call, r == 0 ? channel : state_channel);
      }
      break;
    case Fold::Loop:
      results = loop<kResults>(size, [&](int64_t i) {
        return op(
            input.example(i), weight.example(i), optional(bias.example(i)), optional(state.example(i)),
            optional(seq_idx.example(i)), optional(cu_seqlens.example(i)));
      });
      break;
  }
  for (auto& result : results) {
    result = wrap(result, level);
  }
  return results;
}

int64_t current_level() {
  const auto layer = maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer.has_value());
  return layer->layerId();
}

Tensor causal_conv1d_batch_rule(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  c10::impl::ExcludeDispatchKeyGuard guard(DispatchKey::FuncTorchBatched);
  const auto level = current_level();
  const Call call(level, input, weight, bias, initial_state, seq_idx, cu_seqlens);
  if (!call.mapped) { // it is at another level
    return at::causal_conv1d(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  }
  return forward<1>(call, level, [&](const auto& x, const auto& w, const auto& b, const auto&... indices) {
    return std::array<Tensor, 1>{at::causal_conv1d(x, w, b, activation, indices...)};
  })[0];
}

std::tuple<Tensor, Tensor> causal_conv1d_with_state_batch_rule(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  c10::impl::ExcludeDispatchKeyGuard guard(DispatchKey::FuncTorchBatched);
  const auto level = current_level();
  const Call call(level, input, weight, bias, initial_state, seq_idx, cu_seqlens);
  if (!call.mapped) {
    return at::_causal_conv1d_with_state(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  }
  const auto [output, state] =
      forward<2>(call, level, [&](const auto& x, const auto& w, const auto& b, const auto&... indices) {
        const auto [out, final_state] = at::_causal_conv1d_with_state(x, w, b, activation, indices...);
        return std::array<Tensor, 2>{out, final_state};
      });
  return {output, state};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward_batch_rule(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_final_state,
    const Tensor& input_,
    const Tensor& weight_,
    const std::optional<Tensor>& bias_,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state_,
    const std::optional<Tensor>& seq_idx_,
    const std::optional<Tensor>& cu_seqlens_,
    std::array<bool, 4> output_mask) {
  c10::impl::ExcludeDispatchKeyGuard guard(DispatchKey::FuncTorchBatched);
  const auto level = current_level();
  Call call(level, input_, weight_, bias_, initial_state_, seq_idx_, cu_seqlens_);
  const auto grad = unwrap(grad_output, level);
  const auto grad_state = unwrap(grad_final_state, level);
  call.map(grad);
  call.map(grad_state);
  if (!call.mapped) {
    return at::_causal_conv1d_backward(
        grad_output, grad_final_state, input_, weight_, bias_, activation, initial_state_, seq_idx_, cu_seqlens_,
        output_mask);
  }
  const auto& [input, weight, bias, state, seq_idx, cu_seqlens, size, mapped] = call;
  const bool batched = call.batched();
  const auto channel = batched ? 1 : 0;
  const auto state_channel = batched || cu_seqlens.defined() ? 1 : 0;
  const auto op = [&](const auto&... args) {
    const auto [x, w, b, s] = at::_causal_conv1d_backward(args..., output_mask);
    return std::array<Tensor, 4>{x, w, b, s};
  };

  std::array<Tensor, 4> results;
  switch (call.fold(call.parameters_mapped() || output_mask[1] || output_mask[2])) {
    case Fold::Batch:
      results = op(
          optional(into_batch(grad, size, batched)), optional(into_batch(grad_state, size, batched)),
          into_batch(input, size, batched), weight.value, optional(bias.value), activation,
          optional(into_batch(state, size, batched)), optional(into_batch(seq_idx, size, batched)),
          std::optional<Tensor>());
      for (auto& result : results) {
        result = out_of_batch(result, call);
      }
      break;
    case Fold::Channels:
      results = op(
          optional(into_channels(grad, size, channel)), optional(into_channels(grad_state, size, state_channel)),
          into_channels(input, size, channel), into_channels(weight, size, 0), optional(into_channels(bias, size, 0)),
          activation, optional(into_channels(state, size, state_channel)), optional(seq_idx.value),
          optional(cu_seqlens.value));
      results = {
          out_of_channels(results[0], call, channel), out_of_channels(results[1], call, 0),
          out_of_channels(results[2], call, 0), out_of_channels(results[3], call, state_channel)};
      break;
    case Fold::Loop:
      results = loop<4>(size, [&](int64_t i) {
        return op(
            optional(grad.example(i)), optional(grad_state.example(i)), input.example(i), weight.example(i),
            optional(bias.example(i)), activation, optional(state.example(i)), optional(seq_idx.example(i)),
            optional(cu_seqlens.example(i)));
      });
      break;
  }
  return {wrap(results[0], level), wrap(results[1], level), wrap(results[2], level), wrap(results[3], level)};
}

// The state changes in place, so its mapped dimension cannot be folded into anything: one call
// for each example, on a view of its state.
Tensor causal_conv1d_update_batch_rule(
    const Tensor& input_,
    Tensor& state_,
    const Tensor& weight_,
    const std::optional<Tensor>& bias_,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& state_indices_,
    const std::optional<Tensor>& cache_seqlens_) {
  c10::impl::ExcludeDispatchKeyGuard guard(DispatchKey::FuncTorchBatched);
  const auto level = current_level();
  const auto input = unwrap(input_, level);
  const auto state = unwrap(state_, level);
  const auto weight = unwrap(weight_, level);
  const auto bias = unwrap(bias_, level);
  const auto state_indices = unwrap(state_indices_, level);
  const auto cache_seqlens = unwrap(cache_seqlens_, level);
  if (!(input.mapped || state.mapped || weight.mapped || bias.mapped || state_indices.mapped || cache_seqlens.mapped)) {
    return at::causal_conv1d_update(input_, state_, weight_, bias_, activation, state_indices_, cache_seqlens_);
  }
  TORCH_CHECK(
      state.mapped,
      "causal_conv1d_update(): vmap: state changes in place, so it must be mapped wherever another argument is; "
      "map it too, or pass state_indices instead of mapping");
  const auto results = loop<1>(state.value.sym_size(0), [&](int64_t i) {
    auto own = state.example(i);
    return std::array<Tensor, 1>{at::causal_conv1d_update(
        input.example(i), own, weight.example(i), optional(bias.example(i)), activation,
        optional(state_indices.example(i)), optional(cache_seqlens.example(i)))};
  });
  return wrap(results[0], level);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl("causal_conv1d", &causal_conv1d_batch_rule);
  m.impl("_causal_conv1d_with_state", &causal_conv1d_with_state_batch_rule);
  m.impl("_causal_conv1d_backward", &causal_conv1d_backward_batch_rule);
  m.impl("causal_conv1d_update", &causal_conv1d_update_batch_rule);
}

} // namespace at::functorch
