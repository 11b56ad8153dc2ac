"""causal_conv1d's Metal kernels, run on the CPU, against the CPU operator: in all schedules, and checked."""

from __future__ import annotations

import os

import metal_causal_conv1d_host as host
import metal_host
import pytest
import torch
import torch.nn.functional as F
from metal_host.executor import SCHEDULES
from overlay.paths import OVERLAYS

SOURCE = OVERLAYS[0] / "aten/src/ATen/native/mps/kernels/CausalConv1d.metal"
FULL = os.environ.get("METAL_TEST_FULL") == "1"  # everything under the sanitizers too
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def library():
    return metal_host.load_metal(SOURCE)


def lay_out(tensor, layout):
    """The values of a [B, D, T] tensor in another memory layout, of which not all is the tensor's."""
    b, d, t = tensor.shape
    if layout == "channels_last":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        return tensor.new_full((b, d + 3, 2 * t + 5), torch.nan)[:, 1 : d + 1, 3 : 2 * t + 3 : 2].copy_(tensor)
    return tensor.contiguous()


def make_case(dtype, shape, layout, *, bias, silu, state, index, wide=False):
    b, d, t, w = shape
    generator = torch.Generator().manual_seed(b * 1000 + d * 100 + t * 10 + w)

    def values(*size, dtype=dtype):
        return (torch.rand(*size, generator=generator) * 4 - 2).to(dtype)

    parameter = torch.float32 if wide else dtype
    case = {
        "input": lay_out(values(b, d, t), layout),
        "weight": values(d, w, dtype=parameter),
        "bias": values(d, dtype=parameter) if bias else None,
        "silu": silu,
        "seq_idx": None,
        "cu_seqlens": None,
    }
    sequences = b
    if index is not None and index.startswith("seq_idx"):
        runs = torch.randint(-1, 4, (b, t), generator=generator).sort(descending=False, dim=1)[0].roll(t // 3, 1)
        case["seq_idx"] = runs.to(torch.int32 if index.endswith("32") else torch.int64)
    elif index is not None:
        cuts = torch.randint(0, t + 1, (4,), generator=generator).sort()[0]
        ends = torch.tensor([0, *cuts, cuts[-1], t]).sort()[0]
        case["cu_seqlens"] = ends.to(torch.int32 if index.endswith("32") else torch.int64)
        sequences = ends.numel() - 1
    case["initial_state"] = values(sequences, d, w - 1) if state else None
    grads = lay_out(values(b, d, t), layout), values(sequences, d, w - 1)
    return case, grads


# [B, D, T, W], and what else is given
CASES = [
    pytest.param((2, 3, 37, 4), {"bias": True, "silu": True, "state": True, "index": None}, id="state"),
    pytest.param((1, 5, 1, 4), {"bias": False, "silu": True, "state": True, "index": None}, id="one_position"),
    pytest.param((2, 4, 9, 1), {"bias": True, "silu": True, "state": False, "index": None}, id="width_1"),
    pytest.param((2, 33, 131, 3), {"bias": True, "silu": False, "state": False, "index": None}, id="no_activation"),
    pytest.param((1, 2, 70, 6), {"bias": False, "silu": True, "state": False, "index": None}, id="wide_filter"),
    pytest.param((3, 5, 41, 4), {"bias": True, "silu": True, "state": True, "index": "seq_idx32"}, id="seq_idx"),
    pytest.param((2, 9, 17, 2), {"bias": True, "silu": False, "state": False, "index": "seq_idx64"}, id="seq_idx_64"),
    pytest.param((1, 5, 53, 4), {"bias": True, "silu": True, "state": True, "index": "cu_seqlens32"}, id="cu_seqlens"),
    pytest.param((1, 3, 29, 3), {"bias": False, "silu": True, "state": False, "index": "cu_seqlens64"}, id="cu_64"),
    pytest.param((1, 9, 2100, 4), {"bias": True, "silu": True, "state": True, "index": None}, id="two_stretches"),
]


def reference(case, grads):
    """What the CPU operator gives, in the order of run()."""
    activation = "silu" if case["silu"] else None
    keywords = {name: case[name] for name in ("initial_state", "seq_idx", "cu_seqlens")}
    output, final = torch.ops.aten._causal_conv1d_with_state(
        case["input"], case["weight"], case["bias"], activation, **keywords
    )
    mask = [True, True, case["bias"] is not None, case["initial_state"] is not None]
    gradients = torch.ops.aten._causal_conv1d_backward(
        *grads, case["input"], case["weight"], case["bias"], activation, *keywords.values(), mask
    )
    return [output, final, *(grad if wanted else None for grad, wanted in zip(gradients, mask, strict=True))]


def run(library, case, grads):
    call = host.CausalConv1d(library, **case)
    return [call.forward(), call.final_state(), *call.backward(*grads)]


def check(actual, expected, case):
    """Equal to rounding: the two differ in exp() and in the order in which parameters' gradients are summed."""
    terms = case["input"].size(0) * case["input"].size(2)
    names = ("output", "final_state", "grad_input", "grad_weight", "grad_bias", "grad_initial_state")
    for name, ours, theirs in zip(names, actual, expected, strict=True):
        if theirs is None:
            assert ours is None, name
        elif name == "final_state" or (name == "output" and not case["silu"]):
            assert torch.equal(ours, theirs), name
        else:
            sums = terms if name in ("grad_weight", "grad_bias") else 8
            torch.testing.assert_close(
                ours,
                theirs,
                rtol=2 * torch.finfo(theirs.dtype).eps,
                atol=20 * 2**-23 * sums,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def equal(left, right):
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ("contiguous", "channels_last", "sliced"))
@pytest.mark.parametrize(("shape", "given"), CASES)
def test_against_the_cpu(library, dtype, layout, shape, given):
    case, grads = make_case(dtype, shape, layout, **given)
    expected = reference(case, grads)
    actual = run(library, case, grads)
    check(actual, expected, case)
    for schedule in SCHEDULES:
        with metal_host.options(schedule=schedule, host_threads=2):
            assert equal(run(library, case, grads), actual), schedule


SANITIZED = [
    (dtype, layout, case)
    for dtype in (DTYPES if FULL else (torch.bfloat16,))
    for layout in (("contiguous", "channels_last", "sliced") if FULL else ("sliced",))
    for case in (CASES if FULL else CASES[:-1])
]


@pytest.mark.parametrize(
    ("dtype", "layout", "case"), SANITIZED, ids=[f"{dtype}-{layout}-{case.id}" for dtype, layout, case in SANITIZED]
)
def test_under_the_sanitizers(library, dtype, layout, case):
    shape, given = case.values
    case, grads = make_case(dtype, shape, layout, **given)
    expected = run(library, case, grads)
    for schedule in SCHEDULES if FULL else ("simdgroup", "reverse"):
        with metal_host.options(sanitize=True, schedule=schedule):
            assert equal(run(library, case, grads), expected), schedule


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_float32_parameters(library, dtype):
    case, grads = make_case(dtype, (2, 5, 37, 4), "contiguous", bias=True, silu=True, state=True, index=None, wide=True)
    check(run(library, case, grads), reference(case, grads), case)


def test_layouts_agree(library):
    """To the bit, sums over positions included."""
    results = []
    for layout in ("contiguous", "channels_last", "sliced"):
        case, grads = make_case(torch.float32, (2, 11, 2100, 4), layout, bias=True, silu=True, state=True, index=None)
        results.append(run(library, case, grads))
    assert equal(results[0], results[1]) and equal(results[0], results[2])


def test_absent_gradients(library):
    case, (grad_output, grad_final) = make_case(
        torch.float32, (2, 3, 19, 4), "contiguous", bias=True, silu=True, state=True, index=None
    )
    zeros = torch.zeros_like(grad_output), torch.zeros_like(grad_final)
    call = host.CausalConv1d(library, **case)
    assert equal(call.backward(grad_output, None), call.backward(grad_output, zeros[1]))
    assert equal(call.backward(None, grad_final), call.backward(zeros[0], grad_final))


def test_chunks_equal_one_shot(library):
    case, _ = make_case(torch.float16, (2, 3, 40, 4), "contiguous", bias=True, silu=True, state=True, index=None)
    whole = host.CausalConv1d(library, **case)
    state, outputs = case["initial_state"], []
    for part in case["input"].split([1, 2, 17, 20], dim=2):
        call = host.CausalConv1d(library, **{**case, "input": part, "initial_state": state})
        outputs.append(call.forward())
        state = call.final_state()
    assert torch.equal(torch.cat(outputs, 2), whole.forward())
    assert torch.equal(state, whole.final_state())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ring", (False, True))
@pytest.mark.parametrize("indexed", (False, True))
@pytest.mark.parametrize("time", (1, 3, 7))
@pytest.mark.parametrize("places", (3, 5))
def test_update(library, dtype, ring, indexed, time, places):
    torch.manual_seed(0)
    batch, channels, width = 4, 37, 4
    states = 6 if indexed else batch
    x = torch.randn(batch, channels, time).to(dtype)
    weight, bias = torch.randn(channels, width).to(dtype), torch.randn(channels).to(dtype)
    pool = torch.randn(states, channels, places).to(dtype)
    rows = torch.tensor([5, 0, -1, 2], dtype=torch.int32) if indexed else None
    tokens = torch.tensor([0, 1, 4, 100]) if ring else None
    expected_pool = pool.clone()
    expected = F.causal_conv1d_update(x, expected_pool, weight, bias, "silu", state_indices=rows, cache_seqlens=tokens)
    for sanitize in (False, True):
        for schedule in ("forward", "simdgroup-reverse"):
            actual_pool = pool.clone()
            with metal_host.options(sanitize=sanitize, schedule=schedule):
                actual = host.update(library, x, actual_pool, weight, bias, True, rows, tokens)
            metal_host.synchronize()
            torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
            assert torch.equal(actual_pool, expected_pool)


class TestBadValues:
    """A device does not read indices back: what it makes of bad ones stays in bounds, and is reported."""

    def test_cu_seqlens(self, library):
        for bounds, rule in (
            ([1, 5, 20], "to run from 0 to T = 20, but got 1 at 0"),
            ([0, 5, 21], "to run from 0 to T = 20, but got 21 at 2"),
            ([0, 30, 20], "not to decrease, but got 30 before 20"),
            ([0, -7, 20], "not to decrease, but got 0 before -7"),
        ):
            case, grads = make_case(
                torch.float32, (1, 3, 20, 4), "contiguous", bias=True, silu=True, state=False, index=None
            )
            case["cu_seqlens"] = torch.tensor(bounds)
            grads = grads[0], torch.ones(2, 3, 3)
            with metal_host.options(sanitize=True):
                run(library, case, grads)
            with pytest.raises(torch.AcceleratorError, match=rule):
                metal_host.synchronize()
            metal_host.synchronize()  # said once

    def test_update(self, library):
        x, weight, pool = torch.randn(2, 3, 1), torch.randn(3, 4), torch.randn(2, 3, 3)
        for rows, tokens, rule in (
            (torch.tensor([0, 7]), None, "state_indices below S = 2, but got 7 at 1"),
            (None, torch.tensor([-3, 1]), "to count tokens from 0 on, but got -3 at 0"),
        ):
            with metal_host.options(sanitize=True):
                host.update(library, x, pool.clone(), weight, None, False, rows, tokens)
            with pytest.raises(torch.AcceleratorError, match=rule):
                metal_host.synchronize()


def test_offsets_beyond_2_32(library):
    """Channels 2^30 elements apart, of which few pages are ever touched."""
    storage = host.sparse_storage((1 << 30) * 5 + 100)
    x = storage.as_strided((1, 6, 20), (0, 1 << 30, 1)).copy_(torch.randn(1, 6, 20))
    weight = torch.randn(6, 4).half()
    output = host.CausalConv1d(library, x, weight).forward()
    assert torch.equal(output, F.causal_conv1d(x.contiguous(), weight))
