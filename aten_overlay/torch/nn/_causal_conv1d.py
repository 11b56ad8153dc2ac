"""torch.nn.functional.causal_conv1d and causal_conv1d_update: made public there."""

from typing import Optional, Union

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic


def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    *,
    initial_state: Optional[Tensor] = None,
    return_final_state: bool = False,
    seq_idx: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    r"""Apply a causal depthwise 1-D convolution, with an optional bias and SiLU.

    Each channel is convolved with its own filter, and each output depends on the current and the
    :math:`W - 1` inputs before it only:

    .. math::
        \text{out}[b, d, t] = \text{act}\left(\text{bias}[d]
            + \sum_{w=0}^{W-1} \text{weight}[d, w] \cdot \text{input}[b, d, t + w - (W - 1)]\right)

    where inputs before the start come from :attr:`initial_state`, or are 0. It equals, in one
    pass and without a padded copy::

        x = F.pad(input, (W - 1, 0))  # or torch.cat([initial_state, input], -1)
        out = act(F.conv1d(x, weight.view(D, 1, W), bias, groups=D))

    This is the short convolution of `Mamba: Linear-Time Sequence Modeling with Selective State
    Spaces <https://arxiv.org/abs/2312.00752>`_ and its kin.

    Products and sums are taken in float32 for float16 and bfloat16 and in the input's dtype
    otherwise, and rounded once. An output's value depends on its taps alone: a sequence computed
    in chunks, each with the state of the one before, gives the bits of one call.

    Args:
        input: :math:`(B, D, T)` or unbatched :math:`(D, T)`, of dtype float32, float64, float16 or
            bfloat16, in any memory layout. The output has the strides of a dense input; otherwise
            it is channels-last if the input's channel stride is 1, and contiguous if not.
        weight: :math:`(D, W)` or :math:`(D, 1, W)` with :math:`W \geq 1`, in the input's dtype, or
            in float32 beside a float16 or bfloat16 input.
        bias: :math:`(D)`, in the weight's dtype.
        activation: ``None``, ``"silu"`` or ``"swish"`` (the same).

    Keyword args:
        initial_state: :math:`(B, D, W - 1)` (:math:`(D, W - 1)` unbatched), the inputs before the
            start, oldest first, in the input's dtype.
        return_final_state: whether to return the last :math:`W - 1` inputs too, as the
            :attr:`initial_state` of a continuation.
        seq_idx: int32 or int64 :math:`(B, T)` (:math:`(T)` unbatched): the sequence each position
            belongs to. A tap counts only if its index is the output's. Negative values mark
            padding: the output is 0 there, and no gradient passes to or from it.
            :attr:`initial_state` belongs to the sequence at position 0. The final state is that of
            the sequence at the last position that is not padding.
        cu_seqlens: int32 or int64 :math:`(N + 1)`, with :math:`B = 1`: segment ``i`` is
            ``input[..., cu_seqlens[i]:cu_seqlens[i + 1]]``, and may be empty. States are
            :math:`(N, D, W - 1)`. Not together with :attr:`seq_idx`.

    Returns:
        The output, of the input's shape and dtype; with :attr:`return_final_state` a pair of the
        output and the final state.

    Raises:
        ValueError: if a shape, the activation or the values of ``cu_seqlens`` are not as above.
        TypeError: if a dtype is not as above.

    Example::

        >>> input = torch.randn(8, 64, 256)
        >>> weight, bias = torch.randn(64, 4), torch.randn(64)
        >>> out = F.causal_conv1d(input, weight, bias, "silu")
        >>> head, state = F.causal_conv1d(input[..., :100], weight, bias, "silu", return_final_state=True)
        >>> tail = F.causal_conv1d(input[..., 100:], weight, bias, "silu", initial_state=state)
        >>> torch.equal(out, torch.cat([head, tail], -1))
        True
    """
    if has_torch_function_variadic(input, weight, bias, initial_state, seq_idx, cu_seqlens):
        return handle_torch_function(
            causal_conv1d,
            (input, weight, bias, initial_state, seq_idx, cu_seqlens),
            input,
            weight,
            bias,
            activation,
            initial_state=initial_state,
            return_final_state=return_final_state,
            seq_idx=seq_idx,
            cu_seqlens=cu_seqlens,
        )
    # torch.ops rather than torch._C._nn: the same call where torch was built with the operator and
    # where it was added to an installed torch.
    if return_final_state:
        return torch.ops.aten._causal_conv1d_with_state(
            input, weight, bias, activation, initial_state=initial_state, seq_idx=seq_idx, cu_seqlens=cu_seqlens
        )
    return torch.ops.aten.causal_conv1d(
        input, weight, bias, activation, initial_state=initial_state, seq_idx=seq_idx, cu_seqlens=cu_seqlens
    )


def causal_conv1d_update(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    *,
    state_indices: Optional[Tensor] = None,
    cache_seqlens: Optional[Tensor] = None,
) -> Tensor:
    r"""Take one step, or a few, of :func:`causal_conv1d`, on a state that is changed in place.

    The outputs are those of :func:`causal_conv1d` at the new positions, to the bit.

    Args:
        input: :math:`(B, D)`, or :math:`(B, D, T)` for :math:`T` steps, of dtype float32, float64,
            float16 or bfloat16.
        state: :math:`(S, D, L)` with :math:`L \geq W - 1`, in the input's dtype: the last :math:`L`
            inputs of each sequence, oldest first. They are shifted left and the new ones appended.
        weight: :math:`(D, W)` or :math:`(D, 1, W)`, as for :func:`causal_conv1d`.
        bias: :math:`(D)`, in the weight's dtype.
        activation: ``None``, ``"silu"`` or ``"swish"`` (the same).

    Keyword args:
        state_indices: int32 or int64 :math:`(B)`, the row of :attr:`state` that each row of the input
            continues; without it row ``b`` continues row ``b``, and :math:`S = B`. Negative values
            mark padding: the output is 0, and no state changes. A row may be named once only.
        cache_seqlens: int32 or int64 :math:`(B)`, the number of tokens each sequence had before this
            call. With it a row of :attr:`state` is a ring in which token ``i`` stands at place
            ``i % L``, and nothing is shifted.

    Returns:
        The output, of the input's shape and dtype.

    Raises:
        ValueError: if a shape or the activation is not as above, or an index comes twice.
        IndexError: on the CPU, if an index is :math:`S` or more, or ``cache_seqlens`` negative. A GPU
            does not read them back: they are clamped, and the result is defined by what is in bounds.
        TypeError: if a dtype is not as above.
        NotImplementedError: in the backward pass, since the step has no gradient.

    Under autocast everything takes the dtype of :attr:`state`, which is never cast.

    Example::

        >>> weight, state = torch.randn(64, 4), torch.zeros(1, 64, 3)
        >>> input = torch.randn(1, 64, 10)
        >>> steps = [F.causal_conv1d_update(input[..., t], state, weight) for t in range(10)]
        >>> torch.equal(torch.stack(steps, -1), F.causal_conv1d(input, weight))
        True
    """
    if has_torch_function_variadic(input, state, weight, bias, state_indices, cache_seqlens):
        return handle_torch_function(
            causal_conv1d_update,
            (input, state, weight, bias, state_indices, cache_seqlens),
            input,
            state,
            weight,
            bias,
            activation,
            state_indices=state_indices,
            cache_seqlens=cache_seqlens,
        )
    return torch.ops.aten.causal_conv1d_update(
        input, state, weight, bias, activation, state_indices=state_indices, cache_seqlens=cache_seqlens
    )


for _function in (causal_conv1d, causal_conv1d_update):
    _function.__module__ = "torch.nn.functional"
