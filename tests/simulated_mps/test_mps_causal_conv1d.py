"""causal_conv1d on mps: what its OpInfo has no samples for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from metal_host.executor import SCHEDULES
from metal_host.simulated_mps import counting, load_kernels
from mps_checks import far_apart, left_to_the_cpu
from overlay.paths import OVERLAYS

pytestmark = pytest.mark.usefixtures("schedule")
KERNELS = OVERLAYS[0] / "aten/src/ATen/native/mps/kernels/CausalConv1d.metal"


@pytest.fixture
def sequences():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, 5, 20), torch.randn(5, 4), torch.randn(5)
    return x.to("mps"), weight.to("mps"), bias.to("mps")


def test_bad_cu_seqlens_are_reported_when_the_host_waits(sequences):
    bounds = torch.tensor([0, 7, 21], device="mps")
    out = F.causal_conv1d(*sequences, "silu", cu_seqlens=bounds)
    assert out.shape == (1, 5, 20)
    with pytest.raises(torch.AcceleratorError, match="to run from 0 to T = 20, but got 21 at 2"):
        torch.mps.synchronize()
    torch.mps.synchronize()  # said once


def test_bad_state_indices_are_reported(sequences):
    x, weight, bias = sequences
    pool = torch.zeros(2, 5, 3, device="mps")
    F.causal_conv1d_update(x, pool, weight, bias, state_indices=torch.tensor([7], device="mps"))
    with pytest.raises(torch.AcceleratorError, match="state_indices below S = 2, but got 7 at 0"):
        torch.mps.synchronize()


def test_float32_parameters(sequences):
    x, weight, bias = sequences
    actual = F.causal_conv1d(x.half(), weight, bias, "silu")
    expected = F.causal_conv1d(x.cpu().half(), weight.cpu(), bias.cpu(), "silu")
    torch.testing.assert_close(actual.cpu(), expected)


def test_expanded(sequences):
    x, weight, _ = sequences
    x, weight = x.expand(3, 5, 20), weight[:1].expand(5, 4)
    torch.testing.assert_close(F.causal_conv1d(x, weight).cpu(), F.causal_conv1d(x.cpu(), weight.cpu()))


def test_sequences_whose_numbers_differ_in_few_bits():
    """Beyond what float32 and 32 bits tell apart."""
    torch.manual_seed(0)
    x, weight = torch.randn(1, 3, 12), torch.randn(3, 4)
    for first, second in ((2**24, 2**24 + 1), (1, 2**32 + 1), (2**53, 2**53 + 1)):
        seq_idx = torch.tensor([[first] * 5 + [second] * 7])
        actual = F.causal_conv1d(x.to("mps"), weight.to("mps"), seq_idx=seq_idx.to("mps"))
        torch.testing.assert_close(actual.cpu(), F.causal_conv1d(x, weight, seq_idx=seq_idx))


def test_some_gradients(sequences):
    x, weight, bias = sequences
    for wanted in range(3):
        inputs = [tensor.detach().requires_grad_(i == wanted) for i, tensor in enumerate(sequences)]
        on_cpu = [tensor.detach().cpu().requires_grad_(i == wanted) for i, tensor in enumerate(sequences)]
        F.causal_conv1d(*inputs, "silu").sum().backward()
        F.causal_conv1d(*on_cpu, "silu").sum().backward()
        torch.testing.assert_close(inputs[wanted].grad.cpu(), on_cpu[wanted].grad)


def test_nonfinite(sequences):
    x, weight, bias = sequences
    x[0, 0, 3], x[0, 1, 4], x[0, 2, 5] = torch.inf, -torch.inf, torch.nan
    for activation in (None, "silu"):
        expected = F.causal_conv1d(x.cpu(), weight.cpu(), bias.cpu(), activation)
        torch.testing.assert_close(F.causal_conv1d(x, weight, bias, activation).cpu(), expected, equal_nan=True)


def test_offsets_beyond_32_bits():
    """Of everything that the kernels read and of the states that they write, along each dimension in turn."""
    torch.manual_seed(0)
    x, weight, bias, state = torch.randn(2, 3, 12), torch.randn(3, 4), torch.randn(3), torch.randn(2, 3, 3)
    seq_idx = torch.tensor([[0] * 5 + [1] * 7, [0] * 9 + [-1] * 3])
    directions = torch.randn(2, 3, 12), torch.randn(2, 3, 3)

    def run(place):
        inputs = [place(t).detach().requires_grad_() for t in (x, weight, bias, state)]
        outputs = F.causal_conv1d(
            *inputs[:3], "silu", initial_state=inputs[3], seq_idx=place(seq_idx), return_final_state=True
        )
        return *outputs, *torch.autograd.grad(outputs, inputs, [place(direction) for direction in directions])

    expected = run(lambda tensor: tensor)
    for dim in range(3):
        with counting() as counts:
            actual = run(lambda tensor, dim=dim: far_apart(tensor, min(dim, tensor.dim() - 1)))
        assert counts.kernels and not left_to_the_cpu(counts), counts
        for mine, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs)


def test_offsets_beyond_32_bits_in_update():
    torch.manual_seed(0)
    pool, x, weight, bias = torch.randn(4, 3, 5), torch.randn(2, 3, 2), torch.randn(3, 4), torch.randn(3)
    rows, seen = torch.tensor([3, 1]), torch.tensor([7, 0])
    for dim in range(3):
        for cache_seqlens in (None, seen):
            on_cpu, on_mps = pool.clone(), far_apart(pool, dim)
            expected = F.causal_conv1d_update(
                x, on_cpu, weight, bias, "silu", state_indices=rows, cache_seqlens=cache_seqlens
            )
            actual = F.causal_conv1d_update(
                far_apart(x, dim), on_mps, far_apart(weight), far_apart(bias), "silu", state_indices=far_apart(rows),
                cache_seqlens=None if cache_seqlens is None else far_apart(cache_seqlens),
            )  # fmt: skip
            torch.testing.assert_close(actual.cpu(), expected)
            torch.testing.assert_close(on_mps.cpu(), on_cpu)


def test_update_changes_the_state_of_the_caller():
    torch.manual_seed(0)
    pool, x, weight = torch.randn(4, 6, 9), torch.randn(2, 6), torch.randn(6, 4)
    rows = torch.tensor([3, 1])
    big = pool.to("mps")
    actual = F.causal_conv1d_update(x.to("mps"), big[:, :, 2:7], weight.to("mps"), state_indices=rows.to("mps"))
    expected = F.causal_conv1d_update(x, pool[:, :, 2:7], weight, state_indices=rows)
    torch.testing.assert_close(actual.cpu(), expected)
    assert torch.equal(big.cpu(), pool)


def test_module_trains():
    torch.manual_seed(0)
    module = torch.nn.CausalConv1d(6, 4, activation="silu")
    x = torch.randn(2, 6, 30)
    module(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in module.parameters()]
    module = module.to("mps")
    module.zero_grad()
    with counting() as counts:
        module(x.to("mps")).square().sum().backward()
    assert "causal_conv1d_backward_partials_float" in counts.kernels
    for parameter, grad in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), grad)


def test_a_device_with_smaller_threadgroups(sequences):
    """Its pipeline says so; a real one would give no gradients, or wrong ones."""
    kernel = "kernel void causal_conv1d_backward_partials("
    source = KERNELS.read_text()
    assert source.count(kernel) == 1
    x, weight, bias = (tensor.requires_grad_() for tensor in sequences)
    try:
        load_kernels(KERNELS, source.replace(kernel, f"[[max_total_threads_per_threadgroup(128)]] {kernel}"))
        out = F.causal_conv1d(x, weight, bias, "silu")
        with pytest.raises(RuntimeError, match="partials_float runs in threadgroups of 256 threads, .* takes 128"):
            out.sum().backward()
    finally:
        load_kernels(KERNELS)


def test_all_schedules_agree(sequences):
    x, weight, bias = (tensor.requires_grad_() for tensor in sequences)
    results = []
    for schedule in SCHEDULES.values():
        torch.ops.metal_host.set_options(schedule, 2)
        out = F.causal_conv1d(x, weight, bias, "silu")
        results.append([t.cpu() for t in (out, *torch.autograd.grad(out.square().sum(), (x, weight, bias)))])
    torch.ops.metal_host.set_options(0, 1)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))
