"""Adaptive average pooling on mps: what its OpInfos have no samples for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from metal_host.executor import SCHEDULES
from metal_host.simulated_mps import counting
from mps_checks import far_apart, left_to_the_cpu

pytestmark = pytest.mark.usefixtures("schedule")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
POOL = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
# Of the input and the output: smaller, larger, divisible and not, and a mixture.
SIZES = [
    ((7,), (3,)), ((3,), (7,)), ((8,), (4,)), ((1,), (5,)),
    ((5, 7), (2, 3)), ((4, 6), (2, 3)), ((2, 9), (5, 4)), ((3, 3), (3, 3)), ((26, 39), (2, 2)),
    ((5, 4, 7), (2, 3, 4)), ((4, 4, 4), (2, 2, 2)), ((2, 3, 4), (5, 2, 9)), ((1, 6, 5), (1, 4, 3)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("size", "output_size"), SIZES, ids=str)
def test_sizes(dtype, size, output_size):
    """Half precision is compared with float32: the CPU adds up in half."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, *size).to(dtype)
    pool = POOL[len(size)]
    for batched in (True, False):
        input = x if batched else x[1]
        on_mps = input.to("mps").requires_grad_()
        with counting() as counts:
            actual = pool(on_mps, output_size)
            direction = torch.randn(actual.shape).to(dtype)
            actual.backward(direction.to("mps"))
        assert len(counts.kernels) == 2 and not left_to_the_cpu(counts), counts
        wide = input.float().clone().requires_grad_()
        expected = pool(wide, output_size)
        expected.backward(direction.float())
        tolerance = {"rtol": torch.finfo(dtype).eps, "atol": 1e-6}
        assert actual.dtype == dtype and on_mps.grad.dtype == dtype
        torch.testing.assert_close(actual.cpu().float(), expected, **tolerance)
        torch.testing.assert_close(on_mps.grad.cpu().float(), wide.grad, **tolerance)


def strides_match(actual, expected):
    assert actual.shape == expected.shape and actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("spatial", (2, 3))
def test_channels_last(spatial):
    torch.manual_seed(0)
    layout = {2: torch.channels_last, 3: torch.channels_last_3d}[spatial]
    x = torch.randn(2, 5, *(4, 6, 7)[:spatial]).contiguous(memory_format=layout)
    output_size = (3, 4, 2)[:spatial]
    on_mps, on_cpu = x.to("mps").requires_grad_(), x.requires_grad_()
    actual, expected = (POOL[spatial](each, output_size) for each in (on_mps, on_cpu))
    strides_match(actual.detach(), expected.detach())
    backward = {2: torch.ops.aten._adaptive_avg_pool2d_backward, 3: torch.ops.aten._adaptive_avg_pool3d_backward}[
        spatial
    ]
    grad = torch.randn(expected.shape)
    strides_match(backward(grad.to("mps"), on_mps.detach()), backward(grad, on_cpu.detach()))


def test_out():
    torch.manual_seed(0)
    aten = torch.ops.aten
    x, grad = torch.randn(2, 3, 5, 4, 7), torch.randn(2, 3, 2, 3, 4)
    on_mps = x.to("mps")
    out, grad_input = torch.empty(0, device="mps"), torch.empty(0, device="mps")
    around = torch.zeros(2, 3, 2, 3, 9, device="mps")
    wide = around[..., 1::2]
    flat = torch.empty(6, 4, 3, device="mps")
    with counting() as counts:
        assert aten.adaptive_avg_pool3d.out(on_mps, (2, 3, 4), out=out) is out
        aten.adaptive_avg_pool3d.out(on_mps, (2, 3, 4), out=wide)
        assert aten.adaptive_avg_pool3d_backward.grad_input(grad.to("mps"), on_mps, grad_input=grad_input) is grad_input
        assert aten.adaptive_avg_pool2d.out(on_mps[:, :, 0, :, :].reshape(6, 4, 7), (4, 3), out=flat) is flat
    assert counts.kernels == {"adaptive_avg_pool_float": 3, "adaptive_avg_pool_backward_float": 1}, counts
    assert not left_to_the_cpu(counts), counts
    expected = aten._adaptive_avg_pool3d(x, (2, 3, 4))
    strides_match(out, expected)
    torch.testing.assert_close(around.cpu()[..., 1::2], expected)
    assert not around.cpu()[..., ::2].any()
    strides_match(grad_input, aten._adaptive_avg_pool3d_backward(grad, x))
    strides_match(flat, aten._adaptive_avg_pool2d(x[:, :, 0].reshape(6, 4, 7), (4, 3)))


def test_empty():
    for shape, output_size in (
        ((0, 2, 5, 6), (2, 3)),
        ((2, 0, 5, 6), (2, 3)),
        ((2, 2, 5, 6), (0, 3)),
        ((0, 2, 4, 5, 6), (2, 3, 4)),
    ):
        pool = POOL[len(output_size)]
        x = torch.randn(shape)
        assert pool(x.to("mps"), output_size).shape == pool(x, output_size).shape
    x = torch.randn(0, 2, 5, 6, device="mps", requires_grad=True)
    F.adaptive_avg_pool2d(x, (2, 3)).sum().backward()
    assert x.grad.shape == x.shape


def test_refuses():
    aten, x = torch.ops.aten, torch.ones(2, 3, 4, 5, 6, device="mps")
    flat, grad = x[0], torch.ones(2, 3, 2, 2, 2, device="mps")
    for refused, rule in (
        (lambda: F.adaptive_avg_pool2d(flat[:, :, :0], (2, 2)), "non-zero size for non-batch dimensions"),
        (lambda: F.adaptive_avg_pool3d(x[:, :0], (2, 2, 2)), "non-zero size for non-batch dimensions"),
        (lambda: F.adaptive_avg_pool2d(flat.int(), (2, 2)), "not implemented for 'Int'"),
        (lambda: aten._adaptive_avg_pool2d(x, (2, 2)), "Expected 3D or 4D tensor"),
        (lambda: aten.adaptive_avg_pool3d.out(x, (2, 2, 2), out=grad.half()), "expected dtype Float for `output`"),
        (lambda: aten._adaptive_avg_pool3d_backward(grad[:, :2], x), "the batch and channels of input"),
        (lambda: aten._adaptive_avg_pool3d_backward(grad[0], x), "the batch and channels of input"),
        (lambda: aten._adaptive_avg_pool3d_backward(grad.half(), x), "expected dtype Float for `grad_output`"),
        (lambda: aten._adaptive_avg_pool3d_backward(grad[..., :0], x), "Expected grad_output to have non-zero size"),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match=rule):
            refused()


def test_nonfinite():
    x = torch.randn(1, 2, 5, 7)
    x[0, 0, 1, 1], x[0, 0, 3, 6], x[0, 1, 2, 3] = torch.inf, -torch.inf, torch.nan
    actual, expected = (F.adaptive_avg_pool2d(each, (3, 3)).cpu() for each in (x.to("mps"), x))
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_expanded_and_offset():
    torch.manual_seed(0)
    whole = torch.randn(3, 9, 9)
    for view in (lambda x: x[1:, 2:, 3:], lambda x: x[:1, :, 4:5].expand(4, 9, 6), lambda x: x.transpose(0, 2)):
        strides_match(F.adaptive_avg_pool2d(view(whole.to("mps")), (4, 2)), F.adaptive_avg_pool2d(view(whole), (4, 2)))


def test_double_backward():
    torch.manual_seed(0)
    x, direction = torch.randn(1, 2, 5, 4, 3), torch.randn(1, 2, 5, 4, 3)
    results = []
    for device in ("cpu", "mps"):
        input = x.to(device).requires_grad_()
        grad_output = torch.ones(1, 2, 2, 3, 2, device=device, requires_grad=True)
        (grad,) = torch.autograd.grad(F.adaptive_avg_pool3d(input, (2, 3, 2)), input, grad_output, create_graph=True)
        results.append(torch.autograd.grad(grad, grad_output, direction.to(device))[0].cpu())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("spatial", (2, 3))
def test_offsets_beyond_32_bits(spatial):
    """Of the channels, and of a spatial dimension, in what is read and in what is written."""
    torch.manual_seed(0)
    size, output_size = ((5, 7), (3, 4)) if spatial == 2 else ((5, 4, 7), (3, 2, 4))
    forward = getattr(torch.ops.aten, f"adaptive_avg_pool{spatial}d").out
    backward = getattr(torch.ops.aten, f"_adaptive_avg_pool{spatial}d_backward")
    x, grad = torch.randn(1, 3, *size), torch.randn(1, 3, *output_size)
    expected, expected_grad = POOL[spatial](x, output_size), backward(grad, x)
    for dim in (1, 2):
        with counting() as counts:
            out = forward(far_apart(x, dim), output_size, out=far_apart(torch.zeros_like(expected), dim))
            grad_input = backward(far_apart(grad, dim), x.to("mps"))
        assert len(counts.kernels) == 2 and not left_to_the_cpu(counts), counts
        torch.testing.assert_close(out.cpu(), expected)
        torch.testing.assert_close(grad_input.cpu(), expected_grad)
    if spatial == 3:  # the gradient in two dimensions has no overload with an output
        out = far_apart(torch.zeros_like(x), 1)
        torch.ops.aten.adaptive_avg_pool3d_backward.grad_input(grad.to("mps"), x.to("mps"), grad_input=out)
        torch.testing.assert_close(out.cpu(), expected_grad)


def test_schedules_agree():
    torch.manual_seed(0)
    x = torch.randn(2, 40, 9, 7, device="mps", requires_grad=True)
    results = []
    for schedule in SCHEDULES.values():
        torch.ops.metal_host.set_options(schedule, 2)
        out = F.adaptive_avg_pool2d(x, (4, 5))
        results.append([t.cpu() for t in (out, *torch.autograd.grad(out.square().sum(), x))])
    torch.ops.metal_host.set_options(SCHEDULES["forward"], 1)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_modules_and_interpolate():
    torch.manual_seed(0)
    x = torch.randn(1, 256, 26, 39)
    module = torch.nn.AdaptiveAvgPool2d((2, None))
    torch.testing.assert_close(module(x.to("mps")).cpu(), module(x))
    area = F.interpolate(x.to("mps"), size=(7, 5), mode="area")
    torch.testing.assert_close(area.cpu(), F.interpolate(x, size=(7, 5), mode="area"))
