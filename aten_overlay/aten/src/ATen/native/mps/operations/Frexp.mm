// frexp on Metal.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/UnaryOps.h>
#include <ATen/native/mps/OperationUtils.h>
#include <fmt/format.h>

namespace at::native {

using namespace mps;

#ifndef PYTORCH_JIT_COMPILE_SHADERS
static auto& lib = MetalShaderLibrary::getBundledLibrary();
#else
#include <ATen/native/mps/Frexp_metallib.h>
#endif

// The helpers of MetalShaderLibrary are for one output.
static void frexp_kernel_mps(TensorIteratorBase& iter) {
  if (iter.numel() == 0) {
    return;
  }
  if (!iter.can_use_32bit_indexing()) {
    for (auto&& sub_iter : iter.with_32bit_indexing()) {
      frexp_kernel_mps(sub_iter);
    }
    return;
  }
  const bool dense = iter.is_contiguous();
  const auto kernel = fmt::format("frexp_{}_{}", dense ? "dense" : "strided", scalarToMetalTypeString(iter.dtype(0)));
  auto* stream = getCurrentMPSStream();
  dispatch_sync_with_rethrow(stream->queue(), ^() {
    @autoreleasepool {
      const auto encoder = stream->commandEncoder();
      const auto pipeline = lib.getPipelineStateForFunc(kernel);
      getMPSProfiler().beginProfileKernel(pipeline, kernel, /*isGraph=*/false);
      [encoder setComputePipelineState:pipeline];
      bind_iter_tensors(encoder, iter);
      if (!dense) {
        mtl_setArgs<3>(
            encoder, iter.shape(), iter.strides(0), iter.strides(1), iter.strides(2),
            static_cast<uint32_t>(iter.ndim()));
      }
      mtl_dispatch1DJob(encoder, pipeline, iter.numel());
      getMPSProfiler().endProfileKernel(pipeline);
    }
  });
}

REGISTER_DISPATCH(frexp_stub, &frexp_kernel_mps)

} // namespace at::native
