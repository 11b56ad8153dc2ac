// Host code with the mistakes that people make, each refused with words of its message.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/mps/OperationUtils.h>

using namespace at::native::mps;

static auto& lib = MetalShaderLibrary::getBundledLibrary();

void mistakes(id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> buffer, const at::Tensor& tensor) {
  const auto pipeline = lib.getPipelineStateForFunc("kernel");
  [encoder setComputePipeline:pipeline]; // error: '-setComputePipeline:' not found
  [encoder setBuffer:buffer atIndex:0]; // error: '-setBuffer:atIndex:' not found
  [encoder setBuffer:tensor offset:0 atIndex:0]; // error: no viable conversion
  [encoder setComputePipelineState:buffer]; // error: type 'id<MTLComputePipelineState>' with an lvalue of type 'id<MTLBuffer>'
  [encoder setBuffer:getMTLBufferStorage(tensor) offset:&tensor atIndex:0]; // error: cannot initialize a parameter
  [encoder dispatchThreads:tensor.numel() threadsPerThreadgroup:MTLSizeMake(1, 1, 1)]; // error: no viable conversion
  [encoder dispatchThreads:MTLSizeMake(1, 1) threadsPerThreadgroup:MTLSizeMake(1, 1, 1)]; // error: no matching function
  [buffer mutableContents]; // error: '-mutableContents' not found
  lib.getPipelineStateForFunc(@"kernel"); // error: no matching member function
  mtl_setBytes(encoder, tensor, 0); // error: no matching function
  mtl_dispatch1DJob(encoder, buffer, 1); // error: no matching function
  pipeline.threadExecutionWidth = 32; // error: readonly
}
