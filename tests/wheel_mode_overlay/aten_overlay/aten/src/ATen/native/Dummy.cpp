#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/Dummy.h>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <mutex>
#include <set>
#include <thread>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_dummy_scale_backward_native.h>
#include <ATen/ops/dummy_composite_native.h>
#include <ATen/ops/dummy_cube.h>
#include <ATen/ops/dummy_cube_native.h>
#include <ATen/ops/dummy_scale_native.h>
#include <ATen/ops/dummy_threads_native.h>
#include <ATen/ops/dummy_update_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#endif

namespace at::meta {

TORCH_META_FUNC(dummy_cube)(const Tensor& self) {
  build_unary_op(maybe_get_output(), self);
}

} // namespace at::meta

namespace at::native {

DEFINE_DISPATCH(dummy_cube_stub);

TORCH_IMPL_FUNC(dummy_cube_out)(const Tensor& self, const Tensor& out) {
  dummy_cube_stub(device_type(), *this);
}

Tensor dummy_scale_cpu(const Tensor& input, const std::optional<Tensor>& bias, double alpha) {
  TORCH_CHECK(input.dim() > 0, "dummy_scale: input must have a dimension");
  const auto scaled = input * alpha;
  return bias.has_value() && bias->defined() ? scaled + *bias : scaled;
}

Tensor dummy_scale_meta(const Tensor& input, const std::optional<Tensor>& bias, double alpha) {
  return at::empty_like(input);
}

std::tuple<Tensor, Tensor> dummy_scale_backward(
    const Tensor& grad_output,
    const std::optional<Tensor>& bias,
    double alpha,
    std::array<bool, 2> output_mask) {
  return {
      output_mask[0] ? grad_output * alpha : Tensor(),
      output_mask[1] ? grad_output.sum_to_size(bias->sizes()) : Tensor()};
}

Tensor dummy_update_cpu(const Tensor& input, Tensor& state) {
  state.add_(input);
  return state * 2;
}

Tensor dummy_update_meta(const Tensor& input, Tensor& state) {
  return at::empty_like(state);
}

Tensor dummy_composite(const Tensor& self) {
  return at::dummy_cube(self) + 1;
}

Tensor dummy_threads(const Tensor& self, int64_t n) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  return at::scalar_tensor(static_cast<int64_t>(threads.size()), kLong);
}

} // namespace at::native
