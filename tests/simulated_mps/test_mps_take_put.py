"""take and put_ on mps: what their OpInfos have no samples for."""

from __future__ import annotations

import pytest
import torch
from metal_host.executor import SCHEDULES
from metal_host.simulated_mps import counting
from mps_checks import far_apart, left_to_the_cpu

pytestmark = pytest.mark.usefixtures("schedule")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*INTEGERS, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def values_of(dtype, *shape):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randint(-9 if dtype != torch.uint8 else 0, 9, shape).to(dtype)  # whose sums are exact


def put_on_both(self, index, source, accumulate):
    """put_ on mps of views of the same layout, and what surrounds them."""
    with counting() as counts:
        actual = self().to("mps")
        view_of(actual).put_(index.to("mps"), source.to("mps"), accumulate)
    assert counts.kernels and not left_to_the_cpu(counts), counts
    expected = self()
    view_of(expected).put_(index, source, accumulate)
    assert torch.equal(actual.cpu(), expected)


def view_of(whole):
    """Not contiguous, from an offset that is not a whole word."""
    return whole[1:, 1:6].t()[1:]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("accumulate", (False, True))
def test_put_into_a_view(dtype, accumulate):
    """Its neighbours, which share words with it, stay as they are."""
    torch.manual_seed(0)
    whole = values_of(dtype, 5, 7)
    index = torch.randperm(16)[:10] if not accumulate else torch.randint(-16, 16, (200,))
    put_on_both(whole.clone, index, values_of(dtype, *index.shape), accumulate)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.int16, torch.uint8, torch.int64, torch.float32))
def test_threads_meet(dtype):
    """Many values for few places, in all orders and on several threads of the CPU."""
    torch.manual_seed(0)
    index = torch.randint(-3, 3, (300,))
    source = torch.randint(0, 3, (300,)).to(dtype)
    expected = torch.zeros(3, dtype=dtype).put_(index, source, accumulate=True)
    for schedule in SCHEDULES.values():
        torch.ops.metal_host.set_options(schedule, 2)
        actual = (
            torch.zeros(3, dtype=dtype, device="mps").put_(index.to("mps"), source.to("mps"), accumulate=True).cpu()
        )
        torch.ops.metal_host.set_options(SCHEDULES["forward"], 1)
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16, torch.complex64), ids=str)
def test_deterministic_sums(deterministic, dtype):
    """Values are added in their own order, which rounding shows."""
    torch.manual_seed(0)
    whole, index = torch.randn(5, 7).to(dtype), torch.randint(-16, 16, (200,))
    source = torch.randn(2, 400).to(dtype)[0, ::2].view(10, 20)
    expected = whole.clone()
    view_of(expected).put_(index, source, accumulate=True)
    for schedule in SCHEDULES.values():
        torch.ops.metal_host.set_options(schedule, 1)
        actual = whole.to("mps")
        with counting() as counts:
            view_of(actual).put_(index.to("mps"), source.to("mps"), accumulate=True)
        torch.ops.metal_host.set_options(SCHEDULES["forward"], 1)
        assert any(kernel.startswith("put_accumulate_sorted") for kernel in counts.kernels), counts
        assert torch.equal(actual.cpu(), expected)


def test_put_is_not_deterministic_with_duplicates(deterministic):
    x = torch.zeros(3, device="mps")
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        x.put_(torch.tensor([0, 0], device="mps"), torch.ones(2, device="mps"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_take(dtype):
    torch.manual_seed(0)
    whole, index = values_of(dtype, 5, 7), torch.randint(-16, 16, (4, 9))
    actual = view_of(whole.to("mps")).take(index.t().to("mps").t()[:, 1::2])
    assert torch.equal(actual.cpu(), view_of(whole).take(index[:, 1::2]))
    assert torch.equal(whole.to("mps")[:1].expand(3, 7).take(index.to("mps")).cpu(), whole[:1].expand(3, 7).take(index))


def test_expanded():
    torch.manual_seed(0)
    whole, index = values_of(torch.int32, 5, 7), torch.randint(-16, 16, (6, 1)).expand(6, 4)
    put_on_both(whole.clone, index, torch.arange(4, dtype=torch.int32).expand(6, 4), True)
    assert torch.equal(whole.to("mps").take(index.to("mps")).cpu(), whole.take(index))


def test_empty_and_no_dimensions():
    x, nothing = torch.randn(2, 3, device="mps"), torch.empty(0, 4, dtype=torch.int64, device="mps")
    assert x.take(nothing).shape == (0, 4)
    assert torch.equal(x.clone().put_(nothing, torch.empty(0, device="mps")).cpu(), x.cpu())
    zero = torch.tensor(0, device="mps")
    assert torch.equal(x.take(zero).cpu(), x.cpu().take(zero.cpu()))
    assert torch.tensor(5.0, device="mps").take(torch.tensor([-1, 0], device="mps")).tolist() == [5, 5]
    assert torch.tensor(5.0, device="mps").put_(zero, torch.tensor(2.0, device="mps"), accumulate=True).item() == 7
    for refused in (lambda: x[:0].take(zero), lambda: x[:0].put_(zero, torch.tensor(2.0, device="mps"))):
        with pytest.raises(IndexError, match="empty tensor"):
            refused()


def test_take_out():
    x, index = torch.arange(6.0), torch.tensor([[5, -6], [2, 0]])
    out = torch.full((2, 5), -1.0, device="mps")
    with counting() as counts:
        assert torch.take(x.to("mps"), index.to("mps"), out=out[:, 1:5:3]) is not None
    assert counts.kernels == {"take_uint": 1} and not left_to_the_cpu(counts), counts
    assert out.tolist() == [[-1, 5, -1, -1, 0], [-1, 2, -1, -1, 0]]


def test_dtypes_are_checked():
    x, index = torch.ones(3, device="mps"), torch.tensor([0], device="mps")
    for refused, rule in (
        (lambda: x.take(index.int()), "Expected a long tensor for index"),
        (lambda: x.put_(index, torch.ones(1, dtype=torch.int64, device="mps")), "to have the same dtype"),
        (lambda: torch.take(x, index, out=torch.empty(1, dtype=torch.int64, device="mps")), "to have the same dtype"),
        (lambda: x.half().to(torch.complex32).put_(index, torch.ones(1, dtype=torch.complex32, device="mps"), True),
         "put_ with accumulate=True is not implemented for ComplexHalf on MPS"),
    ):  # fmt: skip
        with pytest.raises((RuntimeError, NotImplementedError), match=rule):
            refused()


def test_bad_indices_are_reported_and_touch_nothing():
    x, index = torch.tensor([1.0, 2.0, 3.0], device="mps"), torch.tensor([1, 3, -3, -4], device="mps")
    nine = torch.full((4,), 9.0, device="mps")
    for run, expected in (
        (lambda: x.take(index), [2, 0, 1, 0]),
        (lambda: x.clone().put_(index, nine), [9, 9, 3]),
        (lambda: x.clone().put_(index, nine, accumulate=True), [10, 11, 3]),
    ):
        result = run()
        with pytest.raises(torch.AcceleratorError, match="index (3|-4) is out of range for a tensor of 3 elements"):
            torch.mps.synchronize()
        torch.mps.synchronize()  # said once
        assert result.tolist() == expected


def test_bad_indices_are_reported_when_sums_are_deterministic(deterministic):
    x, index = torch.tensor([1.0, 2.0, 3.0], device="mps"), torch.tensor([1, 3], device="mps")
    with pytest.raises(torch.AcceleratorError, match="index 3 is out of range for a tensor of 3 elements"):
        x.put_(index, torch.full((2,), 9.0, device="mps"), accumulate=True)
        torch.mps.synchronize()


@pytest.fixture(params=(False, True), ids=("plain", "deterministic"))
def deterministic_or_not(request):
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


def test_offsets_beyond_32_bits(deterministic_or_not):
    """Of self, the index and the values."""
    torch.manual_seed(0)
    values, index, source = torch.randn(6), torch.tensor([5, -6, 2, 2]), torch.randn(4)
    with counting() as counts:
        taken = far_apart(values).take(far_apart(index))
        out = torch.take(values.to("mps"), index.to("mps"), out=far_apart(source))
        put = far_apart(values).put_(far_apart(index), far_apart(source), accumulate=True)
    assert counts.kernels["take_uint"] > 2 and not left_to_the_cpu(counts), counts  # in parts
    assert torch.equal(taken.cpu(), values.take(index))
    assert torch.equal(out.cpu(), values.take(index))
    torch.testing.assert_close(put.cpu(), values.put(index, source, accumulate=True))


def test_indices_beyond_what_floats_and_32_bits_hold():
    big = torch.empty((1 << 32) + 8, dtype=torch.uint8, device="mps")
    index = torch.tensor([2**24 + 1, 2**24, (1 << 32) + 3, -1, -(1 << 32) - 8])
    source = torch.arange(5, dtype=torch.uint8) + 40
    big.put_(index.to("mps"), source.to("mps"))
    assert torch.equal(big.take(index.to("mps")).cpu(), source)
    longs = torch.tensor([2**60 + 1, -(2**53) - 1], device="mps")
    longs.put_(torch.tensor([0, 0, 1], device="mps"), torch.tensor([1, 2**33, -1], device="mps"), accumulate=True)
    assert longs.tolist() == [2**60 + 2 + 2**33, -(2**53) - 2]


def test_gradients():
    torch.manual_seed(0)
    x, index = torch.randn(4, 5), torch.randint(-20, 20, (3, 30))
    on_mps = x.to("mps").requires_grad_()
    with counting() as counts:
        on_mps.take(index.to("mps")).square().sum().backward()
    assert "put_accumulate_float" in counts.kernels and not left_to_the_cpu(counts), counts
    x.requires_grad_().take(index).square().sum().backward()
    torch.testing.assert_close(on_mps.grad.cpu(), x.grad)
