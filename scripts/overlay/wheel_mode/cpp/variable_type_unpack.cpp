// The generated VariableType.cpp calls these. libtorch_cpu has them, but does not export them.
#include <ATen/core/IListRef.h>
#include <torch/csrc/autograd/generated/VariableType.h>

namespace torch::autograd::VariableType {

__attribute__((visibility("hidden"))) const at::Tensor& unpack(const Tensor& t, const char* name, int pos) {
  TORCH_CHECK(
      t.defined(),
      "Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #", pos, " '", name, "'");
  return t;
}

__attribute__((visibility("hidden"))) at::Tensor& unpack(Tensor& t, const char* name, int pos) {
  unpack(std::as_const(t), name, pos);
  return t;
}

__attribute__((visibility("hidden"))) std::vector<at::Tensor> unpack(
    const at::ITensorListRef& tl, const char* name, int pos) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(tl.size());
  for (const at::Tensor& t : tl) {
    tensors.push_back(unpack(t, name, pos));
  }
  return tensors;
}

} // namespace torch::autograd::VariableType
