"""conv_transpose1d's native kernels on a GPU, against float64, and what reaches them.

    make test-gpu
    CONV_TRANSPOSE1D_REDUCED=1 ... takes a part of it, for a run under compute-sanitizer
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conv_transpose1d_reference import Parameters, backward, bad_calls, double, fma, forward, raised, terms
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import torch_overlay  # noqa: F401
from torch_overlay._builds import find_build

cudnn = torch.backends.cudnn

REDUCED = bool(os.environ.get("CONV_TRANSPOSE1D_REDUCED"))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PASSES = ("forward", "grad_input", "grad_weight", "grad_bias")
EPS = 2.0**-24  # a rounding to float32
HEADLINE = Parameters(stride=2, padding=1, dilation=2)


@pytest.fixture(autouse=True)
def settings_of_the_tests() -> Iterator[None]:
    # Where PyTorch's own tests are, the flags are frozen.
    with (
        torch.backends.__allow_nonbracketed_mutation(),
        cudnn.flags(enabled=True, allow_tf32=False, conv_transpose1d_kernel="native"),
    ):
        torch.manual_seed(0)
        yield


@contextmanager
def native(*passes: str, times: int | None = 1) -> Iterator[None]:
    """Checks that the native kernels compute these passes, so often each, and no others."""
    before = cudnn._conv_transpose1d.native_counts()
    yield
    after = cudnn._conv_transpose1d.native_counts()
    counts = {name: after[name] - before[name] for name in PASSES}
    if times is None:
        assert {name for name, count in counts.items() if count} == set(passes), counts
    else:
        assert counts == {name: times * (name in passes) for name in PASSES}


def is_faster(name: str, dtype: torch.dtype, tf32: bool, input_sizes, weight_sizes, p: Parameters) -> bool:
    """What "auto" goes by: the table, and that what was timed is what was compiled."""
    major, minor = torch.cuda.get_device_capability()
    return "9.0a" in find_build().manifest["cuda"]["architectures"] and (
        torch.ops.aten_overlay.conv_transpose1d_was_faster(
            10 * major + minor, name, dtype, tf32, input_sizes, weight_sizes, p.stride, p.dilation, p.groups
        )
    )


def random(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda").to(dtype)


def rounding(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Of a result in `dtype`: half a unit in its last place."""
    info = torch.finfo(dtype)
    return np.ldexp(info.eps / 4, np.frexp(np.maximum(np.abs(value), info.tiny))[1])


def assert_near(actual: torch.Tensor, exact: np.ndarray, magnitude: np.ndarray, count: int) -> None:
    """Each element by itself; `magnitude` is the sum of its terms' absolute values, `count` how many there are."""
    error = np.abs(double(actual) - exact)
    bound = rounding(exact, actual.dtype) + (math.sqrt(count) + 4) * 2 * EPS * magnitude + count * 2.0**-149
    worst = np.unravel_index(np.argmax(error / bound), error.shape) if error.size else ()
    assert (error <= bound).all(), f"at {worst}: error {error[worst]}, bound {bound[worst]}"


def check(x, w, b, p: Parameters, gradients: bool = True) -> torch.Tensor:
    """A call and its gradients."""
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in (x, w, b)]
    with native("forward"):
        out = F.conv_transpose1d(*leaves, **p.arguments())
    x64, w64 = double(x), double(w)
    b64 = None if b is None else double(b)
    exact = forward(x64, w64, b64, p)
    assert out.dtype == x.dtype and out.shape == exact.shape and out.is_contiguous()
    assert_near(out, exact, forward(abs(x64), abs(w64), None if b is None else abs(b64), p), terms(x64, w64, p) + 1)
    if gradients:
        grad = random(*out.shape, dtype=x.dtype)
        wanted = [leaf for leaf in leaves if leaf is not None]
        with native(*PASSES[1 : 1 + len(wanted)]):
            actual = torch.autograd.grad(out, wanted, grad)
        g64, (taps, positions) = double(grad), (w.size(2), x.size(0) * out.size(2))
        magnitudes = backward(abs(g64), abs(x64), abs(w64), p)
        counts = (w.size(1) * taps, positions, positions)
        for got, leaf, want, magnitude, count in zip(actual, wanted, backward(g64, x64, w64, p), magnitudes, counts):
            assert got.dtype == leaf.dtype and got.shape == leaf.shape
            assert_near(got, want, magnitude, count)
    return out.detach()


# ---- Values ---------------------------------------------------------------------------------


@st.composite
def calls(draw):
    def one(*values):
        return draw(st.sampled_from(values))

    groups = one(1, 1, 1, 2, 3, 8)
    depthwise = draw(st.booleans())
    channels = groups * (1 if depthwise else one(1, 2, 3, 8, 17, 32, 40))
    group_out = one(1, 2) if depthwise else one(1, 3, 8, 16, 33, 64)
    taps = one(*range(1, 17), 1024)
    stride, dilation = one(*range(1, 9), 200), one(*range(1, 6)) if taps < 1024 else 1
    length = one(1, 2, 3, 7, 31, 64, 65, 129, 200)
    batch = one(1, 2, 3)
    padding = draw(st.integers(0, min(12, ((length - 1) * stride + dilation * (taps - 1)) // 2)))
    output_padding = draw(st.integers(0, max(stride, dilation) - 1))
    p = Parameters(stride, padding, output_padding, dilation, groups)
    products = batch * channels * length * group_out * taps
    assume(products < 2**24 and batch * group_out * groups * p.output_length(length, taps) < 2**19)
    return p, (batch, channels, length), (channels, group_out, taps), draw(st.booleans()), one(*DTYPES)


@settings(max_examples=20 if REDUCED else 150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(calls())
def test_against_float64(call):
    p, input_sizes, weight_sizes, bias, dtype = call
    x, w = random(*input_sizes, dtype=dtype), random(*weight_sizes, dtype=dtype)
    check(x, w, random(weight_sizes[1] * p.groups, dtype=dtype) if bias else None, p)


# (input, weight, parameters): the shapes of models, shortened, and what has a kernel of its own.
SHAPES = [
    ((2, 32, 999), (32, 64, 3), HEADLINE),
    ((1, 128, 515), (128, 128, 3), Parameters()),
    ((2, 32, 300), (32, 64, 5), Parameters(dilation=3)),
    ((2, 512, 32), (512, 256, 16), Parameters(8, 4)),
    ((1, 128, 260), (128, 64, 4), Parameters(2, 1)),
    ((1, 96, 130), (96, 48, 8), Parameters(4, 2)),
    ((1, 70, 50), (70, 35, 14), Parameters(7, 4, 1)),
    ((1, 48, 1030), (48, 24, 4), Parameters(2, 1)),
    ((2, 512, 40), (512, 1, 3), Parameters(2, 1, 1, 1, 512)),
    ((1, 80, 12), (80, 80, 1024), Parameters(256)),
    ((1, 1026, 7), (1026, 1, 1024), Parameters(256)),
    ((1, 64, 100), (64, 32, 5), Parameters(6, 0, 4, 4)),
    ((2, 16, 77), (16, 8, 3), Parameters(4, 2, 3, 6, 4)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:4] if REDUCED else SHAPES, ids=str)
def test_shapes_of_models(shape, dtype):
    input_sizes, weight_sizes, p = shape
    x, w = random(*input_sizes, dtype=dtype), random(*weight_sizes, dtype=dtype)
    check(x, w, random(weight_sizes[1] * p.groups, dtype=dtype), p)
    check(x.abs(), w.abs(), None, p, gradients=False)


def relative_error(x, w, b, p) -> float:
    exact = forward(double(x), double(w), double(b), p)
    return np.linalg.norm(double(F.conv_transpose1d(x, w, b, **p.arguments())) - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_is_accurate(shape):
    input_sizes, weight_sizes, p = shape
    x, w, b = random(*input_sizes), random(*weight_sizes), random(weight_sizes[1] * p.groups)
    with native("forward"):
        ours = relative_error(x, w, b, p)
    assert ours <= 1.5e-7


def lognormal(*sizes):
    return random(*sizes).sign() * torch.exp(6 * random(*sizes))


def spikes(*sizes):
    return torch.where(torch.rand(*sizes, device="cuda") < 0.01, random(*sizes) * 1e8, random(*sizes))


def subnormals(*sizes):
    return random(*sizes) * 2.0**-135


def wide(*sizes):
    return random(*sizes) * 2.0 ** torch.randint(-60, 60, sizes, device="cuda")


@pytest.mark.parametrize("fill_weight", (random, lognormal, spikes, wide))
@pytest.mark.parametrize("fill", (lognormal, spikes, subnormals, wide))
@pytest.mark.parametrize("shape", SHAPES[:2] if REDUCED else (*SHAPES[:3], SHAPES[6], SHAPES[8]), ids=str)
def test_range_of_float32(shape, fill, fill_weight):
    """Each output is as near as four times what a chain of float32 multiply-adds may be off."""
    (n, channels, length), weight_sizes, p = shape
    x, w = fill(n, channels, min(length, 130)), fill_weight(*weight_sizes)
    exact, magnitude = forward(double(x), double(w), None, p), forward(abs(double(x)), abs(double(w)), None, p)
    with native("forward"):
        ours = double(F.conv_transpose1d(x, w, **p.arguments()))
    chain = fma(x.cpu().numpy(), w.cpu().numpy(), None, p).astype(np.float64)
    smallest = terms(x, w, p) * 2.0**-149
    safe = np.maximum(magnitude, 2.0**-126)
    allowed = 4 * max(float((np.abs(chain - exact) / safe).max()), EPS)
    error = np.abs(ours - exact)
    assert (error <= allowed * magnitude + 4 * smallest).all(), ((error / safe).max(), allowed / 4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:1] if REDUCED else (*SHAPES[:5], SHAPES[8]), ids=str)
def test_inf_and_nan(shape, dtype):
    """They reach the outputs that they are a term of, and no others, and are there what float32 makes of them."""
    input_sizes, weight_sizes, p = shape
    special = (math.inf, -math.inf, math.nan)
    for where in ("input", "weight", "both"):
        x, w = random(*input_sizes, dtype=dtype), random(*weight_sizes, dtype=dtype)
        for tensor, name in ((x, "input"), (w, "weight")):
            if where in (name, "both"):
                flat = tensor.view(-1)
                flat[torch.randint(flat.numel(), (3,))] = torch.tensor(special, device="cuda", dtype=dtype)
                flat[torch.randint(flat.numel(), (9,))] = 0  # times infinity: NaN
        b = random(weight_sizes[1] * p.groups, dtype=dtype)
        with native("forward"):
            ours = double(F.conv_transpose1d(x, w, b, **p.arguments()))
        with np.errstate(invalid="ignore"):
            exact = forward(double(x), double(w), double(b), p)
        same = np.where(np.isfinite(exact), np.isfinite(ours), (ours == exact) | (np.isnan(ours) & np.isnan(exact)))
        assert same.all(), (where, int((~same).sum()))
        finite = np.isfinite(exact)
        np.testing.assert_allclose(ours[finite], exact[finite], rtol=torch.finfo(dtype).eps * 2, atol=1e-3)


@pytest.mark.parametrize("n, length", ((2, 70), (9, 4099)))
def test_gradients_of_inf_and_nan(n, length):
    p = HEADLINE
    x, w = random(n, 32, length), random(32, 64, 3)
    x[1, 3, 5], w[4, 7, 1] = math.inf, math.nan
    grad = random(n, 64, p.output_length(length, 3))
    grad[0, 1, 9] = -math.inf
    with native(*PASSES[1:]):
        actual = torch.ops.aten.convolution_backward(grad, x, w, [64], *p.convolution_arguments(), [True] * 3)
    with np.errstate(invalid="ignore"):
        expected = backward(double(grad), double(x), double(w), p)
    for got, want in zip(actual, expected):
        np.testing.assert_array_equal(np.isnan(double(got)), np.isnan(want))
        np.testing.assert_array_equal(np.isposinf(double(got)), np.isposinf(want))
        np.testing.assert_array_equal(np.isneginf(double(got)), np.isneginf(want))


# Few channels and enough positions for the kernels that read tensors as they lie.
THIN = [
    ((9, 32, 4099), (32, 64, 3), HEADLINE),
    ((9, 31, 4100), (31, 62, 5), Parameters(dilation=3)),
    ((9, 64, 4098), (64, 32, 4), Parameters(2, 1)),
    ((9, 17, 4099), (17, 21, 5), Parameters(3, 2, 1, 2)),
    ((9, 40, 4097), (40, 33, 3), Parameters()),
    ((9, 70, 1031), (70, 9, 7), Parameters(2, 0, 0, 1, 2)),
]


def gradients_in_float64(grad, x, w, p: Parameters) -> tuple[np.ndarray, ...]:
    """By PyTorch on the GPU, which takes these shapes in less time than the reference."""
    bias = torch.zeros(grad.size(1), device="cuda", dtype=torch.float64)
    leaves = [tensor.double().requires_grad_() for tensor in (x, w, bias)]
    return tuple(map(double, torch.autograd.grad(F.conv_transpose1d(*leaves, **p.arguments()), leaves, grad.double())))


@pytest.mark.parametrize("fill", (random, lognormal, spikes, subnormals, wide, "float16", "bfloat16"))
@pytest.mark.parametrize("shape", THIN[:1] if REDUCED else THIN, ids=str)
def test_gradients_of_thin_shapes(shape, fill):
    (n, channels, length), weight_sizes, p = shape
    dtype = getattr(torch, fill) if isinstance(fill, str) else torch.float32
    fill = random if isinstance(fill, str) else fill
    out_length = p.output_length(length, weight_sizes[2])
    x, w = fill(n, channels, length).to(dtype), random(*weight_sizes, dtype=dtype)
    grad = fill(n, weight_sizes[1] * p.groups, out_length).to(dtype)
    with native(*PASSES[1:]):
        actual = torch.ops.aten.convolution_backward(
            grad, x, w, [grad.size(1)], *p.convolution_arguments(), [True] * 3)  # fmt: skip
    exact = gradients_in_float64(grad, x, w, p)
    magnitudes = gradients_in_float64(grad.abs(), x.abs(), w.abs(), p)
    counts = (weight_sizes[1] * weight_sizes[2], n * out_length, n * out_length)
    for got, want, magnitude, count in zip(actual, exact, magnitudes, counts):
        assert_near(got, want, magnitude, count)


def amid_nan(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Contiguous, with NaN before and behind it; as it does not matter how it is aligned, neither do these."""
    around = tensor.new_full((tensor.numel() + 16,), math.nan)
    return around[offset : offset + tensor.numel()].view_as(tensor).copy_(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", THIN[:1] if REDUCED else (*THIN[:3], THIN[4]), ids=str)
def test_thin_shapes_at_any_address(shape, dtype):
    input_sizes, weight_sizes, p = shape
    x, w = random(*input_sizes, dtype=dtype), random(*weight_sizes, dtype=dtype)
    grad = random(input_sizes[0], weight_sizes[1], p.output_length(input_sizes[2], weight_sizes[2]), dtype=dtype)

    def run(x, w, grad):
        out = F.conv_transpose1d(x, w, **p.arguments())
        grads = torch.ops.aten.convolution_backward(
            grad, x, w, [grad.size(1)], *p.convolution_arguments(), [True] * 3)  # fmt: skip
        return out, *grads

    expected = run(x, w, grad)
    for offset in range(1, 16 // dtype.itemsize, 2):
        with native(*PASSES):
            actual = run(*(amid_nan(tensor, offset) for tensor in (x, w, grad)))
        assert all(torch.equal(got, want) for got, want in zip(actual, expected)), offset


def test_outputs_that_nothing_reaches_are_the_bias_whatever_the_input():
    x, w, b = random(2, 32, 200), random(32, 64, 3), random(64)
    x[0, 0, 100], w[0, 0, 0] = math.nan, math.inf
    with native("forward"):
        out = F.conv_transpose1d(x, w, b, **HEADLINE.arguments())
    assert torch.equal(out[:, :, ::2], b[:, None].expand_as(out[:, :, ::2]))


def test_adjoint_of_conv1d():
    """<conv1d(y), x> = <y, conv_transpose1d(x)>"""
    for stride, padding, dilation, groups in ((1, 0, 1, 1), (2, 1, 2, 1), (3, 2, 4, 2), (5, 0, 1, 4)):
        w, y = random(8, 12 // groups, 4), random(3, 12, 103)
        kwargs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        down = F.conv1d(y.double(), w.double(), **kwargs)
        x = random(*down.shape)
        p = Parameters(groups=groups, stride=stride, padding=padding, dilation=dilation)
        rest = 103 - p.output_length(down.size(2), 4)
        with native("forward"):
            up = F.conv_transpose1d(x, w, output_padding=rest, **kwargs)
        left, right = (down * x.double()).sum(), (y.double() * up.double()).sum()
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_bits_on_every_run(dtype):
    input_sizes, weight_sizes, p = SHAPES[3]
    x, w, b = random(*input_sizes, dtype=dtype), random(*weight_sizes, dtype=dtype), random(256, dtype=dtype)
    grad = random(2, 256, p.output_length(32, 16), dtype=dtype)

    def run():
        out = F.conv_transpose1d(x, w, b, **p.arguments())
        grads = torch.ops.aten.convolution_backward(grad, x, w, [256], *p.convolution_arguments(), [True] * 3)
        return out, *grads

    with native(*PASSES, times=6):
        results = [run() for _ in range(5)]
        with cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            results.append(run())
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


# ---- Sizes and strides ----------------------------------------------------------------------


@pytest.mark.parametrize("input_sizes, weight_sizes, groups", [
    ((65537, 1, 3), (1, 1, 3), 1),
    ((1, 65537, 2), (65537, 1, 3), 1),
    ((1, 1, 5), (1, 65537, 3), 1),
    ((1, 65536, 3), (65536, 1, 2), 65536),
    ((70000, 2, 1), (2, 2, 1), 2),
])  # fmt: skip
def test_more_than_65535_of_anything(input_sizes, weight_sizes, groups):
    p = Parameters(2, 1, 1, 1, groups) if weight_sizes[2] > 1 else Parameters(groups=groups)
    check(random(*input_sizes), random(*weight_sizes), random(weight_sizes[1] * groups), p)


@pytest.mark.skipif(REDUCED, reason="too large for compute-sanitizer")
def test_output_of_more_than_2_31_elements():
    length = 2**29 + 3
    p = Parameters(stride=2, padding=1)
    x, w, b = random(1, 1, length, dtype=torch.bfloat16), random(1, 2, 4), random(2)
    w, b = w.bfloat16(), b.bfloat16()
    with native("forward"):
        out = F.conv_transpose1d(x, w, b, **p.arguments())
    assert out.numel() > 2**31
    tail = forward(double(x[:, :, -40:]), double(w), double(b), p)[:, :, -60:]
    np.testing.assert_allclose(double(out[:, :, -60:]), tail, rtol=2**-7, atol=1e-6)
    middle = forward(double(x[:, :, 2**28 : 2**28 + 40]), double(w), double(b), p)[:, :, 10:60]
    np.testing.assert_allclose(double(out[:, :, 2**29 + 10 : 2**29 + 60]), middle, rtol=2**-7, atol=1e-6)
    del out
    torch.cuda.empty_cache()


@pytest.mark.skipif(REDUCED, reason="too large for compute-sanitizer")
def test_batch_of_more_than_2_31_elements():
    x, w = random(2**15 + 1, 1, 2**15, dtype=torch.bfloat16), random(1, 1, 4, dtype=torch.bfloat16)
    p = Parameters(stride=2, padding=1)
    with native("forward"):
        out = F.conv_transpose1d(x, w, **p.arguments())
    assert out.numel() > 2**31
    for row in (0, 2**14, 2**15):
        exact = forward(double(x[row : row + 1]), double(w), None, p)
        np.testing.assert_allclose(double(out[row : row + 1]), exact, rtol=2**-7, atol=1e-6)
    del out
    torch.cuda.empty_cache()


@pytest.mark.skipif(REDUCED, reason="too large for compute-sanitizer")
def test_thin_shape_of_more_than_2_31_elements():
    p, n, length = HEADLINE, 4, 2**22 + 1
    x, w = random(n, 32, length, dtype=torch.bfloat16), random(32, 64, 3, dtype=torch.bfloat16)
    b, grad = random(64, dtype=torch.bfloat16), random(n, 64, p.output_length(length, 3), dtype=torch.bfloat16)
    assert grad.numel() > 2**31

    def gradients(grad, x):
        return torch.ops.aten.convolution_backward(grad, x, w, [64], *p.convolution_arguments(), [True] * 3)

    with native(*PASSES):
        out = F.conv_transpose1d(x, w, b, **p.arguments())
        grad_x, grad_w, grad_b = gradients(grad, x)
    for row in (0, n - 1):
        for first in (0, length // 2, length - 40):
            # What does not depend on inputs outside of [first, first + 40).
            here, there = slice(first, first + 40), slice(2 * first, 2 * first + 81)
            x64, grad64 = double(x[row : row + 1, :, here]), double(grad[row : row + 1, :, there])
            exact, magnitude = (forward(f(x64), f(double(w)), f(double(b)), p) for f in (np.asarray, np.abs))
            assert_near(out[row : row + 1, :, there][:, :, 10:70], exact[:, :, 10:70], magnitude[:, :, 10:70], 97)
            exact, magnitude = (backward(f(grad64), f(x64), f(double(w)), p)[0] for f in (np.asarray, np.abs))
            assert_near(grad_x[row : row + 1, :, here][:, :, 9:31], exact[:, :, 9:31], magnitude[:, :, 9:31], 192)
    by_row = [gradients(grad[row : row + 1], x[row : row + 1])[1:] for row in range(n)]
    for got, rows in zip((grad_w, grad_b), zip(*by_row)):
        want = sum(row.double() for row in rows)
        assert (got.double() - want).norm() <= 2**-7 * want.norm()
    del x, grad, out, grad_x
    torch.cuda.empty_cache()


def strided(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    a, b, c = tensor.shape
    views = {
        "offset": lambda: tensor.new_empty(tensor.numel() + 3)[3:].view(a, b, c),
        "pitch": lambda: tensor.new_empty(a, b + 1, c + 3)[:, 1:, 2 : c + 2],
        "step": lambda: tensor.new_empty(a, b, 2 * c + 1)[:, :, 1::2],
        "transposed": lambda: tensor.new_empty(b, a, c).transpose(0, 1),
        "reversed": lambda: tensor.new_empty(c, b, a).permute(2, 1, 0),
    }
    return views[layout]().copy_(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ("offset", "pitch", "step", "transposed", "reversed"))
def test_strides(layout, dtype):
    p = Parameters(stride=2, padding=1, output_padding=1)
    x, w, b = random(3, 24, 50, dtype=dtype), random(24, 16, 4, dtype=dtype), random(16, dtype=dtype)
    expected = check(x, w, b, p)
    grad = random(*expected.shape, dtype=dtype)
    arguments = p.convolution_arguments()
    expected_grads = torch.ops.aten.convolution_backward(grad, x, w, [16], *arguments, [True] * 3)
    x, w, grad = (strided(tensor, layout) for tensor in (x, w, grad))
    with native(*PASSES):
        assert torch.equal(F.conv_transpose1d(x, w, b, **p.arguments()), expected)
        grads = torch.ops.aten.convolution_backward(grad, x, w, [16], *arguments, [True] * 3)
    assert all(torch.equal(got, want) for got, want in zip(grads, expected_grads))


def test_expanded_and_single_element_strides():
    p = HEADLINE
    w = random(32, 64, 3)
    x = random(1, 32, 1).expand(3, 32, 40)
    grad = random(64, 1)[None].expand(3, 64, p.output_length(40, 3))
    with native(*PASSES):
        out = F.conv_transpose1d(x, w, **p.arguments())
        grads = torch.ops.aten.convolution_backward(grad, x, w, [64], *p.convolution_arguments(), [True] * 3)
    assert torch.equal(out, F.conv_transpose1d(x.contiguous(), w, **p.arguments()))
    dense = grad.contiguous()
    again = torch.ops.aten.convolution_backward(
        dense, x.contiguous(), w, [64], *p.convolution_arguments(), [True] * 3
    )
    assert all(torch.equal(a, b) for a, b in zip(grads, again))
    one = random(1, 1, 1).as_strided((1, 1, 1), (7, 5, 3))
    weight = random(1, 1, 3).as_strided((1, 1, 3), (11, 13, 1))
    check(one, weight, random(1), Parameters(stride=2))


def test_weights_that_lie_channels_last_go_where_they_went():
    """There, cuDNN's output lies channels-last too, which shows in its strides."""
    x, w = random(2, 8, 20), strided(random(8, 4, 3).transpose(1, 2).contiguous(), "offset").transpose(1, 2)
    with native():
        ours = F.conv_transpose1d(x, w)
    with cudnn.flags(enabled=True, allow_tf32=False, conv_transpose1d_kernel="cudnn"):
        theirs = F.conv_transpose1d(x, w)
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, F.conv_transpose1d(x, w.contiguous()), rtol=1e-5, atol=1e-5)


def memory_beside_the_output(x, w, b, p: Parameters) -> int:
    F.conv_transpose1d(x, w, b, **p.arguments())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with native("forward"):
        out = F.conv_transpose1d(x, w, b, **p.arguments())
    return torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_is_the_output_where_channels_are_few(dtype):
    x, w, b = random(4, 32, 2**17, dtype=dtype), random(32, 64, 3, dtype=dtype), random(64, dtype=dtype)
    assert memory_beside_the_output(x, w, b, HEADLINE) < 2**20


def test_memory_is_the_output_where_one_tile_has_all_rows():
    x, w, b = random(4, 128, 2**14), random(128, 128, 3), random(128)
    assert memory_beside_the_output(x, w, b, Parameters()) < 2**20


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_operands_take_memory_elsewhere(dtype):
    x, w, b = random(8, 256, 2**12, dtype=dtype), random(256, 128, 16, dtype=dtype), random(128, dtype=dtype)
    extra = memory_beside_the_output(x, w, b, Parameters(8, 4))
    planes = 1.6 if dtype == torch.float32 else 1.1  # three terms of two bytes, and the columns that tiles share
    assert extra < planes * x.numel() * x.element_size() + 3 * w.numel() * w.element_size()


# ---- Ways in --------------------------------------------------------------------------------


def example(dtype=torch.float32):
    return random(3, 24, 37, dtype=dtype), random(24, 10, 4, dtype=dtype), random(10, dtype=dtype)


P = Parameters(stride=2, padding=1, output_padding=1)
ARGUMENTS = P.arguments()  # outside of what is compiled


def call(x, w, b):
    return F.conv_transpose1d(x, w, b, **ARGUMENTS)


def test_module_unbatched_and_inference_mode():
    x, w, b = example()
    expected = call(x, w, b)
    module = torch.nn.ConvTranspose1d(24, 10, 4, 2, 1, 1, device="cuda")
    module.load_state_dict({"weight": w, "bias": b})
    with native("forward", times=4), torch.no_grad():
        assert torch.equal(module(x), expected)
        assert torch.equal(call(x[1], w, b), expected[1])
        with torch.inference_mode():
            assert torch.equal(call(x, w, b), expected)
        assert torch.equal(torch._VF.conv_transpose1d(x, w, b, (2,), (1,), (1,), 1, (1,)), expected)


@pytest.mark.parametrize("in_dims", ((0, None, None), (0, 0, 0), (None, 0, None), (2, 1, None)))
def test_vmap(in_dims):
    x, w, b = example()

    def batched(tensor, dim):
        return tensor if dim is None else torch.stack([tensor, 2 * tensor, tensor - 1], dim)

    tensors = [batched(tensor, dim) for tensor, dim in zip((x, w, b), in_dims)]
    with native("forward", times=None):
        out = torch.vmap(call, in_dims)(*tensors)
    for i in range(3):
        one = [tensor if dim is None else tensor.select(dim, i) for tensor, dim in zip(tensors, in_dims)]
        torch.testing.assert_close(out[i], call(*one), rtol=1e-5, atol=1e-5)


def test_forward_mode_and_second_derivatives():
    x, w, b = example()
    tangents = tuple(torch.randn_like(tensor) for tensor in (x, w, b))
    with native("forward", times=None):
        _, tangent = torch.func.jvp(call, (x, w, b), tangents)
    exact = torch.func.jvp(call, tuple(t.double() for t in (x, w, b)), tuple(t.double() for t in tangents))[1]
    torch.testing.assert_close(tangent.double(), exact, rtol=1e-5, atol=1e-4)

    def second(tensors):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        first = torch.autograd.grad(call(*leaves).pow(2).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)

    with native(*PASSES, times=None):
        actual = second((x, w, b))
    for got, want in zip(actual, second((x.double(), w.double(), b.double()))):
        assert (got.double() - want).norm() <= 1e-5 * want.norm()


def test_float64_goes_where_it_went():
    leaves = [random(*sizes).double().requires_grad_() for sizes in ((1, 2, 4), (2, 3, 3), (3,))]
    with native():
        assert torch.autograd.gradcheck(call, leaves)
        assert torch.autograd.gradgradcheck(call, leaves)


def test_autocast():
    x, w, b = example()
    for dtype in (torch.float16, torch.bfloat16):
        with native("forward"), torch.autocast("cuda", dtype):
            out = call(x, w, b)
        assert out.dtype == dtype and torch.equal(out, call(x.to(dtype), w.to(dtype), b.to(dtype)))


def test_compile_and_export():
    tensors = [tensor.requires_grad_() for tensor in example()]
    expected = call(*tensors)
    expected_grads = torch.autograd.grad(expected.sin().sum(), tensors)
    for dynamic in (False, True):
        torch._dynamo.reset()
        # Inductor makes a sum of its own of the bias's gradient.
        with native(*PASSES[:3], times=None):
            out = torch.compile(call, fullgraph=True, dynamic=dynamic)(*tensors)
            grads = torch.autograd.grad(out.sin().sum(), tensors)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert out.stride() == expected.stride()
        for got, want in zip(grads, expected_grads):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    class Module(torch.nn.Module):
        def forward(self, x, w, b):
            return call(x, w, b)

    detached = tuple(tensor.detach() for tensor in tensors)
    program = torch.export.export(Module(), detached)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert names == {"aten.conv_transpose1d.default"}
    with native("forward"):
        assert torch.equal(program.module()(*detached), expected)


def test_fake_tensors_agree():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for layout in ("offset", "pitch", "reversed"):
        x, w, b = example()
        x, w = strided(x, layout), strided(w, layout)
        out = call(x, w, b)
        with FakeTensorMode() as mode:
            fake = call(*(mode.from_tensor(tensor) for tensor in (x, w, b)))
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (out.shape, out.stride(), out.dtype, out.device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", (SHAPES[0], SHAPES[3], SHAPES[8]), ids=str)
def test_cuda_graph(shape, dtype):
    input_sizes, weight_sizes, p = shape
    x, w = random(*input_sizes, dtype=dtype), random(*weight_sizes, dtype=dtype)
    b = random(weight_sizes[1] * p.groups, dtype=dtype)
    grad = random(x.size(0), b.numel(), p.output_length(x.size(2), w.size(2)), dtype=dtype)

    def run():
        out = F.conv_transpose1d(x, w, b, **p.arguments())
        arguments = p.convolution_arguments()
        return out, *torch.ops.aten.convolution_backward(grad, x, w, [b.numel()], *arguments, [True] * 3)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with native(*PASSES), torch.cuda.graph(graph):
        captured = run()
    for _ in range(3):
        for tensor in (x, w, b, grad):
            tensor.copy_(random(*tensor.shape, dtype=dtype))
        graph.replay()
        assert all(torch.equal(got, want) for got, want in zip(captured, run()))


def test_streams_side_by_side():
    input_sizes, weight_sizes, p = SHAPES[0]
    tensors = [(random(*input_sizes), random(*weight_sizes), random(64)) for _ in range(8)]
    expected = [F.conv_transpose1d(*three, **p.arguments()) for three in tensors]
    streams = [torch.cuda.Stream() for _ in tensors]
    torch.cuda.synchronize()
    for _ in range(20):
        outs = []
        for stream, three in zip(streams, tensors):
            with torch.cuda.stream(stream):
                outs.append(F.conv_transpose1d(*three, **p.arguments()))
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out, want in zip(outs, expected))


# ---- What decides ---------------------------------------------------------------------------


def test_everything_else_goes_where_it_went():
    x, w = random(2, 4, 9), random(4, 6, 3)
    others = {
        "conv1d": lambda: F.conv1d(x, random(6, 4, 3)),
        "two dimensions": lambda: F.conv_transpose2d(x[:, :, None], w[:, :, None]),
        "three dimensions": lambda: F.conv_transpose3d(x[:, :, None, None], w[:, :, None, None]),
        "complex128": lambda: F.conv_transpose1d(x.to(torch.complex128), w.to(torch.complex128)),
        "no batch": lambda: F.conv_transpose1d(x[:0], w),
        "no channels": lambda: F.conv_transpose1d(x[:, :0], w[:0]),
        "no output channels": lambda: F.conv_transpose1d(x, w[:, :0]),
        "on the CPU": lambda: F.conv_transpose1d(x.cpu(), w.cpu()),
    }
    for call in others.values():
        with native():
            ours = raised(call)
        with cudnn.flags(enabled=True, conv_transpose1d_kernel="cudnn"):
            assert raised(call) == ours


def test_complex64_is_made_of_real_convolutions():
    x, w = torch.complex(random(2, 4, 9), random(2, 4, 9)), torch.complex(random(4, 6, 3), random(4, 6, 3))
    with native("forward", times=None):
        out = F.conv_transpose1d(x, w)
    exact = F.conv_transpose1d(x.to(torch.complex128), w.to(torch.complex128))
    torch.testing.assert_close(out.to(torch.complex128), exact, rtol=1e-5, atol=1e-5)


def test_empty_sizes():
    w, b = random(4, 6, 3), random(6)
    x = random(0, 4, 9).requires_grad_()
    weight = w.detach().requires_grad_()
    out = F.conv_transpose1d(x, weight, b)
    assert out.shape == (0, 6, 11)
    grads = torch.autograd.grad(out.sum(), (x, weight))
    assert [g.shape for g in grads] == [x.shape, w.shape] and not grads[1].any()


def test_the_switch():
    x, w, b = example()
    expected = call(x, w, b)
    with cudnn.flags(enabled=True, allow_tf32=False, conv_transpose1d_kernel="cudnn"), native():
        torch.testing.assert_close(call(x, w, b), expected, rtol=1e-5, atol=1e-5)
    cudnn.conv_transpose1d_kernel = "auto"
    with native(*["forward"] * is_faster("forward", x.dtype, False, x.shape, w.shape, P)):
        call(x, w, b)


@pytest.mark.parametrize("math_name", ("float32", "tf32", "bfloat16"))
@pytest.mark.parametrize("shape", [
    ((16, 64, 4096), (64, 32, 4), Parameters(2, 1)),
    ((16, 512, 32), (512, 256, 16), Parameters(8, 4)),
    ((1, 1026, 224), (1026, 1, 1024), Parameters(256)),
], ids=str)  # fmt: skip
def test_auto_computes_each_pass_once(shape, math_name):
    """By the kernels that were measured to be faster: shapes of which each has some passes of either kind."""
    input_sizes, weight_sizes, p = shape
    dtype = torch.bfloat16 if math_name == "bfloat16" else torch.float32
    sizes = input_sizes, weight_sizes, weight_sizes[1:2]
    leaves = [random(*each, dtype=dtype).requires_grad_() for each in sizes]
    ours = [name for name in PASSES if is_faster(name, dtype, math_name == "tf32", input_sizes, weight_sizes, p)]
    with cudnn.flags(enabled=True, allow_tf32=math_name == "tf32", conv_transpose1d_kernel="auto"), native(*ours):
        out = F.conv_transpose1d(*leaves, **p.arguments())
        grad = random(*out.shape, dtype=dtype)
        grads = torch.autograd.grad(out, leaves, grad)
    exact = [tensor.detach().double().requires_grad_() for tensor in leaves]
    exact_out = F.conv_transpose1d(*exact, **p.arguments())
    tolerance = 2e-6 if math_name == "float32" else 4e-3
    for got, want in zip((out, *grads), (exact_out, *torch.autograd.grad(exact_out, exact, grad.double()))):
        assert (got.double() - want).norm() <= tolerance * want.norm()


def test_without_cudnn():
    x, w, b = example()
    expected = call(x, w, b)
    with cudnn.flags(enabled=False, conv_transpose1d_kernel="auto"), native():
        torch.testing.assert_close(call(x, w, b), expected, rtol=1e-5, atol=1e-5)
    with cudnn.flags(enabled=False, allow_tf32=False, conv_transpose1d_kernel="native"), native("forward"):
        assert torch.equal(call(x, w, b), expected)


def test_deterministic_and_benchmark_change_nothing():
    x, w, b = example()
    expected = call(x, w, b)
    for setting in ({"deterministic": True}, {"benchmark": True}):
        with cudnn.flags(enabled=True, allow_tf32=False, **setting), native("forward"):
            assert torch.equal(call(x, w, b), expected)
    torch.use_deterministic_algorithms(True)
    try:
        with native(*PASSES):
            leaves = [tensor.requires_grad_() for tensor in example()]
            torch.autograd.grad(call(*leaves).sum(), leaves)
    finally:
        torch.use_deterministic_algorithms(False)


def test_tf32_follows_pytorchs_switches():
    input_sizes, weight_sizes, p = SHAPES[3]
    x, w, b = random(*input_sizes), random(*weight_sizes), random(256)

    def error():
        with native("forward"):
            return relative_error(x, w, b, p)

    assert error() <= 1.5e-7
    with cudnn.flags(enabled=True, allow_tf32=True):
        with_tf32 = error()
    with cudnn.flags(enabled=True, allow_tf32=True, conv_transpose1d_kernel="cudnn"):
        assert with_tf32 <= 1.5 * max(relative_error(x, w, b, p), 1e-4)
    if hasattr(type(cudnn), "conv"):
        before = cudnn.conv.fp32_precision
        try:
            cudnn.conv.fp32_precision = "tf32"
            assert error() == with_tf32
            cudnn.conv.fp32_precision = "ieee"
            assert error() <= 1.5e-7
        finally:
            cudnn.conv.fp32_precision = before


def test_one_gradient_at_a_time():
    x, w, _ = example()
    grad = random(3, 10, P.output_length(37, 4))
    arguments = P.convolution_arguments()
    together = torch.ops.aten.convolution_backward(grad, x, w, [10], *arguments, [True] * 3)
    for i, name in enumerate(PASSES[1:]):
        with native(name):
            one = torch.ops.aten.convolution_backward(grad, x, w, [10], *arguments, [i == j for j in range(3)])
        assert [g is None for g in one] == [i != j for j in range(3)]
        # The bias's gradient comes from another kernel if the weight's is asked for, too.
        rtol, atol = (1e-6, 1e-5) if name == "grad_bias" else (0, 0)
        torch.testing.assert_close(one[i], together[i], rtol=rtol, atol=atol)


# ---- Inputs that broke others ---------------------------------------------------------------


def ones(*sizes):
    return torch.ones(*sizes, device="cuda")


def test_values_known_by_hand():
    with native("forward", times=3):
        out = F.conv_transpose1d(ones(1, 1, 6), ones(1, 1, 3), stride=2, padding=1, output_padding=1, dilation=2)
        assert out.flatten().tolist() == [0, 2, 0, 3, 0, 3, 0, 3, 0, 3, 0, 2, 0, 1]
        assert F.conv_transpose1d(ones(1, 1, 2), ones(1, 1, 2), stride=2).flatten().tolist() == [1, 1, 1, 1]
        wide = F.conv_transpose1d(ones(1, 1, 1), ones(1, 1, 1), stride=9, output_padding=8)
        assert wide.flatten().tolist() == [1] + 8 * [0]


@pytest.mark.parametrize("channels", (1, 2))
@pytest.mark.parametrize("group_out", (1, 2))
def test_few_channels_with_dilation_in_bfloat16(channels, group_out):
    x, w = random(1, channels, 224, dtype=torch.bfloat16), random(channels, group_out, 3, dtype=torch.bfloat16)
    check(x, w, random(group_out, dtype=torch.bfloat16), HEADLINE)


@pytest.mark.parametrize("input_sizes, weight_sizes, p", [
    ((1, 64, 400), (64, 32, 4), Parameters(2, 1)),
    ((2, 512, 32), (512, 8, 6), Parameters(3, 2, 1)),
    ((2, 512, 32), (512, 1, 6), Parameters(3, 2, 1, 1, 512)),
    ((1, 512, 1245), (512, 2, 16), Parameters(8, 4)),
    ((2, 100, 10), (100, 1, 10000), Parameters(1000)),
    ((1, 1, 1), (1, 1, 3), Parameters(1, 0, 1, 2)),
    ((1, 192, 27), (192, 192, 5), Parameters(2)),
])  # fmt: skip
def test_shapes_that_broke_others(input_sizes, weight_sizes, p):
    check(random(*input_sizes), random(*weight_sizes), random(weight_sizes[1] * p.groups), p)


def test_huge_stride():
    """With one input it does not matter; what no memory could hold is an error."""
    x, w = random(1, 2, 1), random(2, 3, 3)
    with native("forward"):
        out = F.conv_transpose1d(x, w, stride=2**31 - 1)
    torch.testing.assert_close(out, F.conv_transpose1d(x, w), rtol=1e-6, atol=1e-6)
    for stride in (2**31 - 1, 2**31, 2**62):
        kind, _ = raised(lambda stride=stride: F.conv_transpose1d(x.expand(1, 2, 4096), w, stride=stride))
        assert issubclass(kind, RuntimeError), stride


@pytest.mark.parametrize("input_sizes,weight_sizes,stride", [
    ((1, 8, 2), (8, 16, 2), 2**20 - 1),
    ((1, 1, 1), (1, 2**21, 2), 8),
], ids=str)  # fmt: skip
def test_a_slot_of_more_than_32_bits(input_sizes, weight_sizes, stride):
    """Which shared memory cannot have: other kernels take the gradients."""
    check(random(*input_sizes), random(*weight_sizes), None, Parameters(stride))


def test_changing_lengths_need_no_plan():
    """A call allocates its output and reads nothing back, whatever the length was before."""
    w, b = random(64, 32, 4), random(32)
    for length in (100, 101, 2, 999, 37):
        x = random(1, 64, length)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with native("forward"):
                F.conv_transpose1d(x, w, b, stride=2, padding=1)
        finally:
            torch.cuda.set_sync_debug_mode("default")


# Last: what cuDNN itself makes of such calls is not ours to vouch for.
def on_gpu(*sizes, dtype=torch.float32):
    return random(*sizes, dtype=dtype)


@pytest.mark.parametrize("name", list(bad_calls(lambda *sizes, dtype=None: torch.empty(sizes, dtype=dtype))))
def test_errors_are_those_of_pytorch(name):
    calls = bad_calls(on_gpu)
    with cudnn.flags(enabled=True, allow_tf32=False, conv_transpose1d_kernel="cudnn"):
        theirs = raised(calls[name])
    with native():
        assert raised(calls[name]) == theirs


def test_errors_of_mixed_devices_are_those_of_pytorch():
    x, w, b = example()
    grad = random(3, 10, P.output_length(37, 4))
    arguments = P.convolution_arguments()
    calls = {
        "weight": lambda: call(x, w.cpu(), b),
        "input": lambda: call(x.cpu(), w, b),
        "bias": lambda: call(x, w, b.cpu()),
        "backward": lambda: torch.ops.aten.convolution_backward(
            grad, x, w.cpu(), [10], *arguments, [True, True, True]
        ),
    }
    expected = {
        "weight": "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "bias": "Input type (torch.cuda.FloatTensor) and bias type (torch.FloatTensor) should be the same",
        "backward": "Expected all tensors to be on the same device",
    }
    for name, bad in calls.items():
        with native():
            kind, message = raised(bad)
        assert issubclass(kind, RuntimeError) and expected.get(name, "") in message, message
