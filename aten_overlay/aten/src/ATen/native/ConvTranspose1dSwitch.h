// torch.backends.cudnn.conv_transpose1d_kernel, and what it decides on.
#pragma once

#include <ATen/native/cuda/ConvTranspose1d.h>
#include <c10/macros/Export.h>

namespace at::native {

// What computes a 1-D transposed convolution on CUDA.
enum class ConvTranspose1dKernel {
  Auto, // ours where a measurement says that it beats cuDNN, and cuDNN would be used
  Cudnn, // what PyTorch has: cuDNN, or its slow kernels where cuDNN cannot be used
  Native, // ours, wherever it can compute the call
};

// At first what TORCH_CUDNN_CONV_TRANSPOSE1D_KERNEL says; a ValueError where that is none of the three.
TORCH_API ConvTranspose1dKernel conv_transpose1d_kernel();

// Counts a pass that our kernels computed.
TORCH_API void conv_transpose1d_count(ConvTranspose1dPass pass);

// Whether ours beat cuDNN on the nearest of the shapes that ConvTranspose1dMeasured.h lists, and one is near.
// `capability` is 10 * major + minor of the device's.
TORCH_API bool conv_transpose1d_was_faster(
    int64_t capability,
    ConvTranspose1dPass pass,
    ScalarType dtype,
    ConvTranspose1dMath math,
    IntArrayRef input_sizes,
    IntArrayRef weight_sizes,
    const ConvTranspose1dParams& params);

} // namespace at::native
