// MetalShaderLibrary by name, as operators: the kernels are those of pointwise.metal.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/mps/OperationUtils.h>

namespace {

using namespace at;
using namespace at::native::mps;

auto& lib = MetalShaderLibrary::getBundledLibrary();

TensorIterator iterator(const Tensor& out, TensorList inputs) {
  TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .promote_inputs_to_common_dtype(true)
      .allow_cpu_scalars(true)
      .resize_outputs(false)
      .add_output(out);
  for (const auto& input : inputs) {
    config.add_const_input(input);
  }
  return config.build();
}

std::optional<uint32_t> narrow(std::optional<int64_t> value) {
  return value ? std::optional<uint32_t>(*value) : std::nullopt;
}

void unary(std::string name, const Tensor& out, const Tensor& input, std::optional<Scalar> alpha, std::optional<int64_t> ilp) {
  auto iter = iterator(out, input);
  lib.exec_unary_kernel(iter, name, alpha, std::nullopt, narrow(ilp));
}

void binary(
    std::string name,
    const Tensor& out,
    const Tensor& input,
    const Tensor& other,
    std::optional<Scalar> alpha,
    std::optional<ScalarType> natural,
    std::optional<int64_t> ilp) {
  auto iter = iterator(out, {input, other});
  lib.exec_binary_kernel(iter, name, alpha, std::nullopt, natural, narrow(ilp));
}

void ternary(std::string name, const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c) {
  auto iter = iterator(out, {a, b, c});
  lib.exec_ternary_kernel(iter, name);
}

// A kernel by itself, with one output, one input and a number.
void kernel(std::string name, const Tensor& out, const Tensor& input, int64_t value, std::vector<int64_t> groups) {
  const auto function = lib.getKernelFunction(name);
  TORCH_CHECK(function.get() != lib.getCachedKernelFunctionPtr(name));
  TORCH_CHECK(lib.getCachedKernelFunctionPtr(name) == lib.getCachedKernelFunctionPtr(name));
  function->runCommandBlock([&] {
    function->startEncoding();
    function->setArg(0, out);
    function->setArg(1, input);
    function->setArg(2, static_cast<uint32_t>(value));
    const std::vector<uint64_t> threads(groups.size(), input.numel()), sizes(groups.begin(), groups.end());
    if (groups.empty()) {
      function->dispatch(static_cast<uint64_t>(input.numel()));
    } else {
      function->dispatch(threads, c10::ArrayRef<uint64_t>(sizes));
    }
  });
}

std::vector<std::string> names() {
  return lib.getFunctionNames();
}

} // namespace

TORCH_LIBRARY(pointwise, m) {
  m.def("unary(str name, Tensor(a!) out, Tensor input, Scalar? alpha=None, int? ilp=None) -> ()", &unary);
  m.def(
      "binary(str name, Tensor(a!) out, Tensor input, Tensor other, Scalar? alpha=None, ScalarType? natural=None, "
      "int? ilp=None) -> ()",
      &binary);
  m.def("ternary(str name, Tensor(a!) out, Tensor a, Tensor b, Tensor c) -> ()", &ternary);
  m.def("kernel(str name, Tensor(a!) out, Tensor input, int value, int[] groups=[]) -> ()", &kernel);
  m.def("names() -> str[]", &names);
}
