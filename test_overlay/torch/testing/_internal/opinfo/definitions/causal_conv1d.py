# mypy: ignore-errors

import itertools
import unittest
from functools import partial

import torch
import torch.nn.functional as F
from torch.testing import make_tensor
from torch.testing._internal.common_dtype import floating_types_and
from torch.testing._internal.opinfo.core import DecorateInfo, ErrorInput, OpInfo, SampleInput


def reference_causal_conv1d(
    input,
    weight,
    bias=None,
    activation=None,
    *,
    initial_state=None,
    return_final_state=False,
    seq_idx=None,
    cu_seqlens=None,
):
    """causal_conv1d as its definition reads, a sequence and a tap at a time, for any dtype.

    Given float64 tensors it is what the kernels are tested against. Differentiable.
    """
    if input.dim() == 2:
        out, state = reference_causal_conv1d(
            input[None],
            weight,
            bias,
            activation,
            initial_state=initial_state if initial_state is None or cu_seqlens is not None else initial_state[None],
            return_final_state=True,
            seq_idx=None if seq_idx is None else seq_idx[None],
            cu_seqlens=cu_seqlens,
        )
        state = state if cu_seqlens is not None else state[0]
        return (out[0], state) if return_final_state else out[0]

    weight = weight.flatten(1)
    width = weight.size(1)
    if cu_seqlens is not None:
        rows = [(0, start, end) for start, end in itertools.pairwise(cu_seqlens.tolist())]
    else:
        rows = [(b, 0, input.size(2)) for b in range(input.size(0))]

    outs, states = [], []
    for n, (b, start, end) in enumerate(rows):
        length = end - start
        first = input.new_zeros(input.size(1), width - 1) if initial_state is None else initial_state[n]
        x = torch.cat([first, input[b, :, start:end]], -1)  # column c is position c - (width - 1)
        here = torch.zeros(length, dtype=torch.int64) if seq_idx is None else seq_idx[b, start:end].cpu().long()
        # The initial state has the index of position 0.
        index = torch.cat([here[:1].expand(width - 1) if length else here.new_zeros(width - 1), here])

        z = x.new_zeros(x.size(0), length) if bias is None else bias[:, None].expand(-1, length)
        for w in range(width):
            counts = (index[w : w + length] == here).to(x.device)
            z = z + weight[:, w, None] * torch.where(counts, x[:, w : w + length], 0)
        out = z if activation is None else F.silu(z)
        outs.append(torch.where((here >= 0).to(x.device), out, 0))

        tokens = (here >= 0).nonzero()
        if length == 0:
            states.append(first)
        elif len(tokens) == 0:
            states.append(torch.zeros_like(first))
        else:
            last = int(tokens[-1]) + width - 1  # as a column
            counts = (index[last - width + 2 : last + 1] == index[last]).to(x.device)
            states.append(torch.where(counts, x[:, last - width + 2 : last + 1], 0))

    if cu_seqlens is not None:
        out = torch.cat(outs, -1)[None] if outs else torch.empty_like(input)
    else:
        out = torch.stack(outs) if outs else torch.empty_like(input)
    if not return_final_state:
        return out
    return out, torch.stack(states) if states else input.new_empty(0, input.size(1), width - 1)


def reference_causal_conv1d_update(
    input, state, weight, bias=None, activation=None, *, state_indices=None, cache_seqlens=None
):
    """The output and the new state of causal_conv1d_update, a row and a token at a time."""
    x = input[..., None] if input.dim() == 2 else input
    out, state = torch.zeros_like(x), state.clone()
    weight = weight.flatten(1)
    width, size = weight.size(1), state.size(2)
    for b, t in itertools.product(range(x.size(0)), range(x.size(2))):
        row = b if state_indices is None else int(state_indices[b])
        if row < 0:
            continue
        token = None if cache_seqlens is None else int(cache_seqlens[b]) + t
        taps = x.new_zeros(x.size(1), width)
        taps[:, -1] = x[b, :, t]
        for w in range(width - 1):
            if token is None:
                taps[:, w] = state[row, :, size - (width - 1) + w]
            elif (before := token - (width - 1) + w) >= 0:
                taps[:, w] = state[row, :, before % size]
        z = (weight * taps).sum(1) + (0 if bias is None else bias)
        out[b, :, t] = z if activation is None else F.silu(z)
        if token is None:
            state[row] = torch.cat([state[row], x[b, :, t, None]], -1)[:, 1:]
        elif size:
            state[row, :, token % size] = x[b, :, t]
    return out.view(input.shape), state


def causal_conv1d_update_of_a_copy(input, state, *args, **kwargs):
    """The output and the new state, so that a sample serves more than once."""
    state = state.clone()
    return F.causal_conv1d_update(input, state, *args, **kwargs), state


def sample_inputs_causal_conv1d(op_info, device, dtype, requires_grad, **kwargs):
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    index = partial(torch.tensor, device=device)

    # batch, channels, time, width
    sizes = [(2, 3, 7, 4), (1, 5, 9, 2), (2, 1, 3, 5), (3, 2, 4, 1), (2, 3, 1, 3), (0, 3, 4, 3), (2, 3, 0, 3)]
    for (b, d, t, w), bias, activation in itertools.product(sizes, (True, False), (None, "silu")):
        yield SampleInput(make(b, d, t), make(d, w), make(d) if bias else None, activation)
    # unbatched; the module's weight; the other spelling
    yield SampleInput(make(3, 8), make(3, 1, 4), make(3), "swish")
    # channels-last, and a slice of a fused projection
    x = make(2, 9, 4)
    yield SampleInput(x.detach().transpose(1, 2).requires_grad_(requires_grad), make(4, 3), make(4), "silu")
    x = make_tensor(2, 12, 9, device=device, dtype=dtype)
    yield SampleInput(x[:, 4:8, 1:].requires_grad_(requires_grad), make(4, 3), make(4), "silu")
    # states
    for activation in (None, "silu"):
        yield SampleInput(make(2, 3, 6), make(3, 4), make(3), activation, initial_state=make(2, 3, 3))
        yield SampleInput(make(2, 3, 2), make(3, 4), make(3), activation, initial_state=make(2, 3, 3))
    # packed sequences
    yield SampleInput(
        make(2, 3, 8),
        make(3, 4),
        make(3),
        "silu",
        initial_state=make(2, 3, 3),
        seq_idx=index([[0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, -1, -1]], dtype=torch.int32),
    )
    yield SampleInput(
        make(1, 3, 8),
        make(3, 4),
        make(3),
        "silu",
        initial_state=make(4, 3, 3),
        cu_seqlens=index([0, 3, 3, 4, 8]),
    )


def sample_inputs_causal_conv1d_with_state(op_info, device, dtype, requires_grad, **kwargs):
    for sample in sample_inputs_causal_conv1d(op_info, device, dtype, requires_grad, **kwargs):
        sample.kwargs["return_final_state"] = True
        yield sample


def sample_inputs_causal_conv1d_update(op_info, device, dtype, requires_grad, **kwargs):
    make = partial(make_tensor, device=device, dtype=dtype)
    index = partial(torch.tensor, device=device)

    # batch, channels, width, places of the state
    for b, d, w, size in [(2, 3, 4, 3), (1, 5, 2, 1), (3, 2, 3, 6), (2, 3, 1, 0), (0, 3, 4, 3), (1, 9, 5, 4)]:
        for bias, activation in itertools.product((True, False), (None, "silu")):
            yield SampleInput(make(b, d), make(b, d, size), make(d, w), make(d) if bias else None, activation)
        yield SampleInput(make(b, d, 5), make(b, d, size), make(d, 1, w), make(d), "swish")
    # rows of a pool, of which one is padding
    rows = index([3, -1, 0], dtype=torch.int32)
    yield SampleInput(make(3, 4), make(5, 4, 3), make(4, 4), make(4), "silu", state_indices=rows)
    # a ring: before, at and after the end of its places
    tokens = index([0, 2, 9])
    yield SampleInput(make(3, 4), make(3, 4, 3), make(4, 4), make(4), "silu", cache_seqlens=tokens)
    yield SampleInput(
        make(3, 4, 2), make(5, 4, 4), make(4, 4), make(4), "silu", state_indices=rows, cache_seqlens=tokens.int()
    )
    # channels next to each other, as in a pool kept for channels-last inputs
    yield SampleInput(make(2, 4), make(2, 3, 4).transpose(1, 2), make(4, 4), make(4), "silu")


def error_inputs_causal_conv1d_update(op_info, device, **kwargs):
    make = partial(make_tensor, device=device, dtype=torch.float32)

    def error(regex, *args, error_type=ValueError, **kwargs):
        return ErrorInput(SampleInput(*args, **kwargs), error_type=error_type, error_regex=regex)

    x, state, w = make(2, 3), make(2, 3, 3), make(3, 4)
    index = torch.zeros(2, dtype=torch.int64, device=device)
    yield error(r"expected input to be \[B, D\] or \[B, D, T\], but got \[3\]", make(3), state, w)
    yield error(r"expected state to be \[S, D, L\] .* but got \[2, 4, 3\]", x, make(2, 4, 3), w)
    yield error("at least the W-1 = 3 inputs before, but got L = 2", x, make(2, 3, 2), w)
    yield error("expected state to have the dtype of input", x, state.double(), w, error_type=TypeError)
    yield error("a row of state for each of the B = 2 inputs, but got S = 4", x, make(4, 3, 3), w)
    yield error(r"expected state_indices to be \[B\] = \[2\], but got \[1\]", x, state, w, state_indices=index[:1])
    yield error("expected cache_seqlens to be int32 or int64", x, state, w, cache_seqlens=x[:, 0], error_type=TypeError)


def error_inputs_causal_conv1d(op_info, device, **kwargs):
    make = partial(make_tensor, device=device, dtype=torch.float32)

    def error(regex, *args, error_type=ValueError, **kwargs):
        return ErrorInput(SampleInput(*args, **kwargs), error_type=error_type, error_regex=regex)

    x, w = make(2, 3, 5), make(3, 4)
    index = torch.zeros(2, 5, dtype=torch.int64, device=device)
    yield error(r"expected input to be \[B, D, T\] or \[D, T\], but got \[5\]", make(5), w)
    yield error("expected input to be float32, float64, float16 or bfloat16", x.long(), w, error_type=TypeError)
    yield error(r"expected weight to be .* D = 3, but got \[4, 4\]", x, make(4, 4))
    yield error(r"at least one tap \(W >= 1\), but got \[3, 0\]", x, make(3, 0))
    yield error("expected weight to have the input's dtype", x, w.double(), error_type=TypeError)
    yield error(r"expected bias to be \[D\] = \[3\], but got \[4\]", x, w, make(4))
    yield error("expected bias to have the dtype of weight", x, w, make(3).double(), error_type=TypeError)
    yield error("expected activation to be None, 'silu' or 'swish', but got 'relu'", x, w, None, "relu")
    yield error(r"expected initial_state to be .* = \[2, 3, 3\], but got \[2, 3, 4\]", x, w, initial_state=make(2, 3, 4))
    yield error(r"expected seq_idx to be \[B, T\] = \[2, 5\], but got \[2, 4\]", x, w, seq_idx=index[:, :4])
    yield error("expected seq_idx to be int32 or int64", x, w, seq_idx=index.double(), error_type=TypeError)
    yield error("expected B = 1, but got B = 2", x, w, cu_seqlens=index[0, :2])
    yield error("give one of them", x[:1], w, seq_idx=index[:1], cu_seqlens=index[0, :2])


# torch.jit.script takes no function with keyword-only arguments that have defaults.
_NOT_SCRIPTABLE = (
    DecorateInfo(unittest.expectedFailure, "TestJit", "test_variant_consistency_jit", dtypes=(torch.float32,)),
)

op_db: list[OpInfo] = [
    OpInfo(
        "nn.functional.causal_conv1d",
        aten_name="causal_conv1d",
        ref=reference_causal_conv1d,
        dtypes=floating_types_and(torch.float16, torch.bfloat16),
        sample_inputs_func=sample_inputs_causal_conv1d,
        error_inputs_func=error_inputs_causal_conv1d,
        supports_out=False,
        supports_gradgrad=True,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        gradcheck_fast_mode=True,
        skips=_NOT_SCRIPTABLE,
    ),
    OpInfo(
        "nn.functional.causal_conv1d",
        variant_test_name="with_state",
        aten_name="_causal_conv1d_with_state",
        ref=reference_causal_conv1d,
        dtypes=floating_types_and(torch.float16, torch.bfloat16),
        sample_inputs_func=sample_inputs_causal_conv1d_with_state,
        error_inputs_func=error_inputs_causal_conv1d,
        supports_out=False,
        supports_gradgrad=True,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        gradcheck_fast_mode=True,
        skips=_NOT_SCRIPTABLE,
    ),
    OpInfo(
        "nn.functional.causal_conv1d_update",
        op=causal_conv1d_update_of_a_copy,
        aten_name="causal_conv1d_update",
        ref=reference_causal_conv1d_update,
        dtypes=floating_types_and(torch.float16, torch.bfloat16),
        sample_inputs_func=sample_inputs_causal_conv1d_update,
        error_inputs_func=error_inputs_causal_conv1d_update,
        supports_out=False,
        supports_autograd=False,
        skips=(
            # The function of this entry is not torch.nn.functional's own.
            DecorateInfo(unittest.skip("a wrapper"), "TestNormalizeOperators", "test_normalize_operator_exhaustive"),
            DecorateInfo(unittest.skip("a wrapper"), "TestJit", "test_variant_consistency_jit"),
            # vmap takes it where the state is mapped, as test_causal_conv1d.py tests.
            DecorateInfo(unittest.skip("state is not mapped"), "TestVmapOperatorsOpInfo", "test_vmap_exhaustive"),
            DecorateInfo(unittest.skip("state is not mapped"), "TestVmapOperatorsOpInfo", "test_op_has_batch_rule"),
        ),
    ),
]
