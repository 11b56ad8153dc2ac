"""FLOP formulas of causal_conv1d, for torch.utils.flop_counter.

As for the other convolutions, a multiplication and an addition count as two, and bias and
activation do not count. The tensors come as their shapes.
"""

from math import prod


def causal_conv1d_flop(input_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """Of causal_conv1d, with or without the final state."""
    return 2 * prod(input_shape) * weight_shape[-1]


def causal_conv1d_backward_flop(
    grad_output_shape,
    grad_final_state_shape,
    input_shape,
    weight_shape,
    bias_shape,
    activation,
    initial_state_shape,
    seq_idx_shape,
    cu_seqlens_shape,
    output_mask,
    out_shape=None,
) -> int:
    """One convolution's worth for the gradient of the input (with its state), one for that of the weight."""
    input, weight, _, initial_state = output_mask
    return ((input or initial_state) + weight) * causal_conv1d_flop(input_shape, weight_shape)


def causal_conv1d_update_flop(input_shape, state_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    return 2 * prod(input_shape) * weight_shape[-1]
