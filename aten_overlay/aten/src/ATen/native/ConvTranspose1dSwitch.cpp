// torch.backends.cudnn.conv_transpose1d_kernel: its value, and how Python gets at it.
// It is here rather than among the CUDA sources so that a build without CUDA has it too, as it has cuDNN's other switches.
#include <ATen/native/ConvTranspose1dSwitch.h>

#include <ATen/native/ConvTranspose1dMeasured.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

namespace at::native {

namespace {

constexpr std::array<const char*, 3> kKernels = {"auto", "cudnn", "native"}; // in the order of the enumerators
constexpr std::array<const char*, 4> kPasses = {"forward", "grad_input", "grad_weight", "grad_bias"};
constexpr const char* kVariable = "TORCH_CUDNN_CONV_TRANSPOSE1D_KERNEL";

template <typename Enum, size_t kSize>
Enum parse(const std::string& name, const std::array<const char*, kSize>& names, const char* what) {
  for (const auto i : c10::irange(kSize)) {
    if (name == names[i]) {
      return static_cast<Enum>(i);
    }
  }
  std::string expected;
  for (const auto i : c10::irange(kSize)) {
    expected += std::string(i == 0 ? "" : i + 1 < kSize ? ", " : " or ") + "\"" + names[i] + "\"";
  }
  TORCH_CHECK_VALUE(false, what, " must be ", expected, ", got \"", name, "\"");
}

std::atomic<ConvTranspose1dKernel>& kernel() {
  // An exception leaves it to be initialized by the next call.
  static std::atomic<ConvTranspose1dKernel> value = [] {
    const char* name = std::getenv(kVariable);
    return name == nullptr || *name == '\0' ? ConvTranspose1dKernel::Auto
                                            : parse<ConvTranspose1dKernel>(name, kKernels, kVariable);
  }();
  return value;
}

std::array<std::atomic<int64_t>, kPasses.size()> counts;

// ---- The measured rule ----------------------------------------------------------------------

// What a shape's speed depends on, in octaves; how far off a measured shape may lie in each. All that lie so near have to
// agree, but for one of the very same features, which decides alone.
constexpr size_t kFeatures = 6;
using Features = std::array<double, kFeatures>;
constexpr Features kReach = {1, 1, 1, 1, 2, 1};

Features features(IntArrayRef input_sizes, IntArrayRef weight_sizes, const ConvTranspose1dParams& params) {
  const auto octaves = [](int64_t size) { return std::log2(static_cast<double>(std::max<int64_t>(size, 1))); };
  return {
      octaves(weight_sizes[0] / params.groups),
      octaves(weight_sizes[1]),
      octaves(weight_sizes[2]),
      octaves(params.stride),
      octaves(input_sizes[0]) + octaves(input_sizes[2]),
      octaves(params.groups)};
}

using MeasuredFeatures = std::array<Features, kConvTranspose1dMeasured.size()>;

const MeasuredFeatures& measured_features() {
  static const MeasuredFeatures all = [] {
    MeasuredFeatures result{};
    for (const auto i : c10::irange(result.size())) {
      const auto& measured = kConvTranspose1dMeasured[i];
      result[i] = features(measured.input_sizes, measured.weight_sizes, measured.params);
    }
    return result;
  }();
  return all;
}

int64_t column(ConvTranspose1dPass pass, ScalarType dtype, ConvTranspose1dMath math) {
  const int64_t kind = dtype == kHalf  ? 2
      : dtype == kBFloat16             ? 3
      : math == ConvTranspose1dMath::TF32 ? 1
                                       : 0;
  return static_cast<int64_t>(pass) * 4 + kind;
}

} // namespace

ConvTranspose1dKernel conv_transpose1d_kernel() {
  return kernel().load(std::memory_order_relaxed);
}

void conv_transpose1d_count(ConvTranspose1dPass pass) {
  counts[static_cast<size_t>(pass)].fetch_add(1, std::memory_order_relaxed);
}

bool conv_transpose1d_was_faster(
    int64_t capability,
    ConvTranspose1dPass pass,
    ScalarType dtype,
    ConvTranspose1dMath math,
    IntArrayRef input_sizes,
    IntArrayRef weight_sizes,
    const ConvTranspose1dParams& params) {
  const auto here = features(input_sizes, weight_sizes, params);
  bool any = false;
  bool all = true;
  for (const auto row : c10::irange(kConvTranspose1dMeasured.size())) {
    const auto& measured = kConvTranspose1dMeasured[row];
    if (measured.capability != capability || (measured.params.dilation > 1) != (params.dilation > 1)) {
      continue;
    }
    const auto& there = measured_features()[row];
    bool near = true;
    for (const auto i : c10::irange(kFeatures)) {
      near = near && std::abs(here[i] - there[i]) <= kReach[i];
    }
    if (near) {
      const bool faster = (measured.faster >> column(pass, dtype, math)) & 1;
      if (here == there) {
        return faster;
      }
      any = true;
      all = all && faster;
    }
  }
  return any && all;
}

TORCH_LIBRARY_FRAGMENT(aten_overlay, m) {
  m.def("conv_transpose1d_kernel() -> str", [] {
    return std::string(kKernels[static_cast<size_t>(conv_transpose1d_kernel())]);
  });
  m.def("set_conv_transpose1d_kernel(str name) -> ()", [](std::string name) {
    kernel() = parse<ConvTranspose1dKernel>(name, kKernels, "torch.backends.cudnn.conv_transpose1d_kernel");
  });
  // How often our kernels have computed each pass in this process, for tests.
  m.def("conv_transpose1d_counts() -> int[]", [] {
    return std::vector<int64_t>(counts.begin(), counts.end());
  });
  m.def(
      "conv_transpose1d_was_faster(int capability, str pass_, ScalarType dtype, bool tf32, int[] input_sizes, "
      "int[] weight_sizes, int stride, int dilation, int groups) -> bool",
      [](int64_t capability,
         std::string pass,
         ScalarType dtype,
         bool tf32,
         std::vector<int64_t> input_sizes,
         std::vector<int64_t> weight_sizes,
         int64_t stride,
         int64_t dilation,
         int64_t groups) {
        return conv_transpose1d_was_faster(
            capability,
            parse<ConvTranspose1dPass>(pass, kPasses, "pass_"),
            dtype,
            tf32 ? ConvTranspose1dMath::TF32 : ConvTranspose1dMath::Exact,
            input_sizes,
            weight_sizes,
            {stride, 0, 0, dilation, groups});
      });
}

} // namespace at::native
