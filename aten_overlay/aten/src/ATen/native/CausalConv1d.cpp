#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/CausalConv1d.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_causal_conv1d_backward_native.h>
#include <ATen/ops/_causal_conv1d_with_state_native.h>
#include <ATen/ops/causal_conv1d_native.h>
#include <ATen/ops/causal_conv1d_update_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#endif

namespace at::native {

DEFINE_DISPATCH(causal_conv1d_stub);
DEFINE_DISPATCH(causal_conv1d_backward_stub);
DEFINE_DISPATCH(causal_conv1d_update_stub);

namespace {

// The checks of one operator, whose messages name it, the value and the rule.
struct Check {
  const char* op;
  const Tensor& input;

  void input_is(std::initializer_list<int64_t> dims, const char* expected) const {
    TORCH_CHECK_VALUE(
        std::find(dims.begin(), dims.end(), input.dim()) != dims.end(),
        op, "(): expected input to be ", expected, ", but got ", input.sym_sizes());
    const auto type = input.scalar_type();
    TORCH_CHECK_TYPE(
        type == kFloat || type == kDouble || type == kHalf || type == kBFloat16,
        op, "(): expected input to be float32, float64, float16 or bfloat16, but got ", type);
  }

  void device(const char* name, const Tensor& tensor) const {
    TORCH_CHECK(
        tensor.device() == input.device(),
        op, "(): expected ", name, " on the input's device, ", input.device(), ", but got ", tensor.device());
  }

  void dtype(const char* name, const Tensor& tensor, ScalarType expected, const char* like) const {
    TORCH_CHECK_TYPE(
        tensor.scalar_type() == expected,
        op, "(): expected ", name, " to have the dtype of ", like, ", ", expected, ", but got ", tensor.scalar_type());
  }

  void shape(const char* name, const Tensor& tensor, SymIntArrayRef expected, const char* dims) const {
    TORCH_CHECK_VALUE(
        tensor.sym_sizes() == expected,
        op, "(): expected ", name, " to be ", dims, " = ", expected, ", but got ", tensor.sym_sizes());
  }

  void index(const char* name, const Tensor& tensor) const {
    device(name, tensor);
    TORCH_CHECK_TYPE(
        tensor.scalar_type() == kInt || tensor.scalar_type() == kLong,
        op, "(): expected ", name, " to be int32 or int64, but got ", tensor.scalar_type());
  }

  bool silu(std::optional<c10::string_view> activation) const {
    TORCH_CHECK_VALUE(
        !activation || *activation == "silu" || *activation == "swish",
        op, "(): expected activation to be None, 'silu' or 'swish', but got '", *activation, "'");
    return activation.has_value();
  }

  // [D, W] of a weight [D, W] or [D, 1, W].
  Tensor weight_matrix(const Tensor& weight, const SymInt& channels) const {
    device("weight", weight);
    TORCH_CHECK_TYPE(
        weight.scalar_type() == input.scalar_type() ||
            (weight.scalar_type() == kFloat && isReducedFloatingType(input.scalar_type())),
        op, "(): expected weight to have the input's dtype, ", input.scalar_type(),
        ", or to be float32 beside a float16 or bfloat16 input, but got ", weight.scalar_type());
    const auto sizes = weight.sym_sizes();
    const bool matrix = sizes.size() == 2;
    TORCH_CHECK_VALUE(
        (matrix || (sizes.size() == 3 && sizes[1] == 1)) && sizes[0] == channels,
        op, "(): expected weight to be [D, W] or [D, 1, W] with the input's D = ", channels, ", but got ", sizes);
    TORCH_CHECK_VALUE(
        sizes.back() >= 1, op, "(): expected weight to have at least one tap (W >= 1), but got ", sizes);
    return matrix ? weight : weight.squeeze(1);
  }

  void bias_vector(const Tensor& bias, const Tensor& weight, const SymInt& channels) const {
    device("bias", bias);
    dtype("bias", bias, weight.scalar_type(), "weight");
    shape("bias", bias, {channels}, "[D]");
  }
};

Tensor optional_tensor(const std::optional<Tensor>& tensor) {
  return tensor.value_or(Tensor());
}

Tensor unsqueeze_batch(const Tensor& tensor, bool unbatched) {
  return unbatched && tensor.defined() ? tensor.unsqueeze(0) : tensor;
}

// A contiguous tensor for a gradient, or an undefined one.
Tensor empty_gradient(const Tensor& like, bool wanted) {
  return wanted && like.defined() ? at::empty_symint(like.sym_sizes(), like.options()) : Tensor();
}

// [N, D, W-1]
SymDimVector state_sizes(const CausalConv1dArgs& args) {
  return {
      args.cu_seqlens.defined() ? args.cu_seqlens.sym_size(0) - 1 : args.input.sym_size(0),
      args.input.sym_size(1),
      args.weight.sym_size(1) - 1};
}

// As the caller sees it: without the batch dimension beside an unbatched input.
Tensor empty_final_state(const CausalConv1dArgs& args, bool unbatched) {
  const auto sizes = state_sizes(args);
  return at::empty_symint(
      unbatched && !args.cu_seqlens.defined() ? SymIntArrayRef(sizes).slice(1) : SymIntArrayRef(sizes),
      args.input.options());
}

// The tensors of a call that may have a gradient, as the caller gave them.
struct Differentiable {
  const Tensor& input;
  const Tensor& weight;
  const std::optional<Tensor>& bias;
  const std::optional<Tensor>& initial_state;
};

std::tuple<Tensor, Tensor, Tensor, Tensor> empty_gradients(const Differentiable& of, std::array<bool, 4> mask) {
  return {
      mask[0] ? causal_conv1d_empty_output(of.input) : Tensor(),
      empty_gradient(of.weight, mask[1]),
      empty_gradient(optional_tensor(of.bias), mask[2]),
      empty_gradient(optional_tensor(of.initial_state), mask[3])};
}

// grad_output and grad_final_state, checked and in the normal form.
std::pair<Tensor, Tensor> gradient_args(
    const CausalConv1dArgs& args,
    const Tensor& input,
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_final_state) {
  const Check check{"causal_conv1d", input};
  const bool unbatched = input.dim() == 2;
  auto output = optional_tensor(grad_output);
  auto state = optional_tensor(grad_final_state);
  if (output.defined()) {
    check.device("grad_output", output);
    check.dtype("grad_output", output, input.scalar_type(), "input");
    check.shape("grad_output", output, input.sym_sizes(), "the output's shape");
    output = unsqueeze_batch(output, unbatched);
  }
  if (state.defined()) {
    check.device("grad_final_state", state);
    check.dtype("grad_final_state", state, input.scalar_type(), "input");
    state = unsqueeze_batch(state, unbatched && !args.cu_seqlens.defined());
    check.shape("grad_final_state", state, state_sizes(args), "[N, D, W-1]");
  }
  return {output, state};
}

} // namespace

CausalConv1dArgs causal_conv1d_args(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  const Check check{"causal_conv1d", input};
  check.input_is({2, 3}, "[B, D, T] or [D, T]");
  const bool unbatched = input.dim() == 2;

  CausalConv1dArgs args;
  args.silu = check.silu(activation);
  args.input = unsqueeze_batch(input, unbatched);
  const auto batch = args.input.sym_size(0);
  const auto channels = args.input.sym_size(1);
  const auto time = args.input.sym_size(2);

  args.weight = check.weight_matrix(weight, channels);
  if (args.bias = optional_tensor(bias); args.bias.defined()) {
    check.bias_vector(args.bias, weight, channels);
  }
  args.seq_idx = optional_tensor(seq_idx);
  args.cu_seqlens = optional_tensor(cu_seqlens);
  TORCH_CHECK_VALUE(
      !(args.seq_idx.defined() && args.cu_seqlens.defined()),
      "causal_conv1d(): seq_idx and cu_seqlens both divide the input into sequences; give one of them");
  if (args.seq_idx.defined()) {
    check.index("seq_idx", args.seq_idx);
    args.seq_idx = unsqueeze_batch(args.seq_idx, unbatched);
    check.shape("seq_idx", args.seq_idx, {batch, time}, "[B, T]");
  }
  if (args.cu_seqlens.defined()) {
    check.index("cu_seqlens", args.cu_seqlens);
    TORCH_CHECK_VALUE(
        args.cu_seqlens.dim() == 1 && args.cu_seqlens.sym_size(0) >= 1,
        "causal_conv1d(): expected cu_seqlens to be [N+1] with N >= 0 segments, but got ", args.cu_seqlens.sym_sizes());
    TORCH_CHECK_VALUE(
        batch == 1, "causal_conv1d(): cu_seqlens divides one row into segments; expected B = 1, but got B = ", batch);
  }
  if (args.initial_state = optional_tensor(initial_state); args.initial_state.defined()) {
    check.device("initial_state", args.initial_state);
    check.dtype("initial_state", args.initial_state, input.scalar_type(), "input");
    args.initial_state = unsqueeze_batch(args.initial_state, unbatched && !args.cu_seqlens.defined());
    check.shape(
        "initial_state", args.initial_state, state_sizes(args),
        args.cu_seqlens.defined() ? "[N, D, W-1]" : "[B, D, W-1]");
  }
  return args;
}

CausalConv1dUpdateArgs causal_conv1d_update_args(
    const Tensor& input,
    const Tensor& state,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& state_indices,
    const std::optional<Tensor>& cache_seqlens) {
  const Check check{"causal_conv1d_update", input};
  check.input_is({2, 3}, "[B, D] or [B, D, T]");

  CausalConv1dUpdateArgs args;
  args.silu = check.silu(activation);
  args.input = input.dim() == 2 ? input.unsqueeze(2) : input;
  const auto batch = input.sym_size(0);
  const auto channels = input.sym_size(1);

  args.weight = check.weight_matrix(weight, channels);
  if (args.bias = optional_tensor(bias); args.bias.defined()) {
    check.bias_vector(args.bias, weight, channels);
  }
  check.device("state", state);
  check.dtype("state", state, input.scalar_type(), "input");
  TORCH_CHECK_VALUE(
      state.dim() == 3 && state.sym_size(1) == channels,
      "causal_conv1d_update(): expected state to be [S, D, L] with the input's D = ", channels, ", but got ",
      state.sym_sizes());
  TORCH_CHECK_VALUE(
      state.sym_size(2) >= args.weight.sym_size(1) - 1,
      "causal_conv1d_update(): expected state to hold at least the W-1 = ", args.weight.sym_size(1) - 1,
      " inputs before, but got L = ", state.sym_size(2));
  args.state = state;
  if (args.state_indices = optional_tensor(state_indices); args.state_indices.defined()) {
    check.index("state_indices", args.state_indices);
    check.shape("state_indices", args.state_indices, {batch}, "[B]");
  } else {
    TORCH_CHECK_VALUE(
        state.sym_size(0) == batch,
        "causal_conv1d_update(): expected a row of state for each of the B = ", batch, " inputs, but got S = ",
        state.sym_size(0), "; pass state_indices to choose rows");
  }
  if (args.cache_seqlens = optional_tensor(cache_seqlens); args.cache_seqlens.defined()) {
    check.index("cache_seqlens", args.cache_seqlens);
    check.shape("cache_seqlens", args.cache_seqlens, {batch}, "[B]");
  }
  return args;
}

Tensor causal_conv1d_empty_output(const Tensor& input) {
  if (input.is_non_overlapping_and_dense()) {
    return at::empty_like(input);
  }
  SymDimVector sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  if (input.sym_stride(-2) == 1) {
    std::swap(sizes.end()[-1], sizes.end()[-2]);
    return at::empty_symint(sizes, input.options()).transpose(-1, -2);
  }
  return at::empty_symint(sizes, input.options());
}

Tensor causal_conv1d(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  const auto args = causal_conv1d_args(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  auto output = causal_conv1d_empty_output(input);
  causal_conv1d_stub(input.device().type(), args, unsqueeze_batch(output, input.dim() == 2), Tensor());
  return output;
}

Tensor causal_conv1d_meta(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  causal_conv1d_args(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  return causal_conv1d_empty_output(input);
}

std::tuple<Tensor, Tensor> causal_conv1d_with_state(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  const auto args = causal_conv1d_args(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  const bool unbatched = input.dim() == 2;
  auto output = causal_conv1d_empty_output(input);
  auto final_state = empty_final_state(args, unbatched);
  causal_conv1d_stub(
      input.device().type(),
      args,
      unsqueeze_batch(output, unbatched),
      unsqueeze_batch(final_state, unbatched && !args.cu_seqlens.defined()));
  return {output, final_state};
}

std::tuple<Tensor, Tensor> causal_conv1d_with_state_meta(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  const auto args = causal_conv1d_args(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  return {causal_conv1d_empty_output(input), empty_final_state(args, input.dim() == 2)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_final_state,
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens,
    std::array<bool, 4> output_mask) {
  const auto args = causal_conv1d_args(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  const auto [grad_out, grad_state] = gradient_args(args, input, grad_output, grad_final_state);
  auto grads = empty_gradients({input, weight, bias, initial_state}, output_mask);

  const bool unbatched = input.dim() == 2;
  const auto& [grad_input, grad_weight, grad_bias, grad_initial_state] = grads;
  CausalConv1dGrads wanted;
  wanted.input = unsqueeze_batch(grad_input, unbatched);
  wanted.weight = grad_weight.defined() && grad_weight.dim() == 3 ? grad_weight.squeeze(1) : grad_weight;
  wanted.bias = grad_bias;
  wanted.initial_state = unsqueeze_batch(grad_initial_state, unbatched && !args.cu_seqlens.defined());
  causal_conv1d_backward_stub(input.device().type(), args, grad_out, grad_state, wanted);
  return grads;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward_meta(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_final_state,
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens,
    std::array<bool, 4> output_mask) {
  const auto args = causal_conv1d_args(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  gradient_args(args, input, grad_output, grad_final_state);
  return empty_gradients({input, weight, bias, initial_state}, output_mask);
}

Tensor causal_conv1d_update(
    const Tensor& input,
    Tensor& state,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& state_indices,
    const std::optional<Tensor>& cache_seqlens) {
  const auto args = causal_conv1d_update_args(input, state, weight, bias, activation, state_indices, cache_seqlens);
  at::assert_no_internal_overlap(state);
  at::assert_no_partial_overlap(state, input);
  auto output = causal_conv1d_empty_output(input);
  causal_conv1d_update_stub(input.device().type(), args, input.dim() == 2 ? output.unsqueeze(2) : output);
  return output;
}

Tensor causal_conv1d_update_meta(
    const Tensor& input,
    Tensor& state,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& state_indices,
    const std::optional<Tensor>& cache_seqlens) {
  causal_conv1d_update_args(input, state, weight, bias, activation, state_indices, cache_seqlens);
  return causal_conv1d_empty_output(input);
}

} // namespace at::native
