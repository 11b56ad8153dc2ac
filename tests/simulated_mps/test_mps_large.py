"""Tensors of more than 2^31 elements. They are read from memory that was never written, which is zero."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from metal_host import simulated_mps
from metal_host.simulated_mps import counting
from mps_checks import FULL, left_to_the_cpu
from overlay.paths import OVERLAYS

pytestmark = pytest.mark.full

MORE = (1 << 31) + 8
KERNELS = ("Heaviside", "TakePut", "AdaptiveAvgPooling", "CausalConv1d")


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Unchecked, which takes a tenth of the time."""
    paths = [OVERLAYS[0] / f"aten/src/ATen/native/mps/kernels/{name}.metal" for name in KERNELS]
    for path in paths:
        simulated_mps.load_kernels(path)
    torch.ops.metal_host.set_options(0, 2)
    yield
    torch.ops.metal_host.set_options(0, 1)
    for path in paths:
        simulated_mps.load_kernels(path, sanitize=FULL)


@pytest.fixture(autouse=True)
def counts():
    """Kernels ran, in several dispatches where their offsets have 32 bits."""
    with counting() as counts:
        yield
    assert counts.kernels and not left_to_the_cpu(counts), counts


def zeros(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device="mps")


# In each half, and at either end.
PLACES = torch.tensor([0, 1, MORE // 2 - 1, MORE // 2, MORE // 2 + 1, MORE - 2, MORE - 1])


def put_down(tensor, values):
    for place, value in zip(PLACES.tolist(), values, strict=True):
        tensor[place] = value
    return tensor


def picked_up(tensor):
    return [tensor[place].item() for place in PLACES.tolist()]


def test_heaviside():
    signs, values = [1, -1, 0, 5, 0, -3, 0], [2, 3, 4, 5, 6, 7, 8]
    x = put_down(zeros(MORE, dtype=torch.int8), signs)
    out = torch.heaviside(x, put_down(zeros(MORE, dtype=torch.int8), values))
    assert picked_up(out) == [1, 0, 4, 1, 6, 0, 8]


def test_take_and_put():
    positions, values = [3, -1, 2, 1, -4, 0, -2], [10, 20, 30, 40, 50, 60, 70]
    index = put_down(zeros(MORE, dtype=torch.int64), positions)
    few = torch.tensor([7, 8, 9, 11], dtype=torch.uint8)
    assert picked_up(few.to("mps").take(index)) == [11, 11, 9, 8, 7, 7, 9]
    source = put_down(zeros(MORE, dtype=torch.uint8), values)
    expected = few.put(torch.tensor(positions), torch.tensor(values, dtype=torch.uint8), accumulate=True)
    assert torch.equal(few.to("mps").put_(index, source, accumulate=True).cpu(), expected)


def test_adaptive_avg_pool2d():
    """Of the output in one direction, of the input's gradient in the other."""
    rows, columns = (1 << 16) + 1, 1 << 15
    x = torch.arange(6.0).view(1, 1, 2, 3).half()
    out = F.adaptive_avg_pool2d(x.to("mps"), (rows, columns))
    middle = (rows // 2, columns // 2)
    assert [out[0, 0, i, j].item() for i, j in ((0, 0), middle, (-1, -1), (-1, 0), (0, -1))] == [0, 2.5, 5, 3, 2]
    del out
    grad = torch.tensor([[1.0, 2], [4, 8]]).mul_(1 << 28).view(1, 1, 2, 2).to(torch.bfloat16)
    image = zeros(1, 1, rows + 1, columns, dtype=torch.bfloat16)
    back = torch.ops.aten._adaptive_avg_pool2d_backward(grad.to("mps"), image)
    scale = (rows + 1) // 2 * (columns // 2) / (1 << 28)
    corners = [back[0, 0, i, j].item() * scale for i, j in ((0, 0), (0, -1), (-1, 0), (-1, -1))]
    assert corners == pytest.approx([1, 2, 4, 8], rel=1e-2)


def test_causal_conv1d():
    channels, time = (1 << 15) + 1, 1 << 16
    x = zeros(1, channels, time, dtype=torch.float16)
    x[:, ::1024, -8:] = torch.randn(1, 33, 8).half()
    weight = torch.randn(channels, 4).half()
    out = F.causal_conv1d(x, weight.to("mps"))
    corner = out[:, ::1024, -8:].cpu()
    expected = F.causal_conv1d(x[:, ::1024, -16:].cpu(), weight[::1024])
    torch.testing.assert_close(corner, expected[:, :, -8:])
    assert not out[:, 1::1024, -8:].cpu().any()
