#include <ATen/functorch/BatchRulesHelper.h>

namespace at::functorch {

namespace {

std::tuple<Tensor, std::optional<int64_t>> dummy_cube_batch_rule(const Tensor& self, std::optional<int64_t> self_bdim) {
  return {at::dummy_cube(self), self_bdim};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  VMAP_SUPPORT(dummy_cube, dummy_cube_batch_rule);
}

} // namespace at::functorch
