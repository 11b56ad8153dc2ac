// The generated vmap plumbing calls this. libtorch_cpu has it, but does not export it.
#pragma once
#include <ATen/functorch/PlumbingHelper.h>

namespace at::functorch {

__attribute__((visibility("hidden"))) inline void vmap_check_escaped(
    const std::optional<DynamicLayer>& layer, const char* what) {
  TORCH_CHECK(
      layer.has_value(),
      "Either your tensor may have escaped from inside a function being vmapped and this is a user error "
      "(see https://pytorch.org/functorch/stable/ux_limitations.html), or there is an internal functorch error in `",
      what, "` Please file an issue if it looks like the latter");
}

} // namespace at::functorch
