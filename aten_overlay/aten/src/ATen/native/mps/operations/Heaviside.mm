// heaviside on Metal.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/BinaryOps.h>
#include <ATen/native/mps/OperationUtils.h>

namespace at::native {

#ifndef PYTORCH_JIT_COMPILE_SHADERS
static auto& lib = mps::MetalShaderLibrary::getBundledLibrary();
#else
#include <ATen/native/mps/Heaviside_metallib.h>
#endif

static void heaviside_kernel_mps(TensorIteratorBase& iter) {
  lib.exec_binary_kernel(iter, "heaviside");
}

REGISTER_DISPATCH(heaviside_stub, &heaviside_kernel_mps)

} // namespace at::native
