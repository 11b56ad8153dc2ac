// Host code of causal_conv1d on Metal.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/CausalConv1d.h>

#include <ATen/ceil_div.h>
#include <ATen/native/mps/OperationUtils.h>
#include <ATen/native/mps/kernels/CausalConv1d.h>
#include <fmt/format.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

namespace at::native {

using namespace mps;

#ifndef PYTORCH_JIT_COMPILE_SHADERS
static auto& lib = MetalShaderLibrary::getBundledLibrary();
#else
#include <ATen/native/mps/CausalConv1d_metallib.h>
#endif

namespace {

// Absent tensors are bound as null.
std::optional<Tensor> given(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

// Of dimension `dim`, or 0 where there is none to go along.
int64_t stride(const Tensor& tensor, int64_t dim) {
  return tensor.defined() ? tensor.stride(dim) : 0;
}

CausalConv1dStrides strides(const Tensor& tensor) {
  return {stride(tensor, 0), stride(tensor, 1), stride(tensor, 2)};
}

bool is_long(const Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == kLong;
}

template <typename... Args>
void encode(
    id<MTLComputeCommandEncoder> encoder,
    const std::string& kernel,
    MTLSize threads,
    MTLSize group,
    const Args&... args) {
  if (threads.width == 0 || threads.height == 0 || threads.depth == 0) {
    return;
  }
  const auto pipeline = lib.getPipelineStateForFunc(kernel);
  // A kernel that takes many registers runs in smaller groups on some GPUs.
  const auto group_threads = group.width * group.height * group.depth;
  TORCH_CHECK(
      group_threads <= pipeline.maxTotalThreadsPerThreadgroup,
      kernel, " runs in threadgroups of ", group_threads, " threads, and this device takes ",
      pipeline.maxTotalThreadsPerThreadgroup);
  getMPSProfiler().beginProfileKernel(pipeline, kernel, /*isGraph=*/false);
  [encoder setComputePipelineState:pipeline];
  mtl_setArgs(encoder, args...);
  [encoder dispatchThreads:threads threadsPerThreadgroup:group];
  getMPSProfiler().endProfileKernel(pipeline);
}

// A call of causal_conv1d or of its backward, whose kernels share their parameters and grids.
class Call {
 public:
  explicit Call(const CausalConv1dArgs& args) : args_(args), type_(scalarToMetalTypeString(args.input)) {
    params.input = strides(args.input);
    params.initial_state = strides(args.initial_state);
    params.weight_channel = args.weight.stride(0);
    params.weight_tap = args.weight.stride(1);
    params.bias_channel = stride(args.bias, 0);
    params.seq_idx_row = stride(args.seq_idx, 0);
    params.seq_idx_time = stride(args.seq_idx, 1);
    params.cu_seqlens_stride = stride(args.cu_seqlens, 0);
    params.rows = args.input.size(0);
    params.channels = args.input.size(1);
    params.time = args.input.size(2);
    params.width = args.weight.size(1);
    params.sequences = args.cu_seqlens.defined() ? args.cu_seqlens.size(0) - 1 : params.rows;
    params.silu = args.silu;
    params.wide_parameters = args.weight.scalar_type() == kFloat;
    params.wide_indices = is_long(args.seq_idx) || is_long(args.cu_seqlens);
    params.bias_given = args.bias.defined();
    params.initial_state_given = args.initial_state.defined();
    params.seq_idx_given = args.seq_idx.defined();
    params.cu_seqlens_given = args.cu_seqlens.defined();
    params.time_contiguous = args.input.stride(2) == 1;
  }

  CausalConv1dParams params{};

  void forward(const Tensor& output, const Tensor& final_state) {
    params.output = strides(output);
    params.final_state = strides(final_state);
    const auto last = empty_last(final_state);
    auto* stream = getCurrentMPSStream();
    dispatch_sync_with_rethrow(stream->queue(), ^() {
      @autoreleasepool {
        const auto encoder = stream->commandEncoder();
        if (args_.cu_seqlens.defined()) {
          const auto bounds = static_cast<NSUInteger>(args_.cu_seqlens.size(0));
          encode(
              encoder, "causal_conv1d_check_cu_seqlens", MTLSizeMake(bounds, 1, 1), MTLSizeMake(64, 1, 1),
              args_.cu_seqlens, params, stream->getErrorBuffer());
        }
        if (output.defined()) {
          encode(
              encoder, kernel("forward"), positions(), positions_group(),
              output, args_.input, args_.weight, given(args_.bias), given(args_.initial_state), given(args_.seq_idx),
              given(args_.cu_seqlens), params);
        }
        if (final_state.defined()) {
          encode_last(encoder, last);
          encode(
              encoder, kernel("final_state"), places(), places_group(),
              final_state, args_.input, given(args_.initial_state), given(args_.seq_idx), given(args_.cu_seqlens),
              given(last), params);
        }
      }
    });
  }

  void backward(const Tensor& grad_output, const Tensor& grad_final_state, const CausalConv1dGrads& grads) {
    params.output = strides(grad_output);
    params.final_state = strides(grad_final_state);
    params.grad_input = strides(grads.input);
    params.grad_initial_state = strides(grads.initial_state);
    params.grad_output_given = grad_output.defined();
    params.grad_final_state_given = grad_final_state.defined();
    const auto last = empty_last(grad_final_state);
    const std::array<bool, 2> wanted{grads.weight.defined(), grads.bias.defined()};
    const int64_t stretches = params.rows * at::ceil_div<int64_t>(params.time, kCausalConv1dStretch);
    Tensor partials;
    if (wanted[0] || wanted[1]) {
      partials = at::empty({stretches, params.channels, params.width + 1}, args_.input.options().dtype(kFloat));
    }
    auto* stream = getCurrentMPSStream();
    dispatch_sync_with_rethrow(stream->queue(), ^() {
      @autoreleasepool {
        const auto encoder = stream->commandEncoder();
        encode_last(encoder, last);
        const auto encode_state_grad = [&](const char* name, const Tensor& grad, MTLSize threads, MTLSize group) {
          encode(
              encoder, kernel(name), threads, group,
              grad, given(grad_output), given(grad_final_state), args_.input, args_.weight, given(args_.bias),
              given(args_.initial_state), given(args_.seq_idx), given(args_.cu_seqlens), given(last), params);
        };
        if (grads.input.defined()) {
          encode_state_grad("backward_input", grads.input, positions(), positions_group());
        }
        if (grads.initial_state.defined()) {
          encode_state_grad("backward_initial_state", grads.initial_state, places(), places_group());
        }
        if (partials.defined()) {
          constexpr NSUInteger group = kCausalConv1dLanes * kCausalConv1dChannels;
          const auto channel_groups = at::ceil_div<NSUInteger>(params.channels, kCausalConv1dChannels);
          encode(
              encoder, kernel("backward_partials"), MTLSizeMake(stretches * group, channel_groups, 1),
              MTLSizeMake(group, 1, 1),
              partials, given(grad_output), args_.input, args_.weight, given(args_.bias), given(args_.initial_state),
              given(args_.seq_idx), given(args_.cu_seqlens), params);
          encode(
              encoder, kernel("backward_parameters"), MTLSizeMake(params.width + 1, params.channels, 1),
              MTLSizeMake(4, 32, 1),
              given(grads.weight), given(grads.bias), partials, params, stretches, wanted);
        }
      }
    });
  }

 private:
  std::string kernel(const char* name) const {
    return fmt::format("causal_conv1d_{}_{}", name, type_);
  }

  // Neighbouring threads go along the dimension that is contiguous.
  MTLSize positions() const {
    const auto blocks = at::ceil_div<NSUInteger>(params.time, kCausalConv1dPositions);
    return params.time_contiguous ? MTLSizeMake(blocks, params.channels, params.rows)
                                  : MTLSizeMake(params.channels, blocks, params.rows);
  }

  MTLSize positions_group() const {
    return params.time_contiguous ? MTLSizeMake(8, 4, 1) : MTLSizeMake(32, 2, 1);
  }

  // Of the states.
  MTLSize places() const {
    return MTLSizeMake(params.width - 1, params.channels, params.sequences);
  }

  static MTLSize places_group() {
    return MTLSizeMake(4, 8, 1);
  }

  // Where a row of seq_idx ends matters to its final state alone.
  Tensor empty_last(const Tensor& final_state) const {
    return final_state.defined() && args_.seq_idx.defined()
        ? at::empty({params.rows}, args_.input.options().dtype(kLong))
        : Tensor();
  }

  void encode_last(id<MTLComputeCommandEncoder> encoder, const Tensor& last) const {
    if (last.defined()) {
      encode(
          encoder, "causal_conv1d_last", MTLSizeMake(kCausalConv1dLanes, params.rows, 1),
          MTLSizeMake(kCausalConv1dLanes, 1, 1),
          last, args_.seq_idx, params);
    }
  }

  const CausalConv1dArgs& args_;
  std::string type_;
};

void causal_conv1d_kernel_mps(const CausalConv1dArgs& args, const Tensor& output, const Tensor& final_state) {
  Call(args).forward(output, final_state);
}

void causal_conv1d_backward_kernel_mps(
    const CausalConv1dArgs& args,
    const Tensor& grad_output,
    const Tensor& grad_final_state,
    const CausalConv1dGrads& grads) {
  Call(args).backward(grad_output, grad_final_state, grads);
}

void causal_conv1d_update_kernel_mps(const CausalConv1dUpdateArgs& args, const Tensor& output) {
  CausalConv1dUpdateParams params{};
  params.input = strides(args.input);
  params.state = strides(args.state);
  params.output = strides(output);
  params.weight_channel = args.weight.stride(0);
  params.weight_tap = args.weight.stride(1);
  params.bias_channel = stride(args.bias, 0);
  params.state_indices_stride = stride(args.state_indices, 0);
  params.cache_seqlens_stride = stride(args.cache_seqlens, 0);
  params.channels = args.input.size(1);
  params.time = args.input.size(2);
  params.width = args.weight.size(1);
  params.states = args.state.size(0);
  params.places = args.state.size(2);
  params.silu = args.silu;
  params.wide_parameters = args.weight.scalar_type() == kFloat;
  params.wide_state_indices = is_long(args.state_indices);
  params.wide_cache_seqlens = is_long(args.cache_seqlens);
  params.bias_given = args.bias.defined();
  params.state_indices_given = args.state_indices.defined();
  params.cache_seqlens_given = args.cache_seqlens.defined();
  auto* stream = getCurrentMPSStream();
  dispatch_sync_with_rethrow(stream->queue(), ^() {
    @autoreleasepool {
      encode(
          stream->commandEncoder(), fmt::format("causal_conv1d_update_{}", scalarToMetalTypeString(args.input)),
          MTLSizeMake(args.input.size(1), args.input.size(0), 1), MTLSizeMake(32, 1, 1),
          output, args.state, args.input, args.weight, given(args.bias), given(args.state_indices),
          given(args.cache_seqlens), params, stream->getErrorBuffer());
    }
  });
}

} // namespace

REGISTER_DISPATCH(causal_conv1d_stub, &causal_conv1d_kernel_mps)
REGISTER_DISPATCH(causal_conv1d_backward_stub, &causal_conv1d_backward_kernel_mps)
REGISTER_DISPATCH(causal_conv1d_update_stub, &causal_conv1d_update_kernel_mps)

} // namespace at::native
