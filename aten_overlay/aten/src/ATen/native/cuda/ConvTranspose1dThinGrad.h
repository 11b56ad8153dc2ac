// conv_transpose1d's gradients where channels are few and samples long: read straight from the tensors, on sm_90a.
//
// As of ConvTranspose1d.h, except that each says whether it has done it: not for problems that other kernels are
// faster at or that these cannot take.
#pragma once

#include <ATen/native/cuda/ConvTranspose1d.h>

namespace at::native::conv_transpose1d {

bool thin_grad_input(
    const Tensor& grad_input,
    const Tensor& grad_output,
    const Tensor& weight,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math);

enum class ThinGradWeight { Nothing, Weight, WeightAndBias };

// The bias's gradient, too, if `grad_bias` is defined and that costs no pass of its own.
ThinGradWeight thin_grad_weight(
    const Tensor& grad_weight,
    const Tensor& grad_bias,
    const Tensor& grad_output,
    const Tensor& input,
    const ConvTranspose1dParams& params,
    ConvTranspose1dMath math);

} // namespace at::native::conv_transpose1d
