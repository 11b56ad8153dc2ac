// Registers the functions of an AdaptiveAvgPooling.mm that stands in the same library.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/ops/_adaptive_avg_pool2d_backward_native.h>
#include <ATen/ops/_adaptive_avg_pool2d_native.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_native.h>
#include <ATen/ops/_adaptive_avg_pool3d_native.h>
#include <ATen/ops/adaptive_avg_pool2d_native.h>
#include <ATen/ops/adaptive_avg_pool3d_backward_native.h>
#include <ATen/ops/adaptive_avg_pool3d_native.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("_adaptive_avg_pool2d", TORCH_FN(at::native::adaptive_avg_pool2d_mps));
  m.impl("adaptive_avg_pool2d.out", TORCH_FN(at::native::adaptive_avg_pool2d_out_mps));
  m.impl("_adaptive_avg_pool2d_backward", TORCH_FN(at::native::adaptive_avg_pool2d_backward_mps));
  m.impl("_adaptive_avg_pool3d", TORCH_FN(at::native::adaptive_avg_pool3d_mps));
  m.impl("adaptive_avg_pool3d.out", TORCH_FN(at::native::adaptive_avg_pool3d_out_mps));
  m.impl("_adaptive_avg_pool3d_backward", TORCH_FN(at::native::adaptive_avg_pool3d_backward_mps));
  m.impl("adaptive_avg_pool3d_backward.grad_input", TORCH_FN(at::native::adaptive_avg_pool3d_backward_out_mps));
}
