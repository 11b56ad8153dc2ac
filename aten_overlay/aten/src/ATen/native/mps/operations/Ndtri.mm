// special.ndtri on Metal.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/UnaryOps.h>
#include <ATen/native/mps/OperationUtils.h>

namespace at::native {

#ifndef PYTORCH_JIT_COMPILE_SHADERS
static auto& lib = mps::MetalShaderLibrary::getBundledLibrary();
#else
#include <ATen/native/mps/Ndtri_metallib.h>
#endif

static void ndtri_kernel_mps(TensorIteratorBase& iter) {
  lib.exec_unary_kernel(iter, "ndtri");
}

REGISTER_DISPATCH(special_ndtri_stub, &ndtri_kernel_mps)

} // namespace at::native
