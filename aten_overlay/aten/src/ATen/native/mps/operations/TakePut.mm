// take and put_ on Metal.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Context.h>
#include <ATen/native/IndexKernel.h>
#include <ATen/native/mps/OperationUtils.h>
#include <ATen/native/mps/kernels/TakePut.h>
#include <fmt/format.h>

#include <algorithm>

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
#include <ATen/native/mps/TakePut_metallib.h>
#endif

namespace {

// The iterator's two operands beside self: take's output or put_'s source, and the index.
constexpr unsigned kValue = 0, kIndex = 1;
constexpr unsigned kMaxDims = c10::metal::max_ndim;
constexpr size_t kWord = 4;

size_t offset_in_bytes(const TensorBase& tensor) {
  return tensor.storage_offset() * tensor.element_size();
}

const char* type_of_size(const TensorBase& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return "uchar";
    case 2:
      return "ushort";
    case 4:
      return "uint";
    case 8:
      return "ulong";
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "take and put_ are not implemented for ", tensor.scalar_type(), " on MPS");
  }
}

// Neighbouring dimensions that are as one in memory are made one: a contiguous self has no more than one.
void set_self(TakePutParams& params, const TensorBase& self) {
  params.self_numel = self.numel();
  params.self_offset = static_cast<int64_t>(offset_in_bytes(self) % kWord / self.element_size());
  uint32_t ndim = 0;
  for (auto d = self.dim() - 1; d >= 0; --d) {
    const auto size = self.size(d), stride = self.stride(d);
    if (size == 1) {
      continue;
    }
    if (ndim > 0 && stride == params.self_strides[ndim - 1] * params.self_sizes[ndim - 1]) {
      params.self_sizes[ndim - 1] *= size;
      continue;
    }
    TORCH_CHECK(ndim < kMaxDims, "expected self to have at most ", kMaxDims, " dimensions on MPS");
    params.self_sizes[ndim] = size;
    params.self_strides[ndim] = stride;
    ++ndim;
  }
  params.self_ndim = ndim;
}

void set_iterated(TakePutParams& params, const TensorIteratorBase& iter) {
  const auto ndim = static_cast<size_t>(iter.ndim());
  TORCH_CHECK(ndim <= kMaxDims, "expected index to have at most ", kMaxDims, " dimensions on MPS");
  std::copy_n(iter.shape().begin(), ndim, params.sizes.begin());
  std::copy_n(iter.strides(kValue).begin(), ndim, params.value_strides.begin());
  std::copy_n(iter.strides(kIndex).begin(), ndim, params.index_strides.begin());
  params.ndim = static_cast<uint32_t>(ndim);
}

void bind_operand(id<MTLComputeCommandEncoder> encoder, TensorIteratorBase& iter, unsigned operand, unsigned buffer) {
  [encoder setBuffer:getMTLBufferStorage(iter.tensor_base(operand))
              offset:iter_tensor_offset(iter, operand)
             atIndex:buffer];
}

// `bind` sets the kernel's arguments.
template <typename Bind>
void encode(const std::string& kernel, int64_t threads, const Bind& bind) {
  auto* stream = getCurrentMPSStream();
  dispatch_sync_with_rethrow(stream->queue(), ^() {
    @autoreleasepool {
      const auto encoder = stream->commandEncoder();
      const auto pipeline = lib.getPipelineStateForFunc(kernel);
      getMPSProfiler().beginProfileKernel(pipeline, kernel, /*isGraph=*/false);
      [encoder setComputePipelineState:pipeline];
      bind(encoder, stream->getErrorBuffer());
      mtl_dispatch1DJob(encoder, pipeline, threads);
      getMPSProfiler().endProfileKernel(pipeline);
    }
  });
}

// Calls `run(iter, params)` for parts whose offsets fit into 32 bits. Self's need not.
template <typename Run>
void for_each_part(TensorIterator& iter, const TensorBase& self, const Run& run) {
  TakePutParams params{};
  set_self(params, self);
  for (auto&& part : iter.with_32bit_indexing()) {
    set_iterated(params, part);
    run(part, params);
  }
}

void take_kernel_mps(TensorIterator& iter, const TensorBase& self) {
  const auto kernel = fmt::format("take_{}", type_of_size(self));
  for_each_part(iter, self, [&](TensorIterator& part, const TakePutParams& params) {
    encode(kernel, part.numel(), [&](id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> errors) {
      bind_operand(encoder, part, kValue, 0);
      bind_operand(encoder, part, kIndex, 1);
      mtl_setArgs<2>(encoder, self, params, errors);
    });
  });
}

// The values of a place are added in their own order, whatever order threads run in.
void put_accumulate_sorted(TensorIterator& part, const TensorBase& self, const TakePutParams& params) {
  const auto positions = at::empty({part.numel()}, TensorOptions(self.device()).dtype(kLong));
  encode("put_positions", part.numel(), [&](id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> errors) {
    mtl_setArgs(encoder, positions);
    bind_operand(encoder, part, kIndex, 1);
    mtl_setArgs<2>(encoder, params, errors);
  });
  const auto sorted = positions.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto kernel = fmt::format("put_accumulate_sorted_{}", scalarToMetalTypeString(self));
  encode(kernel, part.numel(), [&](id<MTLComputeCommandEncoder> encoder, id<MTLBuffer>) {
    mtl_setArgs(encoder, self);
    bind_operand(encoder, part, kValue, 1);
    mtl_setArgs<2>(
        encoder, std::get<0>(sorted), std::get<1>(sorted), params, static_cast<uint32_t>(part.numel()));
  });
}

void put_kernel_mps(TensorIterator& iter, const TensorBase& self, const bool accumulate) {
  const auto type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !accumulate || (type != kComplexHalf && !isBarebonesUnsignedType(type)),
      "put_ with accumulate=True is not implemented for ", type, " on MPS");
  const bool rounds = isFloatingType(type) || isComplexType(type);
  const bool deterministic = accumulate && rounds && globalContext().deterministicAlgorithms();
  const auto kernel = accumulate ? fmt::format("put_accumulate_{}", scalarToMetalTypeString(self))
                                 : fmt::format("put_{}", type_of_size(self));
  for_each_part(iter, self, [&](TensorIterator& part, const TakePutParams& params) {
    if (deterministic) {
      put_accumulate_sorted(part, self, params);
      return;
    }
    encode(kernel, part.numel(), [&](id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> errors) {
      const auto offset = offset_in_bytes(self);
      [encoder setBuffer:getMTLBufferStorage(self) offset:accumulate ? offset - offset % kWord : offset atIndex:0];
      bind_operand(encoder, part, kValue, 1);
      bind_operand(encoder, part, kIndex, 2);
      mtl_setArgs<3>(encoder, params, errors);
    });
  });
}

} // namespace

REGISTER_DISPATCH(take_stub, &take_kernel_mps)
REGISTER_DISPATCH(put_stub, &put_kernel_mps)

} // namespace at::native
