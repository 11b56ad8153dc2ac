#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/CausalConv1d.h>

#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_causal_conv1d_backward_native.h>
#include <ATen/ops/_causal_conv1d_with_state_native.h>
#include <ATen/ops/causal_conv1d_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#endif

namespace at::native {

DEFINE_DISPATCH(causal_conv1d_stub);
DEFINE_DISPATCH(causal_conv1d_backward_stub);

namespace {

void check_floating(const Tensor& input) {
  const auto dtype = input.scalar_type();
  TORCH_CHECK_TYPE(
      dtype == kFloat || dtype == kDouble || dtype == kHalf || dtype == kBFloat16,
      "causal_conv1d(): expected input to be float32, float64, float16 or bfloat16, but got ", dtype);
}

void check_dtype(const char* name, const Tensor& tensor, ScalarType expected, const char* like) {
  TORCH_CHECK_TYPE(
      tensor.scalar_type() == expected,
      "causal_conv1d(): expected ", name, " to have the dtype of ", like, ", ", expected, ", but got ", tensor.scalar_type());
}

void check_index_dtype(const char* name, const Tensor& tensor) {
  TORCH_CHECK_TYPE(
      tensor.scalar_type() == kInt || tensor.scalar_type() == kLong,
      "causal_conv1d(): expected ", name, " to be int32 or int64, but got ", tensor.scalar_type());
}

void check_device(const char* name, const Tensor& tensor, const Tensor& input) {
  TORCH_CHECK(
      tensor.device() == input.device(),
      "causal_conv1d(): expected ", name, " on the input's device, ", input.device(), ", but got ", tensor.device());
}

void check_shape(const char* name, const Tensor& tensor, SymIntArrayRef expected, const char* dims) {
  TORCH_CHECK_VALUE(
      tensor.sym_sizes() == expected,
      "causal_conv1d(): expected ", name, " to be ", dims, " = ", expected, ", but got ", tensor.sym_sizes());
}

bool parse_activation(std::optional<c10::string_view> activation) {
  TORCH_CHECK_VALUE(
      !activation || *activation == "silu" || *activation == "swish",
      "causal_conv1d(): expected activation to be None, 'silu' or 'swish', but got '", *activation, "'");
  return activation.has_value();
}

// [D, W] of a weight [D, W] or [D, 1, W].
Tensor weight_matrix(const Tensor& weight, const SymInt& channels) {
  const auto sizes = weight.sym_sizes();
  const bool matrix = sizes.size() == 2;
  TORCH_CHECK_VALUE(
      (matrix || (sizes.size() == 3 && sizes[1] == 1)) && sizes[0] == channels,
      "causal_conv1d(): expected weight to be [D, W] or [D, 1, W] with the input's D = ", channels, ", but got ", sizes);
  TORCH_CHECK_VALUE(
      sizes.back() >= 1, "causal_conv1d(): expected weight to have at least one tap (W >= 1), but got ", sizes);
  return matrix ? weight : weight.squeeze(1);
}

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

Tensor empty_final_state(const CausalConv1dArgs& args, bool unbatched) {
  const auto channels = args.input.sym_size(1);
  const auto width = args.weight.sym_size(1) - 1;
  if (unbatched && !args.cu_seqlens.defined()) {
    return at::empty_symint({channels, width}, args.input.options());
  }
  const auto states = args.cu_seqlens.defined() ? args.cu_seqlens.sym_size(0) - 1 : args.input.sym_size(0);
  return at::empty_symint({states, channels, width}, args.input.options());
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
  const bool unbatched = input.dim() == 2;
  auto output = optional_tensor(grad_output);
  auto state = optional_tensor(grad_final_state);
  if (output.defined()) {
    check_device("grad_output", output, input);
    check_dtype("grad_output", output, input.scalar_type(), "input");
    check_shape("grad_output", output, input.sym_sizes(), "the output's shape");
    output = unsqueeze_batch(output, unbatched);
  }
  if (state.defined()) {
    check_device("grad_final_state", state, input);
    check_dtype("grad_final_state", state, input.scalar_type(), "input");
    state = unsqueeze_batch(state, unbatched && !args.cu_seqlens.defined());
    const auto states = args.cu_seqlens.defined() ? args.cu_seqlens.sym_size(0) - 1 : args.input.sym_size(0);
    check_shape(
        "grad_final_state", state, {states, args.input.sym_size(1), args.weight.sym_size(1) - 1}, "[N, D, W-1]");
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
  TORCH_CHECK_VALUE(
      input.dim() == 2 || input.dim() == 3,
      "causal_conv1d(): expected input to be [B, D, T] or [D, T], but got ", input.sym_sizes());
  check_floating(input);
  const bool unbatched = input.dim() == 2;

  CausalConv1dArgs args;
  args.silu = parse_activation(activation);
  args.input = unsqueeze_batch(input, unbatched);
  const auto batch = args.input.sym_size(0);
  const auto channels = args.input.sym_size(1);
  const auto time = args.input.sym_size(2);

  check_device("weight", weight, input);
  TORCH_CHECK_TYPE(
      weight.scalar_type() == input.scalar_type() ||
          (weight.scalar_type() == kFloat && isReducedFloatingType(input.scalar_type())),
      "causal_conv1d(): expected weight to have the input's dtype, ", input.scalar_type(),
      ", or to be float32 beside a float16 or bfloat16 input, but got ", weight.scalar_type());
  args.weight = weight_matrix(weight, channels);
  const auto width = args.weight.sym_size(1);

  if (args.bias = optional_tensor(bias); args.bias.defined()) {
    check_device("bias", args.bias, input);
    check_dtype("bias", args.bias, weight.scalar_type(), "weight");
    check_shape("bias", args.bias, {channels}, "[D]");
  }
  TORCH_CHECK_VALUE(
      !(seq_idx && seq_idx->defined() && cu_seqlens && cu_seqlens->defined()),
      "causal_conv1d(): seq_idx and cu_seqlens both divide the input into sequences; give one of them");
  if (args.seq_idx = optional_tensor(seq_idx); args.seq_idx.defined()) {
    check_device("seq_idx", args.seq_idx, input);
    check_index_dtype("seq_idx", args.seq_idx);
    args.seq_idx = unsqueeze_batch(args.seq_idx, unbatched);
    check_shape("seq_idx", args.seq_idx, {batch, time}, "[B, T]");
  }
  auto states = batch;
  if (args.cu_seqlens = optional_tensor(cu_seqlens); args.cu_seqlens.defined()) {
    check_device("cu_seqlens", args.cu_seqlens, input);
    check_index_dtype("cu_seqlens", args.cu_seqlens);
    TORCH_CHECK_VALUE(
        args.cu_seqlens.dim() == 1 && args.cu_seqlens.sym_size(0) >= 1,
        "causal_conv1d(): expected cu_seqlens to be [N+1] with N >= 0 segments, but got ", args.cu_seqlens.sym_sizes());
    TORCH_CHECK_VALUE(
        batch == 1, "causal_conv1d(): cu_seqlens divides one row into segments; expected B = 1, but got B = ", batch);
    states = args.cu_seqlens.sym_size(0) - 1;
  }
  if (args.initial_state = optional_tensor(initial_state); args.initial_state.defined()) {
    check_device("initial_state", args.initial_state, input);
    check_dtype("initial_state", args.initial_state, input.scalar_type(), "input");
    args.initial_state = unsqueeze_batch(args.initial_state, unbatched && !args.cu_seqlens.defined());
    check_shape(
        "initial_state", args.initial_state, {states, channels, width - 1},
        args.cu_seqlens.defined() ? "[N, D, W-1]" : "[B, D, W-1]");
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

Tensor causal_conv1d_cpu(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens) {
  const auto args = causal_conv1d_args(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  auto output = causal_conv1d_empty_output(input);
  causal_conv1d_stub(kCPU, args, unsqueeze_batch(output, input.dim() == 2), Tensor());
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

std::tuple<Tensor, Tensor> causal_conv1d_with_state_cpu(
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
      kCPU,
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

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward_cpu(
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
  causal_conv1d_backward_stub(kCPU, args, grad_out, grad_state, wanted);
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

} // namespace at::native
