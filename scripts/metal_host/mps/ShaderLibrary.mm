// MetalShaderLibrary, which only a PyTorch for macOS has: finding kernels, and running the pointwise ones that
// c10/metal/indexing.h registers, by the layout and the dtypes of an iterator's tensors.
#include "commands.h"

#include <ATen/ceil_div.h>
#include <ATen/native/mps/OperationUtils.h>
#include <c10/metal/common.h>

namespace at::native::mps {

namespace {

using Encoder = id<MTLComputeCommandEncoder>;
using Pipeline = id<MTLComputePipelineState>;

// From so many elements on a thread does ILP_PER_THREAD of them, in operators that do not say otherwise.
constexpr uint32_t kDenseIlp = 1 << 18;
// Runs that are shorter do not pay for kernels that go along them.
constexpr int64_t kShortestRun = 16;

enum class Layout { Dense, InnerContiguous, Strided };

bool has_runs(const TensorIteratorBase& iter) {
  return iter.ndim() >= 2 && iter.has_contiguous_first_dim() && iter.shape()[0] >= kShortestRun;
}

Layout layout_of(const TensorIteratorBase& iter) {
  return iter.is_contiguous() ? Layout::Dense : has_runs(iter) ? Layout::InnerContiguous : Layout::Strided;
}

uint32_t type_of(const TensorBase& tensor) {
  return static_cast<uint32_t>(tensor.scalar_type());
}

uint32_t size_of(const TensorBase& tensor) {
  return static_cast<uint32_t>(tensor.element_size());
}

NSUInteger tiles(int64_t elements) {
  return at::ceil_div<int64_t>(elements, c10::metal::ILP_PER_THREAD);
}

// Binds what comes after an iterator's tensors, index by index.
class Arguments {
 public:
  Arguments(Encoder encoder, unsigned first) : encoder_(encoder), index_(first) {}

  template <typename T>
  Arguments& add(const T& value) {
    mtl_setBytes(encoder_, value, index_++);
    return *this;
  }

  Arguments& add(const std::optional<MPSScalar>& value) {
    return value ? add(*value) : *this;
  }

  // Of an iterator without dimensions there are no sizes to bind.
  Arguments& add(IntArrayRef values) {
    if (!values.empty()) {
      mtl_setBytes(encoder_, values, index_);
    }
    ++index_;
    return *this;
  }

  // The sizes and the strides of these operands, in bytes, from a dimension on.
  Arguments& add_geometry(const TensorIteratorBase& iter, std::initializer_list<int> operands, size_t from = 0) {
    add(iter.shape().slice(from));
    for (const int operand : operands) {
      add(IntArrayRef(iter.strides(operand)).slice(from));
    }
    return *this;
  }

 private:
  Encoder encoder_;
  unsigned index_;
};

// Encodes one kernel on an iterator's tensors; `encode` binds the rest and dispatches.
template <typename Encode>
void launch(MetalShaderLibrary& library, TensorIteratorBase& iter, const std::string& kernel, const Encode& encode) {
  auto* stream = getCurrentMPSStream();
  dispatch_sync_with_rethrow(stream->queue(), ^() {
    @autoreleasepool {
      const auto pipeline = library.getPipelineStateForFunc(kernel);
      const auto encoder = stream->commandEncoder();
      [encoder setComputePipelineState:pipeline];
      bind_iter_tensors(encoder, iter);
      encode(encoder, pipeline);
    }
  });
}

// A grid with the innermost dimension along x: `width` threads of it for each element of the others.
void dispatch_rows(Encoder encoder, Pipeline pipeline, const TensorIteratorBase& iter, NSUInteger width) {
  mtl_dispatch2DJob(encoder, pipeline, width, static_cast<NSUInteger>(iter.numel() / iter.shape()[0]));
}

std::array<uint32_t, 2> outer_and_run(const TensorIteratorBase& iter) {
  return {static_cast<uint32_t>(iter.ndim() - 1), static_cast<uint32_t>(iter.shape()[0])};
}

// 0-dimensional tensors of the CPU reach the kernel as float.
ScalarType bound_type(const TensorBase& tensor) {
  if (tensor.dim() != 0) {
    return tensor.scalar_type();
  }
  switch (tensor.scalar_type()) {
    case kDouble:
      return kFloat;
    case kComplexDouble:
      return kComplexFloat;
    default:
      return tensor.scalar_type();
  }
}

Tensor as_bound(const Tensor& tensor) {
  const auto type = bound_type(tensor);
  return type == tensor.scalar_type() ? tensor : tensor.to(type);
}

} // namespace

// ---- Finding kernels -----------------------------------------------------------------------

MetalShaderLibrary::~MetalShaderLibrary() = default;

// There is one library, of all kernels that were loaded.
MetalShaderLibrary& MetalShaderLibrary::getBundledLibrary() {
  static auto* bundled = new MetalShaderLibrary("");
  return *bundled;
}

MTLLibrary_t MetalShaderLibrary::getLibrary() {
  return nil;
}

MTLLibrary_t MetalShaderLibrary::getLibrary(const std::initializer_list<std::string>&) {
  TORCH_CHECK(false, "kernels whose source has parameters are not simulated");
}

std::pair<MTLComputePipelineState_t, MTLFunction_t> MetalShaderLibrary::getLibraryPipelineState(
    MTLLibrary_t,
    const std::string& name) {
  const auto pipeline = metal_host::find_pipeline(name);
  TORCH_CHECK(pipeline != nil, "Failed to create function state object for: ", name);
  return {pipeline, nil};
}

bool MetalShaderLibrary::hasFunction(const std::string& name) {
  return metal_host::find_pipeline(name) != nil;
}

std::vector<std::string> MetalShaderLibrary::getFunctionNames() {
  return metal_host::kernel_names();
}

std::shared_ptr<MetalKernelFunction> MetalShaderLibrary::getKernelFunction(const std::string& name) {
  const auto [pipeline, function] = getLibraryPipelineState(getLibrary(), name);
  return std::make_shared<MetalKernelFunction>(pipeline, function);
}

MetalKernelFunction* MetalShaderLibrary::getCachedKernelFunctionPtr(const std::string& name) {
  auto& cached = kernelCache[name];
  if (!cached) {
    const auto [pipeline, function] = getLibraryPipelineState(getLibrary(), name);
    cached = std::make_unique<MetalKernelFunction>(pipeline, function);
  }
  return cached.get();
}

// ---- One input -----------------------------------------------------------------------------

void MetalShaderLibrary::exec_unary_kernel(
    TensorIteratorBase& iter,
    const std::string& name,
    const std::optional<c10::Scalar> alpha,
    const std::optional<c10::ScalarType> scalar_arg_type,
    const std::optional<uint32_t> ilp_threshold) {
  if (!iter.can_use_32bit_indexing()) {
    for (auto& part : iter.with_32bit_indexing()) {
      exec_unary_kernel(part, name, alpha, scalar_arg_type, ilp_threshold);
    }
    return;
  }
  const auto numel = static_cast<uint32_t>(iter.numel());
  if (numel == 0) {
    return;
  }
  const auto& out = iter.tensor_base(0);
  const auto in_name = scalarToMetalTypeString(iter.tensor_base(1));
  const auto types = fmt::format("{}_{}", scalarToMetalTypeString(out), in_name);
  const auto ndim = static_cast<uint32_t>(iter.ndim());

  if (alpha) {
    const auto type = scalar_arg_type.value_or(iter.common_dtype());
    const auto value = getMPSScalar(*alpha, type);
    const bool dense = iter.is_contiguous();
    const auto kernel =
        fmt::format("{}_{}_{}_{}", name, dense ? "dense" : "strided", types, scalarToMetalTypeString(type));
    launch(*this, iter, kernel, [&](Encoder encoder, Pipeline pipeline) {
      if (dense) {
        Arguments(encoder, 2).add(value);
        mtl_dispatch1DJob(encoder, pipeline, numel);
      } else {
        Arguments(encoder, 2).add_geometry(iter, {1, 0}).add(ndim).add(value);
        dispatch_rows(encoder, pipeline, iter, iter.shape()[0]);
      }
    });
    return;
  }

  // A kernel for these dtypes, or one that casts what the input's dtype gives to the output's. Releases before 2.14
  // have none that go along runs.
  const bool ilp_by_default = c10::isFloatingType(out.scalar_type());
  const bool ilp = (ilp_by_default || ilp_threshold) && numel >= ilp_threshold.value_or(kDenseIlp);
  const bool cast_ilp = ilp_threshold && numel >= *ilp_threshold;
  auto layout = layout_of(iter);
  const auto kernels = [&] {
    const bool dense = layout == Layout::Dense;
    const auto* suffix = layout == Layout::InnerContiguous ? "inner_contiguous" : "strided";
    const std::string direct = !dense ? suffix : ilp ? "dense" : "dense_scalar";
    const std::string cast = (dense ? "dense" : suffix) + std::string(dense && cast_ilp ? "_castout_ilp" : "_castout");
    return std::pair(fmt::format("{}_{}_{}", name, direct, types), fmt::format("{}_{}_{}", name, cast, in_name));
  };
  auto [direct, castout] = kernels();
  if (layout == Layout::InnerContiguous && !hasFunction(direct) && !hasFunction(castout)) {
    layout = Layout::Strided;
    std::tie(direct, castout) = kernels();
  }
  const bool cast = !hasFunction(direct);
  launch(*this, iter, cast ? castout : direct, [&](Encoder encoder, Pipeline pipeline) {
    Arguments arguments(encoder, 2);
    switch (layout) {
      case Layout::Dense: {
        const bool tiled = cast ? cast_ilp : ilp;
        if (cast && tiled) {
          arguments.add(std::array<uint32_t, 4>{size_of(out), type_of(out), numel, 0}); // a uint3 has 16 bytes
        } else if (cast) {
          arguments.add(std::array<uint32_t, 2>{size_of(out), type_of(out)});
        } else if (tiled) {
          arguments.add(numel);
        }
        mtl_dispatch1DJob(encoder, pipeline, tiled ? tiles(numel) : numel);
        return;
      }
      case Layout::InnerContiguous: {
        const auto [outer, run] = outer_and_run(iter);
        arguments.add_geometry(iter, {1, 0}, 1);
        if (cast) {
          arguments.add(std::array<uint32_t, 4>{outer, run, size_of(out), type_of(out)});
        } else {
          arguments.add(std::array<uint32_t, 2>{outer, run});
        }
        dispatch_rows(encoder, pipeline, iter, tiles(run));
        return;
      }
      case Layout::Strided:
        arguments.add_geometry(iter, {1, 0});
        if (cast) {
          arguments.add(std::array<uint32_t, 2>{ndim, type_of(out)});
        } else {
          arguments.add(ndim);
        }
        dispatch_rows(encoder, pipeline, iter, iter.shape()[0]);
    }
  });
}

// ---- Two inputs ----------------------------------------------------------------------------

void MetalShaderLibrary::exec_binary_kernel(
    TensorIteratorBase& iter,
    const std::string& name,
    const std::optional<c10::Scalar> alpha,
    const std::optional<c10::ScalarType> scalar_arg_type,
    const std::optional<c10::ScalarType> natural_output_dtype,
    const std::optional<uint32_t> ilp_threshold) {
  TORCH_CHECK(iter.tensor_base(0).scalar_type() != kDouble, "float64 is not supported on MPS");
  if (iter.numel() == 0) {
    return;
  }
  if (!iter.can_use_32bit_indexing()) {
    for (auto& part : iter.with_32bit_indexing()) {
      exec_binary_kernel(part, name, alpha, scalar_arg_type, natural_output_dtype, ilp_threshold);
    }
    return;
  }
  const auto numel = static_cast<uint32_t>(iter.numel());
  const Tensor out = iter.output();
  Tensor input = as_bound(iter.input(0)), other = as_bound(iter.input(1));
  const auto natural = natural_output_dtype.value_or(out.scalar_type());
  const bool cast_out = out.scalar_type() != natural;
  bool cast = input.scalar_type() != other.scalar_type();

  // One operand that repeats along the other, which has the output's elements in their order; or is a single value.
  const auto repeats = [&](const Tensor& small, const Tensor& full) {
    return !cast_out && small.numel() != out.numel() && is_dense_broadcastable(small, out) &&
        full.numel() == out.numel() && full.is_contiguous() && out.is_contiguous();
  };
  const bool left = repeats(input, other);
  const bool repeated = left || repeats(other, input);
  Tensor& small = left ? input : other;
  const Tensor& full = left ? other : input;
  const bool scalar = repeated && small.numel() == 1;
  if (scalar && cast) {
    // An integer is exact in float32, so it need not be cast for every element.
    const auto common = iter.common_dtype();
    if (full.scalar_type() == common && c10::toRealValueType(common) == kFloat &&
        c10::isIntegralType(small.scalar_type(), /*includeBool=*/true)) {
      small = small.to(common);
      cast = false;
    }
  }

  const auto alpha_type = scalar_arg_type.value_or(cast ? out.scalar_type() : iter.common_dtype());
  std::optional<MPSScalar> alpha_value;
  if (alpha) {
    alpha_value = getMPSScalar(*alpha, alpha_type);
  }
  const bool plain = !repeated && !cast && !cast_out && !alpha;
  const auto threshold = ilp_threshold.value_or(
      c10::isFloatingType(out.scalar_type()) ? kDenseIlp : std::numeric_limits<uint32_t>::max());
  auto layout = repeated ? Layout::Dense : cast_out ? Layout::Strided : layout_of(iter);
  const bool ilp = plain && layout == Layout::Dense && numel >= threshold;

  // The second dtype is what the kernel reads its inputs as.
  const auto read_type = !cast ? full.scalar_type() : out.scalar_type() == kBool ? iter.common_dtype() : out.scalar_type();
  const auto types = fmt::format("{}_{}", scalarToMetalTypeString(out), scalarToMetalTypeString(read_type));
  const auto kernel_of = [&](const std::string& variant) {
    const auto suffix = alpha ? "_" + scalarToMetalTypeString(alpha_type) : "";
    if (cast_out) {
      return fmt::format(
          "{}_strided_castout_{}_{}{}", name, scalarToMetalTypeString(natural),
          scalarToMetalTypeString(iter.common_dtype()), suffix);
    }
    return fmt::format("{}_{}{}_{}{}", name, variant, cast ? "_cast" : "", types, suffix);
  };
  if (layout == Layout::InnerContiguous && !(plain && hasFunction(kernel_of("inner_contiguous")))) {
    layout = Layout::Strided;
  }
  const auto variant = [&]() -> std::string {
    if (scalar) {
      return left ? "dense_scalar_lhs" : "dense_scalar";
    }
    if (repeated) {
      return left ? "dense_broadcast_rhs" : "dense_broadcast";
    }
    switch (layout) {
      case Layout::Dense:
        return ilp ? "dense_ilp" C10_METAL_ILP_PER_THREAD_STR : "dense";
      case Layout::InnerContiguous:
        return "inner_contiguous";
      default:
        return "strided";
    }
  };

  launch(*this, iter, kernel_of(variant()), [&](Encoder encoder, Pipeline pipeline) {
    const std::array<uint32_t, 4> sizes_and_types{size_of(input), size_of(other), type_of(input), type_of(other)};
    Arguments arguments(encoder, 3);
    if (layout == Layout::InnerContiguous) {
      const auto run = outer_and_run(iter);
      arguments.add_geometry(iter, {0, 1, 2}, 1).add(run);
      dispatch_rows(encoder, pipeline, iter, tiles(run[1]));
      return;
    }
    if (layout == Layout::Strided) {
      const std::array<uint32_t, 4> ndim_and_types{
          static_cast<uint32_t>(iter.ndim()), type_of(input), type_of(other), type_of(out)};
      arguments.add(alpha_value).add_geometry(iter, {0, 1, 2}).add(ndim_and_types);
    } else {
      if (scalar) {
        mtl_setBuffer(encoder, small, left ? 1 : 2);
      } else if (repeated) {
        arguments.add(small.numel());
      }
      if (ilp) {
        arguments.add(numel);
      }
      arguments.add(alpha_value);
      if (cast) {
        arguments.add(sizes_and_types);
      }
    }
    mtl_dispatch1DJob(encoder, pipeline, ilp ? tiles(numel) : numel);
  });
}

// ---- Three inputs --------------------------------------------------------------------------

void MetalShaderLibrary::exec_ternary_kernel(TensorIteratorBase& iter, const std::string& name) {
  TORCH_CHECK(iter.tensor_base(0).scalar_type() != kDouble, "float64 is not supported on MPS");
  if (iter.numel() == 0) {
    return;
  }
  if (!iter.can_use_32bit_indexing()) {
    for (auto& part : iter.with_32bit_indexing()) {
      exec_ternary_kernel(part, name);
    }
    return;
  }
  const auto out = iter.tensor_base(0).scalar_type();
  std::array<uint32_t, 4> sizes{}, types{};
  bool cast = false;
  for (int i = 0; i < 3; ++i) {
    const auto type = bound_type(iter.tensor_base(i + 1));
    sizes[i] = static_cast<uint32_t>(c10::elementSize(type));
    types[i] = static_cast<uint32_t>(type);
    cast |= type != out;
  }
  types[3] = static_cast<uint32_t>(out);
  const bool dense = iter.is_contiguous();
  const auto out_name = scalarToMetalTypeString(out);
  const auto layout = dense ? "dense" : "strided";
  const auto kernel = cast ? fmt::format("{}_{}_cast_{}", name, layout, out_name)
                           : fmt::format("{}_{}_{}_{}", name, layout, out_name, out_name);
  launch(*this, iter, kernel, [&](Encoder encoder, Pipeline pipeline) {
    Arguments arguments(encoder, 4);
    if (!dense) {
      arguments.add_geometry(iter, {0, 1, 2, 3}).add(static_cast<uint32_t>(iter.ndim())).add(types);
    } else if (cast) {
      arguments.add(sizes).add(types);
    }
    mtl_dispatch1DJob(encoder, pipeline, iter.numel());
  });
}

// ---- A kernel by itself ---------------------------------------------------------------------

MetalKernelFunction::MetalKernelFunction(MTLComputePipelineState_t pipeline, MTLFunction_t function)
    : cps([pipeline retain]), func([function retain]) {}

MetalKernelFunction::~MetalKernelFunction() {
  [cps release];
  [func release];
}

uint64_t MetalKernelFunction::getMaxThreadsPerThreadgroup() const {
  return cps.maxTotalThreadsPerThreadgroup;
}

uint64_t MetalKernelFunction::getThreadExecutionWidth() const {
  return cps.threadExecutionWidth;
}

uint64_t MetalKernelFunction::getStaticThreadGroupMemoryLength() const {
  return cps.staticThreadgroupMemoryLength;
}

void MetalKernelFunction::runCommandBlock(std::function<void(void)> run) {
  dispatch_sync_with_rethrow(getCurrentMPSStream()->queue(), ^() {
    @autoreleasepool {
      run();
    }
  });
}

void MetalKernelFunction::startEncoding() {
  encoder = getCurrentMPSStream()->commandEncoder();
  [encoder setComputePipelineState:cps];
}

void MetalKernelFunction::setArg(unsigned index, const at::TensorBase& tensor) {
  mtl_setBuffer(encoder, tensor, index);
}

void MetalKernelFunction::setArg(unsigned index, const void* bytes, uint64_t size) {
  TORCH_CHECK(size > 0, "expected some bytes for argument ", index);
  [encoder setBytes:bytes length:size atIndex:index];
}

void MetalKernelFunction::setErrorBufferIndex(unsigned index) {
  [encoder setBuffer:getCurrentMPSStream()->getErrorBuffer() offset:0 atIndex:index];
}

void MetalKernelFunction::dispatch(uint64_t length, std::optional<uint64_t> group) {
  const std::array<uint64_t, 1> lengths{length}, groups{group.value_or(std::min(length, getMaxThreadsPerThreadgroup()))};
  dispatch(lengths, c10::ArrayRef<uint64_t>(groups));
}

void MetalKernelFunction::dispatch(c10::ArrayRef<uint64_t> lengths, c10::OptionalArrayRef<uint64_t> groups) {
  TORCH_CHECK(!lengths.empty() && lengths.size() <= 3, "expected 1 to 3 dimensions, but got ", lengths.size());
  TORCH_CHECK(
      !groups || groups->size() == lengths.size(), "expected a group of as many dimensions as threads, ",
      lengths.size(), ", but got ", groups ? groups->size() : 0);
  const auto limit = getMaxThreadsPerThreadgroup();
  const auto size = [](c10::ArrayRef<uint64_t> sizes) {
    const uint64_t height = sizes.size() > 1 ? sizes[1] : 1;
    const uint64_t depth = sizes.size() > 2 ? sizes[2] : 1;
    return MTLSizeMake(sizes[0], height, depth);
  };
  const auto group = groups ? size(*groups) : MTLSizeMake(limit, 1, 1);
  TORCH_CHECK_VALUE(
      group.width * group.height * group.depth <= limit, "Threadgroup size exceeds ", limit, " limit");
  [encoder dispatchThreads:size(lengths) threadsPerThreadgroup:group];
}

void* get_tensor_gpu_address(const at::TensorBase& tensor) {
  return reinterpret_cast<void*>(
      getMTLBufferStorage(tensor).gpuAddress + tensor.storage_offset() * tensor.element_size());
}

// ---- Values and their types ------------------------------------------------------------------

std::string scalarToMetalTypeString(const c10::ScalarType& type) {
  switch (type) {
    case kFloat:
      return "float";
    case kHalf:
      return "half";
    case kBFloat16:
      return "bfloat";
    case kInt:
      return "int";
    case kLong:
      return "long";
    case kShort:
      return "short";
    case kChar:
      return "char";
    case kByte:
      return "uchar";
    case kBool:
      return "bool";
    case kComplexHalf:
      return "half2";
    case kComplexFloat:
      return "float2";
    case kUInt16:
      return "ushort";
    case kUInt32:
      return "uint";
    case kUInt64:
      return "ulong";
    default:
      TORCH_CHECK(false, "Undefined type ", type);
  }
}

MPSScalar getMPSScalar(const Scalar& scalar, ScalarType type) {
  MPSScalar result;
  result.type = type == kDouble ? kFloat : type == kComplexDouble ? kComplexFloat : type;
  result.size = c10::elementSize(result.type);
  switch (result.type) {
    case kFloat:
      result.value.f = scalar.to<float>();
      break;
    case kHalf:
      result.value.h = scalar.to<Half>();
      break;
    case kBFloat16:
      result.value.bf16 = scalar.to<BFloat16>();
      break;
    case kComplexFloat:
      result.value.cf = scalar.to<c10::complex<float>>();
      break;
    case kComplexHalf:
      result.value.ch = scalar.to<c10::complex<Half>>();
      break;
    case kUInt64:
      result.value.u = scalar.to<uint64_t>();
      break;
    case kBool:
      result.value.i = scalar.to<bool>();
      break;
    default:
      result.value.i = scalar.to<int64_t>(); // the first bytes are those of narrower integers
  }
  return result;
}

} // namespace at::native::mps
