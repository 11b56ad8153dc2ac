"""causal_conv1d and causal_conv1d_update on a GPU, against the CPU operator in float64.

    make test-gpu
"""

import itertools
import math
import os

import pytest
import torch
import torch.nn.functional as F

import torch_overlay  # noqa: F401

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS = (
    "contiguous",
    "channels_last",
    "odd_offset",
    "odd_pitch",
    "strided_time",
    "batch_last",
    "expanded",
    "wide_pitch",
    "odd_channel_pitch",
)
# A run under compute-sanitizer takes a part of the sweep.
REDUCED = bool(os.environ.get("CAUSAL_CONV1D_REDUCED"))
# (B, D, T, W): all widths; lengths around a vector, a tile and a chunk; channels around a vector and a warp.
SIZES = [
    (2, 3, 1, 4), (2, 5, 2, 4), (1, 7, 3, 2), (2, 4, 8, 4), (2, 3, 37, 3), (1, 130, 67, 5), (2, 9, 70, 6),
    (2, 6, 40, 7), (3, 5, 41, 8), (2, 5, 33, 1), (1, 3, 131, 9), (2, 2, 70, 64), (1, 2, 511, 4), (2, 8, 512, 4),
    (1, 3, 1030, 4), (1, 257, 300, 4), (2, 2, 4099, 4), (1, 4, 8200, 4), (1, 8, 264, 1), (1, 8, 264, 2), (1, 8, 264, 3),
    (1, 8, 264, 5), (1, 8, 264, 6), (1, 8, 264, 7), (1, 8, 264, 8), (0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 0, 4),
    (1, 64, 512, 2),
]  # fmt: skip
if REDUCED:
    SIZES = [
        (2, 3, 37, 3), (1, 8, 264, 4), (2, 9, 70, 6), (1, 3, 131, 9), (1, 3, 530, 4), (1, 130, 65, 4), (1, 64, 512, 2),
    ]  # fmt: skip


def lay_out(tensor, layout):
    """The values of a [B, D, T] tensor in another memory layout (expanded: those of its first row)."""
    b, d, t = tensor.shape
    nan = math.nan
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "channels_last":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "expanded":
        return tensor[:1].expand(b, d, t)
    views = {
        "odd_offset": lambda: tensor.new_full((b * d * t + 3,), nan)[3:].view(b, d, t),
        "odd_pitch": lambda: tensor.new_full((b, d + 1, t + 3), nan)[:, 1:, 2 : t + 2],
        "strided_time": lambda: tensor.new_full((b, d, 2 * t + 1), nan)[:, :, 1::2],
        "batch_last": lambda: tensor.new_full((t, d, b), nan).permute(2, 1, 0),
        "wide_pitch": lambda: tensor.new_full((b, t, d + 64), nan)[:, :, 2 : d + 2].transpose(1, 2),
        "odd_channel_pitch": lambda: tensor.new_full((b, t, d + 3 - d % 2), nan)[:, :, 1 : d + 1].transpose(1, 2),
    }
    return views[layout]().copy_(tensor)


def random(*shape, dtype):
    return (torch.rand(*shape, dtype=torch.float64) * 4 - 2).to(dtype)


def ulp(value, dtype):
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.abs().clamp(min=info.tiny))[1] - 1
    return info.eps * torch.ldexp(torch.ones_like(value), exponent)


def to_cuda(tensors):
    return [None if tensor is None else tensor.cuda() for tensor in tensors]


def run(tensors, grads, activation, **indices):
    """Output, final state and all gradients."""
    x, weight, bias, state = leaves = [None if a is None else a.detach().requires_grad_() for a in tensors]
    out, final = F.causal_conv1d(x, weight, bias, activation, initial_state=state, return_final_state=True, **indices)
    wanted = [a for a in leaves if a is not None]
    got = iter(torch.autograd.grad((out, final), wanted, grads))
    return out.detach(), final.detach(), *(None if a is None else next(got) for a in leaves)


def check(dtype, size, layout, activation, bias, state, grad_layout=None, segments=None, **indices):
    """One call and its gradients, on the GPU against the CPU in float64."""
    b, d, t, w = size
    x, weight = random(b, d, t, dtype=dtype), random(d, w, dtype=dtype)
    n = b if segments is None else segments
    bias = random(d, dtype=dtype) if bias else None
    state = random(n, d, w - 1, dtype=dtype) if state else None
    grad, grad_final = random(b, d, t, dtype=dtype), random(n, d, w - 1, dtype=dtype)
    x, grad = lay_out(x, layout), lay_out(grad, grad_layout or layout)

    def double(a):
        return None if a is None else a.double()

    expected = run(
        [double(a) for a in (x, weight, bias, state)], (grad.double(), grad_final.double()), activation, **indices
    )
    on_gpu = [a.cuda() for a in (grad, grad_final)]
    x_gpu, grad_gpu = lay_out(x.cuda(), layout), lay_out(on_gpu[0], grad_layout or layout)
    indices_gpu = {name: index.cuda() for name, index in indices.items()}
    actual = run([x_gpu, *to_cuda((weight, bias, state))], (grad_gpu, on_gpu[1]), activation, **indices_gpu)
    # The output has the layout that it has on the CPU.
    assert actual[0].stride() == F.causal_conv1d(x, weight).stride()
    assert torch.equal(actual[1].cpu().double(), expected[1]), "final state"

    work = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    magnitude = F.causal_conv1d(
        x.double().abs(), weight.double().abs(), double(bias) if bias is None else bias.double().abs()
    )
    if state is not None:
        magnitude = magnitude + 4 * w
    error = (actual[0].cpu().double() - expected[0]).abs()
    bound = ulp(expected[0], dtype) + work * (w + 4) * 1.1 * magnitude
    assert bool((error <= bound).all()), f"output: {error.max()}, ulp exceeded {(error / bound).max()} times"

    eps = torch.finfo(dtype).eps
    for name, got, want in zip(("input", "weight", "bias", "initial_state"), actual[2:], expected[2:]):
        if want is None:
            continue
        assert got.dtype == dtype
        terms = b * t if name in ("weight", "bias") else w
        torch.testing.assert_close(
            got.cpu().double(),
            want,
            rtol=2 * eps,
            atol=20 * work * max(terms, 1) + 1e-300,
            msg=lambda m: f"grad of {name}: {m}",
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_float64(dtype, layout):
    torch.manual_seed(0)
    for size, (activation, bias, state) in itertools.product(
        SIZES, [(None, False, False), ("silu", True, False), ("silu", True, True), (None, True, True)]
    ):
        if layout == "expanded" and size[0] == 0:
            continue
        check(dtype, size, layout, activation, bias, state)


@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
@pytest.mark.parametrize("grad_layout", ("contiguous", "channels_last", "odd_pitch", "wide_pitch", "expanded"))
def test_grad_output_of_another_layout(layout, grad_layout):
    for dtype, size in itertools.product((torch.float32, torch.bfloat16), ((2, 8, 530, 4), (2, 12, 70, 4))):
        check(dtype, size, layout, "silu", True, True, grad_layout=grad_layout)


def packed_rows(b, t, index, long_runs=False):
    """Runs of equal indices, padding at both ends and between, an index that comes back."""
    rows = torch.zeros(b, t, dtype=index)
    for row in rows:
        at = 0
        while at < t:
            run = int(torch.randint(1, 300 if long_runs else 9, ()))
            row[at : at + run] = int(torch.randint(-1, 4, ()))
            at += run
    return rows


@pytest.mark.parametrize("layout", ("contiguous", "channels_last", "odd_pitch", "strided_time"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_seq_idx(dtype, layout):
    torch.manual_seed(1)
    for size, index, state, long_runs in itertools.product(
        SIZES, (torch.int32, torch.int64), (False, True), (False, True)
    ):
        b, _, t, _ = size
        rows = packed_rows(b, t, index, long_runs)
        if index == torch.int64:
            rows = torch.where(rows > 2, rows + 2**32, rows)  # equal in 32 bits, but not equal
        check(dtype, size, layout, "silu", True, state, seq_idx=rows)


@pytest.mark.parametrize("layout", ("contiguous", "channels_last", "odd_pitch", "strided_time"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_cu_seqlens(dtype, layout):
    torch.manual_seed(2)
    for (_, d, t, w), index, state in itertools.product(SIZES, (torch.int32, torch.int64), (False, True)):
        for segments in (1, 2, 7, max(t // 2, 1)):
            cuts = torch.randint(0, t + 1, (segments - 1,)).sort().values
            bounds = torch.cat([torch.tensor([0]), cuts, torch.tensor([t])]).to(index)
            check(dtype, (1, d, t, w), layout, "silu", True, state, segments=segments, cu_seqlens=bounds)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_float32_parameters(dtype):
    x, weight, bias = random(2, 8, 50, dtype=dtype), random(8, 4, dtype=torch.float32), random(8, dtype=torch.float32)
    for layout in ("contiguous", "channels_last"):
        leaves = [a.requires_grad_() for a in (lay_out(x.cuda(), layout), weight.cuda(), bias.cuda())]
        out = F.causal_conv1d(*leaves, "silu")
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
        assert [g.dtype for g in (out, *grads)] == [dtype, dtype, torch.float32, torch.float32]
        expected = [a.double().requires_grad_() for a in (x, weight, bias)]
        out64 = F.causal_conv1d(*expected, "silu")
        torch.testing.assert_close(out.cpu().double(), out64, rtol=torch.finfo(dtype).eps, atol=1e-5)
        for got, want in zip(grads[1:], torch.autograd.grad(out64, expected, torch.ones_like(out64))[1:]):
            torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-4)


# ---- equal to the bit -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_agree(dtype):
    torch.manual_seed(3)
    for size in ((2, 12, 130, 4), (2, 19, 1030, 3), (1, 5, 70, 8)):
        b, d, t, w = size
        tensors = to_cuda(
            [
                random(b, d, t, dtype=dtype),
                random(d, w, dtype=dtype),
                random(d, dtype=dtype),
                random(b, d, w - 1, dtype=dtype),
            ]
        )
        grads = to_cuda([random(b, d, t, dtype=dtype), random(b, d, w - 1, dtype=dtype)])
        for indices in ({}, {"seq_idx": packed_rows(b, t, torch.int32).cuda()}):
            results = []
            for layout in LAYOUTS:
                if layout == "expanded":
                    continue
                out, final, dx, _, _, dstate = run(
                    [lay_out(tensors[0], layout), *tensors[1:]],
                    (lay_out(grads[0], layout), grads[1]),
                    "silu",
                    **indices,
                )
                results.append((out, final, dx, dstate))
            for other in results[1:]:
                assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.skipif(REDUCED, reason="too slow under compute-sanitizer")
@pytest.mark.parametrize("b", (4, 2))
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_short_rows_equal_few(dtype, b):
    torch.manual_seed(3)
    d, t, w = 20000, 264 if dtype.itemsize == 2 else 200, 4
    x, grad = (torch.randn(b, d, t, device="cuda").to(dtype) for _ in range(2))
    state, grad_final = (torch.randn(b, d, w - 1, device="cuda").to(dtype) for _ in range(2))
    weight, bias = (torch.randn(*size, device="cuda").to(dtype) for size in ((d, w), (d,)))
    seq_idx = packed_rows(b, t, torch.int32).cuda()
    few = slice(100, 137)  # channels

    def gradients(which, **kwargs):
        leaves = [a.detach().requires_grad_() for a in (x[:, which], weight[which], bias[which])]
        if "initial_state" in kwargs:
            kwargs["initial_state"] = kwargs["initial_state"][:, which].detach().requires_grad_()
            leaves.append(kwargs["initial_state"])
            outs = F.causal_conv1d(*leaves[:3], "silu", return_final_state=True, **kwargs)
            return torch.autograd.grad(outs, leaves, (grad[:, which], grad_final[:, which]))
        return torch.autograd.grad(F.causal_conv1d(*leaves, "silu", **kwargs), leaves, grad[:, which])

    for kwargs in ({}, {"seq_idx": seq_idx}, {"initial_state": state}):
        many, some = gradients(slice(None), **kwargs), gradients(few, **kwargs)
        for i, (got, want) in enumerate(zip(many, some)):
            if i in (1, 2):  # sums in another order
                torch.testing.assert_close(got[few], want, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)
            else:
                assert torch.equal(got[:, few], want)


@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_equal_one_shot(dtype, layout):
    torch.manual_seed(4)
    for t, w in itertools.product((9, 300, 1500), (1, 2, 4, 7)):
        x, weight, bias, state = to_cuda(
            [
                random(2, 5, t, dtype=dtype),
                random(5, w, dtype=dtype),
                random(5, dtype=dtype),
                random(2, 5, w - 1, dtype=dtype),
            ]
        )
        x = lay_out(x, layout)
        whole, final = F.causal_conv1d(x, weight, bias, "silu", initial_state=state, return_final_state=True)
        for cuts in ([0, 0, t], [0, 1, t], [0, t // 3, t // 2, t], [*range(8), t]):
            chunks, carry = [], state
            for start, end in itertools.pairwise(cuts):
                out, carry = F.causal_conv1d(
                    x[..., start:end], weight, bias, "silu", initial_state=carry, return_final_state=True
                )
                chunks.append(out)
            assert torch.equal(torch.cat(chunks, -1), whole) and torch.equal(carry, final)


@pytest.mark.parametrize("layout", ("contiguous", "channels_last", "strided_time"))
def test_gradients_are_reproducible(layout):
    torch.manual_seed(5)
    x, weight, bias, state = to_cuda(
        [
            random(3, 70, 5000, dtype=torch.bfloat16),
            *(random(*s, dtype=torch.bfloat16) for s in ((70, 4), (70,), (3, 70, 3))),
        ]
    )
    grads = to_cuda([random(3, 70, 5000, dtype=torch.bfloat16), random(3, 70, 3, dtype=torch.bfloat16)])
    runs = [
        run([lay_out(x, layout), weight, bias, state], (lay_out(grads[0], layout), grads[1]), "silu") for _ in range(4)
    ]
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other))


def test_products_are_not_rounded():
    x = torch.tensor([[[1.0078125]]], device="cuda", dtype=torch.bfloat16)
    for shape in ((1, 1, 1), (1, 1, 9), (1, 8, 1), (2, 8, 9)):
        weight = torch.tensor([[1.0078125]], device="cuda", dtype=torch.bfloat16).expand(shape[1], 1)
        bias = torch.tensor([-1.015625], device="cuda", dtype=torch.bfloat16).expand(shape[1])
        assert bool((F.causal_conv1d(x.expand(shape).contiguous(), weight, bias) == 2.0**-14).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_over_the_whole_range(dtype):
    z = torch.cat(
        [torch.linspace(-100, 100, 4001), torch.linspace(-8, 8, 4096), torch.tensor([0.0, -0.0, 1e-6, -1e-6])]
    )
    z = z.to(dtype).view(1, 1, -1)
    weight = torch.ones(1, 1, dtype=dtype)
    out = F.causal_conv1d(z.cuda(), weight.cuda(), None, "silu").cpu().double()
    expected = F.silu(z.double())
    # Where exp(-z) overflows in float32, the output is 0.
    bound = ulp(expected, dtype) * (1 if dtype.itemsize == 2 else 4) + (0 if dtype == torch.float64 else 1e-36)
    assert bool(((out - expected).abs() <= bound).all())


def test_non_finite():
    for layout, value in itertools.product(("contiguous", "channels_last"), (math.inf, -math.inf, math.nan)):
        x = torch.ones(1, 8, 40, device="cuda", dtype=torch.bfloat16)
        x[..., 20] = value
        weight = torch.ones(8, 4, device="cuda", dtype=torch.bfloat16)
        for activation in (None, "silu"):
            out = F.causal_conv1d(lay_out(x, layout), weight, None, activation)
            expected = F.causal_conv1d(x.cpu(), weight.cpu(), None, activation)
            torch.testing.assert_close(out.cpu(), expected, equal_nan=True)


# ---- out of range ---------------------------------------------------------------------------


def test_bad_index_values_stay_in_bounds():
    # Only that nothing is read or written out of bounds (see it under compute-sanitizer), and that what is
    # returned does not change from run to run.
    torch.manual_seed(6)
    d, t, w = 8, 70, 4
    big = 2**31 - 1
    for dtype, layout in itertools.product(
        (torch.float32, torch.bfloat16), ("contiguous", "channels_last", "strided_time")
    ):
        x, weight = random(1, d, t, dtype=dtype).cuda(), random(d, w, dtype=dtype).cuda()
        for bounds in ([0, 200], [5, 60], [-3, 10, t], [0, 40, 20, t], [big, -big, 7], [60, 50, 40, 30], [0, t, 0, t]):
            cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device="cuda")
            n = len(bounds) - 1
            state = random(n, d, w - 1, dtype=dtype).cuda()
            grads = (random(1, d, t, dtype=dtype).cuda(), random(n, d, w - 1, dtype=dtype).cuda())
            runs = [
                run([lay_out(x, layout), weight, None, state], grads, "silu", cu_seqlens=cu_seqlens) for _ in range(2)
            ]
            assert torch.equal(runs[0][0], runs[1][0]) and bool(runs[0][0].isfinite().all())
    x = random(5, d, dtype=torch.float32).cuda()
    weight = weight.float()
    for wide in (torch.int32, torch.int64):
        state = random(3, d, 4, dtype=torch.float32).cuda()
        before = state.clone()
        indices = torch.tensor([1, big, -big, -1, 99], dtype=wide, device="cuda")
        seqlens = torch.tensor([-5, big, 3, 0, 2], dtype=wide, device="cuda")
        out = F.causal_conv1d_update(x, state, weight, state_indices=indices, cache_seqlens=seqlens)
        torch.cuda.synchronize()
        assert bool((out[2:4] == 0).all()) and torch.equal(state[0], before[0])


# ---- sizes ----------------------------------------------------------------------------------


@pytest.mark.skipif(REDUCED, reason="too slow under compute-sanitizer")
@pytest.mark.parametrize("b, d, t", [(70000, 1, 4), (1, 70000, 4), (70000, 2, 1), (3, 70001, 9)])
def test_more_than_65535_rows(b, d, t):
    for layout in ("contiguous", "channels_last"):
        x = torch.randn(b, d, t)
        weight = torch.randn(d, 4)
        x_gpu, weight_gpu = lay_out(x.cuda(), layout).requires_grad_(), weight.cuda().requires_grad_()
        out = F.causal_conv1d(x_gpu, weight_gpu)
        torch.testing.assert_close(out.detach().cpu(), F.causal_conv1d(x, weight))
        grads = torch.autograd.grad(out, (x_gpu, weight_gpu), torch.ones_like(out))
        x.requires_grad_(), weight.requires_grad_()
        out = F.causal_conv1d(x, weight)
        for got, want in zip(grads, torch.autograd.grad(out, (x, weight), torch.ones_like(out))):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(REDUCED, reason="too slow under compute-sanitizer")
def test_offsets_beyond_2_31():
    # Rows of channels, and of positions, that far apart; and one row of more positions.
    base = torch.empty(3 * 2**31, device="cuda", dtype=torch.bfloat16)
    weight, bias = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((8, 4), (8,)))
    pitch = 2**31 // 3 // 8 * 8
    for strides in ((0, 1, pitch), (0, pitch, 1), (0, pitch - 1, 1)):
        values = torch.randn(1, 8, 8, device="cuda").bfloat16()
        view = base.as_strided((1, 8, 8), strides).copy_(values).requires_grad_()
        values.requires_grad_()
        out, expected = F.causal_conv1d(view, weight, bias, "silu"), F.causal_conv1d(values, weight, bias, "silu")
        assert torch.equal(out, expected)
        grad = torch.randn_like(values)
        assert torch.equal(torch.autograd.grad(out, view, grad)[0], torch.autograd.grad(expected, values, grad)[0])
    time = 2**31 + 100
    x = base[: 2 * time].view(1, 2, time).normal_()
    for row in (x, x.view(1, time, 2).transpose(1, 2)):
        out = F.causal_conv1d(row, weight[:2], bias[:2], "silu")
        for start in (0, time // 2, 2**31 - 8, time - 100):
            part = F.causal_conv1d(row[..., max(start - 3, 0) : start + 100], weight[:2], bias[:2], "silu")
            assert torch.equal(out[..., start : start + 100], part[..., 3 if start else 0 :])
        del out


# ---- decode ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_update(dtype):
    torch.manual_seed(7)
    for (b, d, t, w), places, ring, indexed, last in itertools.product(
        ((1, 5, 1, 4), (4, 130, 1, 4), (3, 7, 5, 3), (2, 4, 9, 4), (2, 3, 2, 1), (2, 3, 4, 7), (2, 3, 1, 2)),
        (0, 1, 5), (False, True), (False, True), (False, True),
    ):  # fmt: skip
        length = w - 1 + places
        if length == 0:
            continue
        s = b + 3 if indexed else b
        x, weight, bias = random(b, d, t, dtype=dtype), random(d, w, dtype=dtype), random(d, dtype=dtype)
        state = random(s, d, length, dtype=dtype)
        kwargs = {}
        if indexed:
            kwargs["state_indices"] = torch.randperm(s)[:b].to(torch.int32)
            kwargs["state_indices"][-1] = -1
        if ring:
            kwargs["cache_seqlens"] = torch.randint(0, 40, (b,))
            kwargs["cache_seqlens"][0] = 1
        state_gpu = state.cuda()
        if last:
            state_gpu = state_gpu.transpose(1, 2).contiguous().transpose(1, 2)
        gpu = F.causal_conv1d_update(
            x.cuda(), state_gpu, weight.cuda(), bias.cuda(), "silu", **{k: v.cuda() for k, v in kwargs.items()}
        )
        double = state.double()
        expected = F.causal_conv1d_update(x.double(), double, weight.double(), bias.double(), "silu", **kwargs)
        assert torch.equal(state_gpu.cpu().double(), double)
        work = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        assert bool(((gpu.cpu().double() - expected).abs() <= ulp(expected, dtype) + 100 * w * work).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_equal_one_shot(dtype):
    for w in (1, 2, 4, 6, 9):
        x, weight, bias = to_cuda([random(2, 5, 30, dtype=dtype), random(5, w, dtype=dtype), random(5, dtype=dtype)])
        whole, final = F.causal_conv1d(x, weight, bias, "silu", return_final_state=True)
        state = torch.zeros_like(final)
        steps = [F.causal_conv1d_update(x[..., t], state, weight, bias, "silu") for t in range(20)]
        steps = [torch.stack(steps, -1), F.causal_conv1d_update(x[..., 20:], state, weight, bias, "silu")]
        assert torch.equal(torch.cat(steps, -1), whole) and torch.equal(state, final)


# ---- CUDA graphs ----------------------------------------------------------------------------


@pytest.mark.skipif(REDUCED, reason="no graphs under compute-sanitizer")
def test_graph_replay_with_changed_contents():
    torch.manual_seed(8)
    b, d, t, w = 2, 16, 600, 4
    for layout in ("contiguous", "channels_last"):
        x, grad = (lay_out(random(b, d, t, dtype=torch.bfloat16).cuda(), layout) for _ in range(2))
        weight, bias, state = to_cuda([random(*s, dtype=torch.bfloat16) for s in ((d, w), (d,), (b, d, w - 1))])
        seq_idx = packed_rows(b, t, torch.int32, True).cuda()
        grad_final = torch.randn_like(state)
        decode_state, token = torch.randn(6, d, w - 1, device="cuda"), torch.randn(4, d, device="cuda")
        rows = torch.tensor([3, -1, 0, 5], device="cuda")

        def step():
            results = run([x, weight, bias, state], (grad, grad_final), "silu", seq_idx=seq_idx)
            return results, F.causal_conv1d_update(token, decode_state, weight.float(), state_indices=rows)

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results, decoded = step()
        for seed in range(3):
            torch.manual_seed(seed)
            for tensor in (x, grad, weight, token, decode_state):
                tensor.normal_()
            seq_idx.copy_(packed_rows(b, t, torch.int32, True))
            rows.copy_(torch.randperm(6)[:4] - 1)
            before = decode_state.clone()
            graph.replay()
            after = decode_state.clone()
            decode_state.copy_(before)
            expected, decoded_expected = step()
            assert all(torch.equal(a, b) for a, b in zip(results, expected))
            assert torch.equal(decoded, decoded_expected) and torch.equal(decode_state, after)


def test_other_streams():
    stream = torch.cuda.Stream()
    x, weight = torch.randn(2, 8, 4000, device="cuda"), torch.randn(8, 4, device="cuda")
    expected = F.causal_conv1d(x, weight)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        y = x * 1
        out = F.causal_conv1d(y, weight)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(out, expected)


# ---- autocast, torch.compile ----------------------------------------------------------------


def test_autocast():
    x, weight, bias, state = to_cuda(random(*s, dtype=torch.float32) for s in ((2, 8, 40), (8, 4), (8,), (2, 8, 3)))
    with torch.autocast("cuda", torch.bfloat16):
        out, final = F.causal_conv1d(x, weight, bias, "silu", initial_state=state, return_final_state=True)
    narrow = [a.bfloat16() for a in (x, weight, bias, state)]
    expected = F.causal_conv1d(*narrow[:3], "silu", initial_state=narrow[3], return_final_state=True)
    assert torch.equal(out, expected[0]) and torch.equal(final, expected[1])


@pytest.mark.skipif(REDUCED, reason="too slow under compute-sanitizer")
def test_compiled_with_dynamic_shapes():
    def function(x, weight, bias, state, seq_idx):
        out, final = F.causal_conv1d(x * 2, weight, bias, "silu", initial_state=state, return_final_state=True)
        return F.causal_conv1d(out, weight, seq_idx=seq_idx) + 1, final

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for b, d, t in ((2, 8, 40), (3, 12, 77), (1, 5, 300)):
        tensors = to_cuda(random(*s, dtype=torch.float32) for s in ((b, d, t), (d, 4), (d,), (b, d, 3)))
        seq_idx = packed_rows(b, t, torch.int32).cuda()
        results = []
        for f in (function, compiled):
            leaves = [a.clone().requires_grad_() for a in tensors]
            outs = f(*leaves, seq_idx)
            results.append([*outs, *torch.autograd.grad(sum(out.sum() for out in outs), leaves)])
        for want, got in zip(*results):
            torch.testing.assert_close(got, want)


@pytest.mark.skipif(REDUCED, reason="no graphs under compute-sanitizer")
def test_compiled_with_cuda_graphs():
    weight = torch.randn(8, 4, device="cuda")

    @torch.compile(mode="reduce-overhead")
    def step(x, state):
        return F.causal_conv1d_update(x, state, weight, None, "silu")

    state = torch.randn(4, 8, 3, device="cuda")
    expected_state = state.clone()
    for _ in range(4):
        x = torch.randn(4, 8, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        out = step(x, state).clone()
        assert torch.equal(out, F.causal_conv1d_update(x, expected_state, weight, None, "silu"))
        assert torch.equal(state, expected_state)
