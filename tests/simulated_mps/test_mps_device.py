"""The simulated device itself."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch
from metal_host import simulated_mps
from metal_host.simulated_mps import counting
from overlay.errors import OverlayError


def test_tensors():
    x = torch.arange(12.0, device="mps").view(3, 4)
    assert x.device == torch.device("mps:0") and torch.backends.mps.is_available()
    assert torch.equal((x[1:, ::2].t() + 1).cpu(), torch.tensor([[5.0, 9.0], [7.0, 11.0]]))
    x[1:].add_(5)
    assert x.sum().item() == 66 + 40
    assert "device='mps:0'" in repr(x)
    assert torch.equal(x.half().cpu(), x.cpu().half())
    assert torch.empty(0, device="mps").cpu().shape == (0,)
    assert torch.equal(x.unfold(1, 2, 1).cpu(), x.cpu().unfold(1, 2, 1))


def test_autograd():
    x = torch.ones(3, device="mps", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.device.type == "mps" and torch.equal(x.grad.cpu(), torch.full((3,), 2.0))


def test_no_float64():
    for make in (lambda: torch.ones(2, dtype=torch.float64, device="mps"), lambda: torch.ones(2).double().to("mps")):
        with pytest.raises(TypeError, match="float64|Double"):
            make()


def test_random_numbers():
    torch.manual_seed(3)
    first = torch.randn(4, device="mps")
    generator = torch.Generator("mps").manual_seed(5)
    second = torch.rand(4, device="mps", generator=generator)
    torch.manual_seed(3)
    generator.manual_seed(5)
    assert torch.equal(torch.randn(4, device="mps").cpu(), first.cpu())
    assert torch.equal(torch.rand(4, device="mps", generator=generator).cpu(), second.cpu())


def test_fallbacks_are_counted():
    x = torch.ones(3, device="mps")
    with counting() as counts:
        x.cos()
    assert counts.fallbacks == {"aten::cos.out": 1} or counts.fallbacks == {"aten::cos": 1}, counts.fallbacks
    assert counts.kernels == {}


def test_copies_wait_for_what_they_need_and_no_more():
    x, weight = torch.randn(1, 2, 5).to("mps"), torch.ones(2, 1).to("mps")
    torch.mps.synchronize()
    before = torch.ops.metal_host.dispatches().get("causal_conv1d_forward_float", 0)
    out = torch.nn.functional.causal_conv1d(x, weight)
    late = out.to("cpu", non_blocking=True)
    assert torch.ops.metal_host.dispatches().get("causal_conv1d_forward_float", 0) == before
    torch.mps.synchronize()
    assert torch.ops.metal_host.dispatches()["causal_conv1d_forward_float"] == before + 1
    assert torch.equal(late, x.cpu())
    assert torch.equal(torch.nn.functional.causal_conv1d(x, weight).cpu(), x.cpu())


def test_events_and_streams():
    event = torch.Event("mps")
    event.record()
    event.synchronize()
    assert event.query()
    torch.accelerator.synchronize()
    assert torch.accelerator.current_accelerator() == torch.device("mps")


def test_it_comes_before_torch_and_on_linux_alone(monkeypatch):
    with pytest.raises(OverlayError, match="before torch"):
        simulated_mps.load()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OverlayError, match="on Linux alone"):
        simulated_mps.load()


FAULTS = """
import ctypes, os
import metal_host.simulated_mps as mps
mps.load()
import torch

x = torch.ones(1000, device="mps")
for access in (
    lambda: ctypes.string_at(x.data_ptr(), 4),
    lambda: ctypes.string_at(x[999:].data_ptr(), 4),
    lambda: ctypes.memset(x.data_ptr(), 0, 4),
):
    child = os.fork()
    if child == 0:
        access()
        os._exit(0)
    print(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_the_host_faults_on_memory_of_the_device():
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(int(signal.SIGSEGV))] * 3
