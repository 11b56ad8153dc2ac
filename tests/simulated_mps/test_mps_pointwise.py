"""MetalShaderLibrary's pointwise kernels: which one runs for a layout and its dtypes, and that what is bound is right.

The kernels are those of the newest release's c10/metal, which has all variants.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from metal_host import simulated_mps
from metal_host.simulated_mps import counting
from wheel_mode_helpers import target_of

METAL = Path(__file__).with_name("pointwise.metal")
MANY = (1 << 18) + 3  # where four elements to a thread begin


@pytest.fixture(scope="module", autouse=True)
def pointwise():
    torch.manual_seed(0)
    sanitize = os.environ.get("METAL_TEST_FULL") == "1"
    simulated_mps.load_kernels(METAL, torch_include=target_of("2.14.1").include, sanitize=sanitize)
    mutant = os.environ.get("POINTWISE_LIBRARY")
    torch.ops.load_library(mutant or simulated_mps.build_host_library(METAL.with_suffix(".mm")))
    return torch.ops.pointwise


def dense(*shape, dtype=torch.float32):
    x = torch.randn(shape) if dtype.is_floating_point else torch.randint(-99, 99, shape)
    return x.to(dtype).to("mps")


def runs(*shape, dtype=torch.float32):
    """Rows that are contiguous, of a wider tensor, from an offset on."""
    rows = dense(*shape[:-1], shape[-1] + 5, dtype=dtype)
    return rows[..., 3:-2]


def spread(*shape, dtype=torch.float32):
    """No two elements side by side."""
    return dense(*shape[:-1], 2 * shape[-1] + 1, dtype=dtype)[..., 1::2]


def check(kernel, out, expected, run):
    """That `run`, which writes to `out`, is this one kernel, and gives what is expected without touching the rest."""
    whole = torch.as_strided(out, (out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
    whole.fill_(77)
    before = whole.cpu()
    with counting() as counts:
        run()
    assert counts.kernels == {kernel: 1} and not counts.fallbacks, counts
    before.as_strided(out.shape, out.stride(), out.storage_offset()).copy_(expected.to(out.dtype))
    assert torch.equal(whole.cpu(), before)


# ---- One input -----------------------------------------------------------------------------

UNARY = {
    "dense_scalar": (dense, (3, 5), torch.float32, torch.float32, None, "dense_scalar_float_float"),
    "no_dimensions": (dense, (), torch.float32, torch.float32, None, "dense_scalar_float_float"),
    "dense": (dense, (MANY,), torch.float32, torch.float32, None, "dense_float_float"),
    "dense_of_integers": (dense, (MANY,), torch.int64, torch.int64, None, "dense_scalar_long_long"),
    "dense_as_asked": (dense, (7,), torch.int64, torch.int64, 7, "dense_long_long"),
    "dense_below_what_is_asked": (dense, (7,), torch.float32, torch.float32, 8, "dense_scalar_float_float"),
    "strided": (spread, (4, 20), torch.float32, torch.float32, None, "strided_float_float"),
    "short_runs": (runs, (3, 4, 15), torch.float32, torch.float32, None, "strided_float_float"),
    "runs": (runs, (3, 4, 19), torch.float32, torch.float32, None, "inner_contiguous_float_float"),
    "cast": (dense, (3, 5), torch.float16, torch.float32, None, "dense_castout_half"),
    "cast_dense": (dense, (9,), torch.float16, torch.float32, 0, "dense_castout_ilp_half"),
    "cast_strided": (spread, (4, 20), torch.int64, torch.int16, None, "strided_castout_long"),
    "cast_runs": (runs, (3, 4, 19), torch.float16, torch.float32, None, "inner_contiguous_castout_half"),
}


@pytest.mark.parametrize("case", UNARY)
def test_unary(pointwise, case):
    make, shape, dtype, out_dtype, ilp, variant = UNARY[case]
    x, out = make(*shape, dtype=dtype), make(*shape, dtype=out_dtype)
    check(f"twice_{variant}", out, x.cpu() * 2, lambda: pointwise.unary("twice", out, x, ilp=ilp))


@pytest.mark.parametrize(("make", "variant"), ((dense, "dense"), (spread, "strided"), (runs, "strided")))
def test_unary_alpha(pointwise, make, variant):
    x, out = make(3, 20), make(3, 20)
    check(f"shifted_{variant}_float_float_float", out, x.cpu() + 2.5, lambda: pointwise.unary("shifted", out, x, 2.5))
    x, out = make(3, 20, dtype=torch.int32), make(3, 20, dtype=torch.int32)
    check(f"shifted_{variant}_int_int_int", out, x.cpu() - 7, lambda: pointwise.unary("shifted", out, x, -7))


def test_strides_of_in_and_out_differ(pointwise):
    x, out = dense(4, 20).t(), dense(20, 4)
    check("twice_strided_float_float", out, x.cpu() * 2, lambda: pointwise.unary("twice", out, x))


def test_alpha_without_a_kernel(pointwise):
    x = dense(4, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="Failed to create function state object for: shifted_dense_half_half_half"):
        pointwise.unary("shifted", x, x, 1.0)


# ---- Two inputs ----------------------------------------------------------------------------

f16, f32, i64, boolean = torch.float16, torch.float32, torch.int64, torch.bool
# How a tensor is made, its shape and its dtype.
full, half, long = ((dense, (3, 5), dtype) for dtype in (f32, f16, i64))
mask, short = ((dense, (3, 5), dtype) for dtype in (boolean, torch.int16))
many, many_longs = ((dense, (MANY,), dtype) for dtype in (f32, i64))
row, row_half = ((dense, (5,), dtype) for dtype in (f32, f16))
one, one_half, one_long = ((dense, (), dtype) for dtype in (f32, f16, i64))
rows, rows_half, rows_long = ((runs, (3, 19), dtype) for dtype in (f32, f16, i64))
short_rows, apart = (runs, (3, 9), f32), (spread, (3, 19), f32)

# The operator, its inputs and output, then its arguments and the kernel.
BINARY = {
    "dense": ("less_half", full, full, full, {}, "dense_float_float"),
    "many": ("less_half", many, many, many, {}, "dense_ilp4_float_float"),
    "many_integers": ("less_half", many_longs, many_longs, many_longs, {}, "dense_long_long"),
    "as_asked": ("less_half", long, long, long, {"ilp": 15}, "dense_ilp4_long_long"),
    "below_what_is_asked": ("less_half", full, full, full, {"ilp": 16}, "dense_float_float"),
    "strided": ("less_half", (dense, (3, 19), f32), apart, apart, {}, "strided_float_float"),
    "runs": ("less_half", rows, rows, rows, {}, "inner_contiguous_float_float"),
    "short_runs": ("less_half", short_rows, short_rows, short_rows, {}, "strided_float_float"),
    "cast": ("less_half", full, half, full, {}, "dense_cast_float_float"),
    "cast_runs": ("less_half", rows_half, rows, rows, {}, "strided_cast_float_float"),
    "broadcast": ("less_half", full, row, full, {}, "dense_broadcast_float_float"),
    "broadcast_left": ("less_half", row, full, full, {}, "dense_broadcast_rhs_float_float"),
    "broadcast_cast": ("less_half", full, row_half, full, {}, "dense_broadcast_cast_float_float"),
    "broadcast_left_cast": ("less_half", row_half, full, full, {}, "dense_broadcast_rhs_cast_float_float"),
    "column": ("less_half", full, (dense, (3, 1), f32), full, {}, "strided_float_float"),
    "scalar": ("less_half", full, one, full, {}, "dense_scalar_float_float"),
    "scalar_left": ("less_half", (dense, (1, 1), f32), full, full, {}, "dense_scalar_lhs_float_float"),
    "scalar_cast": ("less_half", half, (dense, (1,), f32), full, {}, "dense_scalar_cast_float_float"),
    "scalar_left_cast": ("less_half", (dense, (1,), f32), half, full, {}, "dense_scalar_lhs_cast_float_float"),
    "exact_scalar": ("less_half", full, one_long, full, {}, "dense_scalar_float_float"),
    "bool": ("below", long, long, mask, {}, "dense_bool_long"),
    "bool_cast": ("below", full, long, mask, {}, "dense_cast_bool_float"),
    "castout": ("below", full, full, short, {"natural": boolean}, "strided_castout_bool_float"),
    "castout_scalar": ("below", one, apart, apart, {"natural": boolean}, "strided_castout_bool_float"),
    "castout_no_dimensions": ("below", one, one, one, {"natural": boolean}, "strided_castout_bool_float"),
    "alpha": ("along", full, full, full, {"alpha": 0.5}, "dense_float_float_float"),
    "alpha_strided": ("along", rows_long, rows_long, rows_long, {"alpha": -3}, "strided_long_long_long"),
    "alpha_cast": ("along", full, half, full, {"alpha": 3.5}, "dense_cast_float_float_float"),
    "alpha_strided_cast": ("along", rows, rows_half, rows, {"alpha": 3.5}, "strided_cast_float_float_float"),
    "alpha_broadcast": ("along", full, row, full, {"alpha": 3}, "dense_broadcast_float_float_float"),
    "alpha_broadcast_cast": ("along", row_half, full, full, {"alpha": 3}, "dense_broadcast_rhs_cast_float_float_float"),
    "alpha_scalar": ("along", full, one, full, {"alpha": 3}, "dense_scalar_float_float_float"),
    "alpha_scalar_cast": ("along", one_half, full, full, {"alpha": 3}, "dense_scalar_lhs_cast_float_float_float"),
}


def reference(name, a, b, alpha):
    a, b = (x.to(torch.promote_types(a.dtype, b.dtype)) for x in (a, b))
    if name == "below":
        return a < b
    if name == "along":
        return a + alpha * b
    return a - (b / 2 if b.is_floating_point() else b.div(2, rounding_mode="trunc"))


@pytest.mark.parametrize("case", BINARY)
def test_binary(pointwise, case):
    name, *tensors, arguments, variant = BINARY[case]
    a, b, out = (make(*shape, dtype=dtype) for make, shape, dtype in tensors)
    expected = reference(name, a.cpu(), b.cpu(), arguments.get("alpha")).expand(out.shape)
    check(f"{name}_{variant}", out, expected, lambda: pointwise.binary(name, out, a, b, **arguments))


def test_a_double_of_the_cpu(pointwise):
    """It reaches the kernel as float."""
    a, out = dense(3, 5), dense(3, 5)
    b = torch.tensor(0.5, dtype=torch.float64)
    check("less_half_dense_scalar_float_float", out, a.cpu() - 0.25, lambda: pointwise.binary("less_half", out, a, b))
    expected = 0.5 - a.cpu() / 2
    check("less_half_dense_scalar_lhs_float_float", out, expected, lambda: pointwise.binary("less_half", out, b, a))


def test_integers_beyond_what_floats_hold(pointwise):
    big = torch.tensor([2**60 + 1, -(2**53) - 1, 2**24 + 1])
    out = torch.empty(3, dtype=torch.int64, device="mps")
    check("twice_dense_scalar_long_long", out, big * 2, lambda: pointwise.unary("twice", out, big.to("mps")))
    ones = torch.ones(3, dtype=torch.int64)
    run = lambda: pointwise.binary("along", out, big.to("mps"), ones.to("mps"), -1)  # noqa: E731
    check("along_dense_long_long_long", out, big - 1, run)


# ---- Three inputs --------------------------------------------------------------------------

TERNARY = {
    "dense": (dense, (f32, f32, f32), f32, "dense_float_float"),
    "strided": (spread, (f32, f32, f32), f32, "strided_float_float"),
    "cast": (dense, (f32, f16, torch.int32), f32, "dense_cast_float"),
    "cast_out": (dense, (f32, f32, f32), f16, "dense_cast_half"),
    "strided_cast": (spread, (f16, f16, f32), f32, "strided_cast_float"),
}


@pytest.mark.parametrize("case", TERNARY)
def test_ternary(pointwise, case):
    make, dtypes, out_dtype, variant = TERNARY[case]
    # Small integers, so that every order of operations is exact.
    a, b, c = (make(3, 7).mul_(4).round_().to(dtype) if make is dense else make(3, 7, dtype=dtype) for dtype in dtypes)
    out = make(3, 7, dtype=out_dtype)
    if make is spread:
        a, b, c = (x.copy_(torch.randint(-9, 9, x.shape)) for x in (a, b, c))
    expected = a.cpu() + b.cpu() * 2 - c.cpu()
    check(f"mixed_{variant}", out, expected, lambda: pointwise.ternary("mixed", out, a, b, c))


# ---- What is common to all -----------------------------------------------------------------


def test_nothing_to_do(pointwise):
    x = dense(0, 3)
    with counting() as counts:
        pointwise.unary("twice", x, x)
        pointwise.binary("less_half", x, x, x)
        pointwise.ternary("mixed", x, x, x, x)
    assert not counts.kernels


@pytest.mark.parametrize("inputs", (1, 2, 3))
def test_64_bit_offsets(pointwise, inputs):
    """Elements 2^30 apart, most of whose pages are never touched: several dispatches of kernels with 32-bit offsets."""
    shape, strides = (6, 17), (1 << 30, 1)
    storage = torch.empty(5 * strides[0] + 100, dtype=torch.float16, device="mps")
    tensors = [storage.as_strided(shape, strides, 20 * i).copy_(torch.randn(shape)) for i in range(inputs + 1)]
    out, *values = [x.cpu() for x in tensors]
    a, b, c = (*values, out, out)[:3]
    expected = (2 * a, a - b / 2, a + b * 2 - c)[inputs - 1]
    operator = (pointwise.unary, pointwise.binary, pointwise.ternary)[inputs - 1]
    with counting() as counts:
        operator(("twice", "less_half", "mixed")[inputs - 1], *tensors)
    assert sum(counts.kernels.values()) > 1 and not counts.fallbacks, counts
    torch.testing.assert_close(tensors[0].cpu(), expected)


def test_names_and_kernels_by_themselves(pointwise):
    names = pointwise.names()
    assert "twice_dense_float_float" in names and "causal_conv1d_forward_float" in names
    assert len(names) == len(set(names))
    x, out = dense(11), dense(11)
    for groups in ([], [8]):
        out.fill_(0)
        pointwise.kernel("twice_dense_float_float", out, x, 11, groups)
        assert torch.equal(out.cpu(), x.cpu() * 2)
    with pytest.raises(ValueError, match="Threadgroup size exceeds 1024 limit"):
        pointwise.kernel("twice_dense_float_float", out, x, 11, [1025])
    with pytest.raises(RuntimeError, match="Failed to create function state object for: nothing"):
        pointwise.kernel("nothing", out, x, 11, [])
