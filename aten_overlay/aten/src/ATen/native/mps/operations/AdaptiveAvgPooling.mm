// Adaptive average pooling on Metal, in two and three dimensions.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/mps/OperationUtils.h>
#include <ATen/native/mps/kernels/AdaptiveAvgPooling.h>
#include <fmt/format.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_adaptive_avg_pool2d_backward_native.h>
#include <ATen/ops/_adaptive_avg_pool2d_native.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_native.h>
#include <ATen/ops/_adaptive_avg_pool3d_native.h>
#include <ATen/ops/adaptive_avg_pool2d_native.h>
#include <ATen/ops/adaptive_avg_pool3d_backward_native.h>
#include <ATen/ops/adaptive_avg_pool3d_native.h>
#include <ATen/ops/empty.h>
#endif

namespace at::native {

using namespace mps;

#ifndef PYTORCH_JIT_COMPILE_SHADERS
static auto& lib = MetalShaderLibrary::getBundledLibrary();
#else
#include <ATen/native/mps/AdaptiveAvgPooling_metallib.h>
#endif

namespace {

// `spatial`: how many dimensions are pooled. What a tensor lacks of [N, C, T, H, W] has size 1.
AdaptiveAvgPoolTensor geometry(const Tensor& tensor, int64_t spatial) {
  const bool has_time = spatial == 3, has_batch = tensor.dim() == spatial + 2;
  return {
      has_time ? tensor.size(-3) : 1,
      tensor.size(-2),
      tensor.size(-1),
      has_batch ? tensor.stride(0) : 0,
      tensor.stride(-spatial - 1),
      has_time ? tensor.stride(-3) : 0,
      tensor.stride(-2),
      tensor.stride(-1)};
}

uint32_t threads(int64_t size) {
  return c10::checked_convert<uint32_t>(size, "uint32_t");
}

// Runs a kernel for each element of `written`: the output, or the gradient of the input.
void run(
    const char* name,
    const Tensor& written,
    const Tensor& read,
    const AdaptiveAvgPoolTensor& grid,
    AdaptiveAvgPoolParams params,
    int64_t spatial) {
  if (written.numel() == 0) {
    return;
  }
  params.channels = written.size(-spatial - 1);
  params.channels_last = written.stride(-spatial - 1) == 1 && written.stride(-1) != 1;
  const auto batch = written.dim() == spatial + 2 ? written.size(0) : 1;
  const auto rows = grid.time * grid.height;
  const auto size = params.channels_last
      ? MTLSizeMake(threads(params.channels), threads(rows * grid.width), threads(batch))
      : MTLSizeMake(threads(grid.width), threads(rows), threads(batch * params.channels));
  const auto kernel = fmt::format("{}_{}", name, scalarToMetalTypeString(written));
  auto* stream = getCurrentMPSStream();
  dispatch_sync_with_rethrow(stream->queue(), ^() {
    @autoreleasepool {
      const auto encoder = stream->commandEncoder();
      const auto pipeline = lib.getPipelineStateForFunc(kernel);
      getMPSProfiler().beginProfileKernel(pipeline, kernel, /*isGraph=*/false);
      [encoder setComputePipelineState:pipeline];
      mtl_setArgs(encoder, written, read, params);
      [encoder dispatchThreads:size threadsPerThreadgroup:MTLSizeMake(16, 4, 4)];
      getMPSProfiler().endProfileKernel(pipeline);
    }
  });
}

void check_type(const Tensor& tensor, const Tensor& expected, const char* name, const char* argument) {
  TORCH_CHECK(
      tensor.scalar_type() == expected.scalar_type(),
      name, "(): expected dtype ", expected.scalar_type(), " for `", argument, "` but got dtype ",
      tensor.scalar_type());
}

void check_input(const Tensor& input, int64_t spatial, const char* name) {
  TORCH_CHECK(
      input.dim() == spatial + 1 || input.dim() == spatial + 2,
      name, "(): Expected ", spatial + 1, "D or ", spatial + 2, "D tensor, but got ", input.sizes());
  TORCH_CHECK_NOT_IMPLEMENTED(
      supportedFloatingType(input), '"', name, "\" not implemented for '", toString(input.scalar_type()), "'");
}

void check_not_empty(const Tensor& tensor, int64_t first, const char* name, const char* argument) {
  for (auto d = first; d < tensor.dim(); ++d) {
    TORCH_CHECK(
        tensor.size(d) > 0,
        name, "(): Expected ", argument, " to have non-zero size for non-batch dimensions, but ", argument,
        " has sizes ", tensor.sizes(), " with dimension ", d, " being empty");
  }
}

// Of a contiguous tensor where the CPU gives one: in three dimensions.
MemoryFormat memory_format(const Tensor& input, int64_t spatial) {
  return spatial == 2 ? input.suggest_memory_format() : MemoryFormat::Contiguous;
}

// A tensor of the right sizes keeps its strides.
void resize(Tensor& tensor, IntArrayRef sizes, MemoryFormat format) {
  if (tensor.sizes() != sizes) {
    tensor.resize_(sizes, format);
  }
}

void forward(const Tensor& input, IntArrayRef output_size, Tensor& output, const char* name) {
  const auto spatial = static_cast<int64_t>(output_size.size());
  check_input(input, spatial, name);
  check_not_empty(input, spatial == 2 ? input.dim() - spatial : 1, name, "input"); // as the CPU's
  check_type(output, input, name, "output");
  auto sizes = input.sizes().slice(0, input.dim() - spatial).vec();
  sizes.insert(sizes.end(), output_size.begin(), output_size.end());
  resize(output, sizes, input.dim() == spatial + 2 ? memory_format(input, spatial) : MemoryFormat::Contiguous);
  AdaptiveAvgPoolParams params{};
  params.input = geometry(input, spatial);
  params.output = geometry(output, spatial);
  run("adaptive_avg_pool", output, input, params.output, params, spatial);
}

void backward(const Tensor& grad_output, const Tensor& input, Tensor& grad_input, int64_t spatial, const char* name) {
  check_input(input, spatial, name);
  check_not_empty(grad_output, 1, name, "grad_output");
  check_type(grad_output, input, name, "grad_output");
  check_type(grad_input, input, name, "grad_input");
  const auto kept = input.dim() - spatial;
  TORCH_CHECK(
      grad_output.dim() == input.dim() && grad_output.sizes().slice(0, kept) == input.sizes().slice(0, kept),
      name, "(): Expected grad_output to have the batch and channels of input, but got ", grad_output.sizes(), " for ",
      input.sizes());
  resize(grad_input, input.sizes(), memory_format(input, spatial));
  AdaptiveAvgPoolParams params{};
  params.input = geometry(grad_input, spatial);
  params.output = geometry(grad_output, spatial);
  run("adaptive_avg_pool_backward", grad_input, grad_output, params.input, params, spatial);
}

} // namespace

Tensor& adaptive_avg_pool2d_out_mps(const Tensor& input, IntArrayRef output_size, Tensor& output) {
  TORCH_CHECK(output_size.size() == 2, "adaptive_avg_pool2d: output_size must be 2");
  forward(input, output_size, output, "adaptive_avg_pool2d");
  return output;
}

Tensor adaptive_avg_pool2d_mps(const Tensor& input, IntArrayRef output_size) {
  auto output = at::empty({0}, input.options());
  return adaptive_avg_pool2d_out_mps(input, output_size, output);
}

Tensor adaptive_avg_pool2d_backward_mps(const Tensor& grad_output, const Tensor& input) {
  auto grad_input = at::empty({0}, input.options());
  backward(grad_output, input, grad_input, 2, "adaptive_avg_pool2d_backward");
  return grad_input;
}

Tensor& adaptive_avg_pool3d_out_mps(const Tensor& input, IntArrayRef output_size, Tensor& output) {
  TORCH_CHECK(output_size.size() == 3, "adaptive_avg_pool3d: output_size must be 3");
  forward(input, output_size, output, "adaptive_avg_pool3d");
  return output;
}

Tensor adaptive_avg_pool3d_mps(const Tensor& input, IntArrayRef output_size) {
  auto output = at::empty({0}, input.options());
  return adaptive_avg_pool3d_out_mps(input, output_size, output);
}

Tensor& adaptive_avg_pool3d_backward_out_mps(const Tensor& grad_output, const Tensor& input, Tensor& grad_input) {
  backward(grad_output, input, grad_input, 3, "adaptive_avg_pool3d_backward");
  return grad_input;
}

Tensor adaptive_avg_pool3d_backward_mps(const Tensor& grad_output, const Tensor& input) {
  auto grad_input = at::empty({0}, input.options());
  return adaptive_avg_pool3d_backward_out_mps(grad_output, input, grad_input);
}

} // namespace at::native
