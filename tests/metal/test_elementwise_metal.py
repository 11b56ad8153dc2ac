"""The Metal kernels of heaviside, special.ndtri and frexp, run on the CPU, against the CPU operators."""

from __future__ import annotations

import itertools

import metal_host
import pytest
import torch
from overlay.paths import OVERLAYS

KERNELS = OVERLAYS[0] / "aten/src/ATen/native/mps/kernels"
METAL_TYPE = {
    torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat", torch.int64: "long", torch.int32: "int",
    torch.int16: "short", torch.int8: "char", torch.uint8: "uchar", torch.bool: "bool",
}  # fmt: skip
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
VALUES = [0.0, -0.0, 1.0, -1.0, 0.25, 3.5, -1e-3, 6e4, torch.inf, -torch.inf, torch.nan]


@pytest.fixture(scope="module")
def libraries():
    return {stem: metal_host.load_metal(KERNELS / f"{stem}.metal") for stem in ("Heaviside", "Ndtri", "Frexp")}


@pytest.fixture(params=(False, True), ids=("plain", "sanitized"))
def sanitize(request):
    with metal_host.options(sanitize=request.param):
        yield


def values_of(dtype):
    if dtype.is_floating_point:
        return torch.tensor(VALUES).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([True, False])
    bounds = torch.iinfo(dtype)
    return torch.tensor([0, 1, 7, bounds.max, bounds.max - 1, bounds.min], dtype=dtype)


def spread(tensor):
    """The values with a stride of 2, and neighbours that are out of bounds."""
    return tensor.new_empty(2 * tensor.numel() + 1)[1:-1:2].copy_(tensor)


def geometry(*tensors):
    """Sizes and byte strides as exec_*_kernel and frexp's host code bind them."""
    return [[tensors[0].numel()], *([tensor.stride(0) * tensor.element_size()] for tensor in tensors)]


def assert_same(actual, expected):
    """To the bit, but for the bits of NaN."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    if expected.is_floating_point():
        assert torch.equal(actual.signbit() & ~actual.isnan(), expected.signbit() & ~expected.isnan())


@pytest.mark.parametrize("dtype", METAL_TYPE, ids=str)
def test_heaviside(libraries, sanitize, dtype):
    pairs = list(itertools.product(values_of(dtype), repeat=2))
    self, values = (torch.stack(column) for column in zip(*pairs, strict=True))
    expected = torch.heaviside(self, values)
    kernel = f"{METAL_TYPE[dtype]}_{METAL_TYPE[dtype]}"
    out = torch.empty_like(expected)
    getattr(libraries["Heaviside"], f"heaviside_dense_{kernel}")(out, self, values)
    assert_same(out, expected)

    out, self, values = spread(out.fill_(0)), spread(self), spread(values)
    getattr(libraries["Heaviside"], f"heaviside_strided_{kernel}")(
        out, self, values, *geometry(out, self, values), [1, 0, 0, 0], threads=out.numel(), arg_casts={7: "int32"}
    )
    assert_same(out, expected)


def quantile(p):
    """In float64, of the value that the dtype has."""
    return torch.special.ndtri(p.double())


@pytest.mark.parametrize("dtype", METAL_TYPE, ids=str)
def test_ndtri(libraries, sanitize, dtype):
    if dtype.is_floating_point:
        grid = torch.cat([torch.linspace(0, 1, 4001), torch.logspace(-37, -3, 500), 1 - torch.logspace(-7, -3, 200)])
        p = torch.cat([grid.to(dtype), values_of(dtype)])
    else:
        p = values_of(dtype)
    result = dtype if dtype.is_floating_point else torch.float32
    out = torch.empty(p.shape, dtype=result)
    kernel = f"{METAL_TYPE[result]}_{METAL_TYPE[dtype]}"
    getattr(libraries["Ndtri"], f"ndtri_dense_scalar_{kernel}")(out, p)
    eps = max(torch.finfo(result).eps, 5e-7)
    torch.testing.assert_close(out.double(), quantile(p), rtol=eps, atol=1e-7, equal_nan=True)

    dense, (out, p) = out, (spread(out.clone().fill_(0)), spread(p))
    sizes, out_strides, p_strides = geometry(out, p)
    getattr(libraries["Ndtri"], f"ndtri_strided_{kernel}")(
        out, p, sizes, p_strides, out_strides, 1, threads=[out.numel(), 1], arg_casts={5: "int32"}
    )
    assert_same(out, dense)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_frexp(libraries, sanitize, dtype):
    every_bit = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}[dtype]
    if dtype == torch.float32:
        bits = torch.cat([torch.randint(-(2**31), 2**31, (4000,)), torch.arange(40), 2**23 + torch.arange(-5, 5)])
        self = torch.cat([bits.to(every_bit).view(dtype), values_of(dtype)])
    else:
        self = torch.arange(-(2**15), 2**15).to(every_bit).view(dtype)
    expected = torch.frexp(self)
    mantissa, exponent = torch.empty_like(self), torch.empty(self.shape, dtype=torch.int32)
    name = METAL_TYPE[dtype]
    getattr(libraries["Frexp"], f"frexp_dense_{name}")(mantissa, exponent, self)
    assert_same(mantissa, expected.mantissa)
    assert torch.equal(exponent, expected.exponent)

    mantissa, exponent, self = spread(mantissa.fill_(0)), spread(exponent.fill_(0)), spread(self)
    getattr(libraries["Frexp"], f"frexp_strided_{name}")(
        mantissa, exponent, self, *geometry(mantissa, exponent, self), 1, threads=self.numel(), arg_casts={7: "int32"}
    )
    assert_same(mantissa, expected.mantissa)
    assert torch.equal(exponent, expected.exponent)
