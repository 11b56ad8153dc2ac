// The second derivatives of causal_conv1d, composed of the operator itself.
//
// With z the pre-activation, y = act(z), and a dot for the derivative along given directions of
// the arguments, z is linear in the input (with its state), and affine in the weight and bias:
//   zdot = conv(input_dot, weight) + conv(input, weight_dot) + bias_dot
// and the backward is  g = grad_output * act'(z);  grad_input = conv^T(g, weight), and so on.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/CausalConv1d.h>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_causal_conv1d_backward.h>
#include <ATen/ops/_causal_conv1d_backward_jvp_native.h>
#include <ATen/ops/_causal_conv1d_double_backward_native.h>
#include <ATen/ops/_causal_conv1d_with_state.h>
#include <ATen/ops/causal_conv1d.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>
#endif

namespace at::native {

namespace {

// Directions of, or gradients with respect to, the arguments; each may be undefined (zero).
struct Directions {
  Tensor input;
  Tensor weight;
  Tensor bias;
  Tensor initial_state;
};

// A sum in which undefined terms are zero.
Tensor add(const Tensor& a, const Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

Tensor multiply(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() ? a * b : Tensor();
}

// One call in the arithmetic type, so that nothing in between is rounded to half or bfloat16.
class Call {
 public:
  Call(
      const Tensor& input,
      const Tensor& weight,
      const std::optional<Tensor>& bias,
      std::optional<c10::string_view> activation,
      const std::optional<Tensor>& initial_state,
      const std::optional<Tensor>& seq_idx,
      const std::optional<Tensor>& cu_seqlens)
      : dtype_(toOpMathType(input.scalar_type())),
        input_(input.to(dtype_)),
        weight_(weight.to(dtype_)),
        bias_(widen(bias)),
        initial_state_(widen(initial_state)),
        seq_idx_(seq_idx),
        cu_seqlens_(cu_seqlens),
        activated_(activation.has_value()) {
    if (activated_) {
      z_ = at::causal_conv1d(input_, weight_, bias_, std::nullopt, initial_state_, seq_idx_, cu_seqlens_);
      sigmoid_ = at::sigmoid(z_);
    }
  }

  Tensor widen(const std::optional<Tensor>& tensor) const {
    return tensor && tensor->defined() ? tensor->to(dtype_) : Tensor();
  }

  Directions widen(
      const std::optional<Tensor>& input,
      const std::optional<Tensor>& weight,
      const std::optional<Tensor>& bias,
      const std::optional<Tensor>& initial_state) const {
    return {widen(input), widen(weight), widen(bias), widen(initial_state)};
  }

  // zdot, and the derivative of the final state.
  std::pair<Tensor, Tensor> tangent(const Directions& d) const {
    Tensor z, state;
    if (d.input.defined() || d.initial_state.defined()) {
      const auto input = d.input.defined() ? d.input : at::zeros_like(input_);
      std::tie(z, state) = at::_causal_conv1d_with_state(
          input, weight_, {}, std::nullopt, d.initial_state, seq_idx_, cu_seqlens_);
    }
    if (d.weight.defined() || d.bias.defined()) {
      const auto weight = d.weight.defined() ? d.weight : at::zeros_like(weight_);
      z = add(z, at::causal_conv1d(input_, weight, d.bias, std::nullopt, initial_state_, seq_idx_, cu_seqlens_));
    }
    return {z, state};
  }

  // act'(z) * v and act''(z) * v; SiLU has z s, s (1 + z (1 - s)), s (1 - s) (2 + z (1 - 2 s)).
  Tensor times_first_derivative(const Tensor& v) const {
    return activated_ && v.defined() ? v * (sigmoid_ * (1 + z_ * (1 - sigmoid_))) : v;
  }

  Tensor times_second_derivative(const Tensor& v) const {
    return activated_ && v.defined() ? v * (sigmoid_ * (1 - sigmoid_) * (2 + z_ * (1 - 2 * sigmoid_))) : Tensor();
  }

  // The gradients that a gradient `g` of conv(input, weight) has; `state` is the final state's.
  Directions adjoint(
      const Tensor& g,
      const Tensor& state,
      const Tensor& input,
      const Tensor& weight,
      const Tensor& initial_state,
      std::array<bool, 4> mask) const {
    mask[3] = mask[3] && initial_state.defined();
    if (!(g.defined() || state.defined()) || std::none_of(mask.begin(), mask.end(), [](bool wanted) { return wanted; })) {
      return {};
    }
    // Any bias serves: without an activation its value is not used.
    const auto bias = mask[2] ? at::zeros_like(weight_.flatten(1).select(1, 0)) : Tensor();
    const auto [grad_input, grad_weight, grad_bias, grad_state] = at::_causal_conv1d_backward(
        g, state, input, weight, bias, std::nullopt, initial_state, seq_idx_, cu_seqlens_, mask);
    return {grad_input, grad_weight, grad_bias, grad_state};
  }

  const Tensor& input() const {
    return input_;
  }
  const Tensor& weight() const {
    return weight_;
  }
  const Tensor& initial_state() const {
    return initial_state_;
  }

 private:
  ScalarType dtype_;
  Tensor input_, weight_, bias_, initial_state_;
  std::optional<Tensor> seq_idx_, cu_seqlens_;
  bool activated_;
  Tensor z_, sigmoid_;
};

Tensor cast_like(const Tensor& value, const std::optional<Tensor>& like) {
  return value.defined() && like && like->defined() ? value.to(like->scalar_type()) : value;
}

} // namespace

// With L = sum over the backward's results of <direction, result> = <g, zdot> + <grad_final_state,
// state_dot>: its derivatives with respect to the backward's arguments.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> _causal_conv1d_double_backward(
    const std::optional<Tensor>& direction_input,
    const std::optional<Tensor>& direction_weight,
    const std::optional<Tensor>& direction_bias,
    const std::optional<Tensor>& direction_initial_state,
    const std::optional<Tensor>& grad_output,
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens,
    std::array<bool, 6> output_mask) {
  const Call call(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  const auto directions = call.widen(direction_input, direction_weight, direction_bias, direction_initial_state);
  const auto [z_dot, state_dot] = call.tangent(directions);
  const auto grad_out = call.widen(grad_output);

  // <g, zdot> through zdot's own dependence on the arguments, then through act'(z)'s.
  const auto g = call.times_first_derivative(grad_out);
  const auto through_input = directions.input.defined() || directions.initial_state.defined()
      ? call.adjoint(
            g, {}, directions.input.defined() ? directions.input : at::zeros_like(call.input()), call.weight(),
            directions.initial_state, {false, output_mask[3], false, false})
      : Directions{};
  const auto through_weight = directions.weight.defined()
      ? call.adjoint(
            g, {}, call.input(), directions.weight, call.initial_state(), {output_mask[2], false, false, output_mask[5]})
      : Directions{};
  const auto h = call.times_second_derivative(multiply(grad_out, z_dot));
  const auto through_z = call.adjoint(
      h, {}, call.input(), call.weight(), call.initial_state(),
      {output_mask[2], output_mask[3], output_mask[4], output_mask[5]});

  return {
      output_mask[0] ? cast_like(call.times_first_derivative(z_dot), input) : Tensor(),
      output_mask[1] ? cast_like(state_dot, input) : Tensor(),
      cast_like(add(through_weight.input, through_z.input), input),
      cast_like(add(through_input.weight, through_z.weight), weight),
      cast_like(through_z.bias, bias),
      cast_like(add(through_weight.initial_state, through_z.initial_state), initial_state)};
}

// The derivative of the backward's results along directions of all its arguments.
std::tuple<Tensor, Tensor, Tensor, Tensor> _causal_conv1d_backward_jvp(
    const std::optional<Tensor>& direction_grad_output,
    const std::optional<Tensor>& direction_grad_final_state,
    const std::optional<Tensor>& direction_input,
    const std::optional<Tensor>& direction_weight,
    const std::optional<Tensor>& direction_bias,
    const std::optional<Tensor>& direction_initial_state,
    const std::optional<Tensor>& grad_output,
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    std::optional<c10::string_view> activation,
    const std::optional<Tensor>& initial_state,
    const std::optional<Tensor>& seq_idx,
    const std::optional<Tensor>& cu_seqlens,
    std::array<bool, 4> output_mask) {
  const Call call(input, weight, bias, activation, initial_state, seq_idx, cu_seqlens);
  const auto directions = call.widen(direction_input, direction_weight, direction_bias, direction_initial_state);
  const auto [z_dot, state_dot] = call.tangent(directions);
  const auto grad_out = call.widen(grad_output);

  const auto g = call.times_first_derivative(grad_out);
  const auto g_dot = add(
      call.times_first_derivative(call.widen(direction_grad_output)),
      call.times_second_derivative(multiply(grad_out, z_dot)));
  const auto along_g = call.adjoint(
      g_dot, call.widen(direction_grad_final_state), call.input(), call.weight(), call.initial_state(), output_mask);
  const auto along_weight = directions.weight.defined()
      ? call.adjoint(
            g, {}, call.input(), directions.weight, call.initial_state(), {output_mask[0], false, false, output_mask[3]})
      : Directions{};
  const auto along_input = directions.input.defined() || directions.initial_state.defined()
      ? call.adjoint(
            g, {}, directions.input.defined() ? directions.input : at::zeros_like(call.input()), call.weight(),
            directions.initial_state, {false, output_mask[1], false, false})
      : Directions{};

  return {
      cast_like(add(along_g.input, along_weight.input), input),
      cast_like(add(along_g.weight, along_input.weight), weight),
      cast_like(along_g.bias, bias),
      cast_like(add(along_g.initial_state, along_weight.initial_state), initial_state)};
}

} // namespace at::native
