// conv_transpose1d's kernels on CUDA, for input [N, Cin, L], weight [Cin, Cout / groups, K] and output [N, Cout, Lout].
//
// What every function here takes as given: tensors are contiguous, on one CUDA device and of one dtype among float,
// half and bfloat16; sizes fit together; stride, dilation and groups are at least 1, padding and output_padding at
// least 0; output_padding is below stride or dilation. Sizes may be 0. All paths give the same bits on every run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace at::native {

struct ConvTranspose1dParams {
  int64_t stride;
  int64_t padding;
  int64_t output_padding;
  int64_t dilation;
  int64_t groups;
};

// How products of float32 are formed; half and bfloat16 are always multiplied exactly and added up in float32.
enum class ConvTranspose1dMath {
  Exact, // as accurate as float32 arithmetic, over its whole range
  TF32, // factors rounded to TF32
};

enum class ConvTranspose1dPass { Forward, GradInput, GradWeight, GradBias };

// Without a bias, `bias` is undefined.
void conv_transpose1d_out_cuda(
    const Tensor& output,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& bias,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math);

void conv_transpose1d_grad_input_out_cuda(
    const Tensor& grad_input,
    const Tensor& grad_output,
    const Tensor& weight,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math);

// Also the gradient of the bias, which may cost less so than by itself, unless `grad_bias` is undefined.
void conv_transpose1d_grad_weight_out_cuda(
    const Tensor& grad_weight,
    const Tensor& grad_bias,
    const Tensor& grad_output,
    const Tensor& input,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math);

void conv_transpose1d_grad_bias_out_cuda(const Tensor& grad_bias, const Tensor& grad_output);

// Whether what runs on the current device was compiled for sm_90a, as what was measured was.
bool conv_transpose1d_has_wgmma_cuda();

// Whether a pass is expected to beat cuDNN on the current device, by the measured rule; the functions above are right
// for every shape either way. Of an architecture that was not measured: false.
bool conv_transpose1d_is_faster_cuda(
    ConvTranspose1dPass pass,
    ScalarType dtype,
    ConvTranspose1dMath math,
    IntArrayRef input_sizes,
    IntArrayRef weight_sizes,
    const ConvTranspose1dParams& params);

} // namespace at::native
