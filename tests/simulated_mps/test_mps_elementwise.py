"""heaviside, special.ndtri and frexp on mps: what their OpInfos have no samples for."""

from __future__ import annotations

import pytest
import torch
from metal_host.simulated_mps import counting
from mps_checks import far_apart, left_to_the_cpu

pytestmark = pytest.mark.usefixtures("schedule")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.25, 3e4, -1e-3, torch.inf, -torch.inf, torch.nan]


def same(actual, expected):
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def check(op, *inputs, outs=1):
    """A kernel ran, the CPU's did not, and all is to the bit what the CPU gives."""
    with counting() as counts:
        actual = op(*(x.to("mps") for x in inputs))
    assert counts.kernels and not left_to_the_cpu(counts), counts
    expected = op(*inputs)
    for mine, theirs in zip(*((x,) if outs == 1 else x for x in (actual, expected)), strict=True):
        assert mine.device.type == "mps" and mine.shape == theirs.shape and mine.stride() == theirs.stride()
        same(mine, theirs)


SHAPES = [(), (0,), (3, 0, 2), (1,), (2, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape):
    x = torch.randn(shape)
    for op, inputs, outs in (
        (torch.heaviside, (x, torch.randn(shape)), 1),
        (torch.special.ndtri, (torch.full(shape, 0.5),), 1),
        (torch.frexp, (x,), 2),
    ):
        if x.numel():
            check(op, *inputs, outs=outs)
        else:
            actual = op(*(each.to("mps") for each in inputs))
            for mine in (actual,) if outs == 1 else actual:
                assert mine.shape == shape and mine.device.type == "mps"


def test_heaviside_special_values():
    values = torch.tensor(SPECIAL)
    for dtype in FLOATS:
        pairs = torch.cartesian_prod(values, values).to(dtype)
        check(torch.heaviside, pairs[:, 0], pairs[:, 1])


def test_heaviside_beyond_what_floats_hold():
    big = torch.tensor([2**60 + 1, -(2**53) - 1, 2**24 + 1, 0])
    check(torch.heaviside, torch.zeros(4, dtype=torch.int64), big)
    check(torch.heaviside, big, torch.full((4,), 2**62 + 3))


def test_heaviside_broadcasts():
    x, row, column = torch.randn(4, 5).round(), torch.randn(5), torch.randn(4, 1)
    for values in (row, column, torch.tensor(3.0), torch.randn(1, 1).expand(4, 5), torch.randn(2, 4, 5)):
        check(torch.heaviside, x, values)
        check(torch.heaviside, values, x)


def test_heaviside_of_a_number_on_the_cpu():
    x = torch.tensor([0.0, -2, 5])
    same(torch.heaviside(x.to("mps"), torch.tensor(7.0)), torch.heaviside(x, torch.tensor(7.0)))


def test_heaviside_overloads():
    x, values = torch.tensor([0, -2, 5, 0]), torch.tensor([7, 8, 9, 2**40 + 1])
    on_mps, expected = (x.to("mps"), values.to("mps")), torch.heaviside(x, values)
    out, wide = torch.empty(0, dtype=torch.int64, device="mps"), torch.zeros(9, dtype=torch.int64, device="mps")
    with counting() as counts:
        assert torch.heaviside(*on_mps, out=out) is out
        torch.heaviside(*on_mps, out=wide[1::2])
        same(on_mps[0].heaviside(on_mps[1]), expected)
        same(on_mps[0].heaviside_(on_mps[1]), expected)
    assert sum(counts.kernels.values()) == 4 and not left_to_the_cpu(counts), counts
    same(out, expected)
    same(wide[1::2], expected)
    assert not wide[::2].any() and torch.equal(on_mps[0].cpu(), expected)


def test_heaviside_refuses():
    x = torch.ones(2, device="mps")
    with pytest.raises(RuntimeError, match="tensors with different dtypes"):
        torch.heaviside(x, x.int())
    with pytest.raises(RuntimeError, match="tensors with different dtypes"):
        torch.heaviside(x, x, out=torch.empty_like(x, dtype=torch.half))
    with pytest.raises(RuntimeError, match="complex"):
        torch.heaviside(x.to(torch.complex64), x.to(torch.complex64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ndtri(dtype):
    """The CPU has it in float32 and float64 alone."""
    p = torch.cat([torch.rand(1000), torch.logspace(-30, -1, 200), torch.tensor(SPECIAL)]).to(dtype)
    with counting() as counts:
        actual = torch.special.ndtri(p.to("mps"))
    assert actual.dtype == dtype and counts.kernels and not left_to_the_cpu(counts), counts
    eps = max(torch.finfo(dtype).eps, 5e-7)
    expected = torch.special.ndtri(p.double())
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=eps, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_frexp_special_values(dtype):
    """Denormals are among them."""
    bits = torch.randint(-(2**15), 2**15, (3000,)).to(torch.int16)
    if dtype == torch.float32:
        x = torch.cat([torch.randint(-(2**31), 2**31, (3000,)).to(torch.int32), torch.arange(1, 50).to(torch.int32)])
        x = x.view(dtype)
    else:
        x = bits.view(dtype)
    check(torch.frexp, torch.cat([x, torch.tensor(SPECIAL).to(dtype)]), outs=2)


def test_frexp_out():
    x = torch.randn(3, 4)
    mantissa, exponent = (
        torch.empty(4, 3, device="mps").t(),
        torch.empty(3, 9, dtype=torch.int32, device="mps")[:, 1::2],
    )
    with counting() as counts:
        result = torch.frexp(x.to("mps"), out=(mantissa, exponent))
    assert counts.kernels == {"frexp_strided_float": 1} and not left_to_the_cpu(counts), counts
    assert result.mantissa is mantissa and result.exponent is exponent
    for mine, theirs in zip((mantissa, exponent), torch.frexp(x), strict=True):
        same(mine, theirs)


def test_frexp_refuses():
    x = torch.ones(2, device="mps")
    with pytest.raises(RuntimeError, match="only supports floating-point dtypes"):
        torch.frexp(x.int())
    with pytest.raises(RuntimeError, match="exponent to have int dtype"):
        torch.frexp(x, out=(torch.empty_like(x), torch.empty_like(x)))


def test_expanded():
    x = torch.randn(3, 1)
    for op in (torch.frexp, torch.special.ndtri):
        actual, expected = op(x.to("mps").expand(3, 4)), op(x.expand(3, 4))
        for mine, theirs in zip(
            *((each,) if isinstance(each, torch.Tensor) else each for each in (actual, expected)), strict=True
        ):
            torch.testing.assert_close(mine.cpu(), theirs, equal_nan=True)


def test_offsets_beyond_32_bits():
    x = torch.tensor([0.0, 0.25, 0.5, 3.0, torch.nan, -7.0])
    on_mps = far_apart(x)
    with counting() as counts:
        heaviside = torch.heaviside(on_mps, far_apart(x + 1))
        ndtri = torch.special.ndtri(on_mps)
        mantissa, exponent = torch.frexp(on_mps, out=(far_apart(x), far_apart(x.int())))
        quantiles = torch.special.ndtri(x.to("mps"), out=far_apart(x))
        in_place = far_apart(x).heaviside_(x.to("mps"))
    for kernel in ("heaviside_", "ndtri_", "frexp_"):
        assert sum(count for name, count in counts.kernels.items() if name.startswith(kernel)) > 1, counts  # in parts
    assert not left_to_the_cpu(counts), counts
    same(heaviside, torch.heaviside(x, x + 1))
    for actual in (ndtri, quantiles):
        torch.testing.assert_close(actual.cpu(), torch.special.ndtri(x), equal_nan=True)
    same(mantissa, torch.frexp(x).mantissa)
    same(exponent, torch.frexp(x).exponent)
    same(in_place, torch.heaviside(x, x))
