"""conv_transpose1d's switch, and that nothing on the CPU sees it. tests/gpu/test_conv_transpose1d.py has the rest."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conv_transpose1d_reference import Parameters, backward, bad_calls, double, fma, forward, raised, terms
from hypothesis import given, settings
from hypothesis import strategies as st
from overlay.edits import apply_edits
from overlay.model import load_patches
from overlay.paths import REPO
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_overlay  # noqa: F401

cudnn = torch.backends.cudnn
CUDNN_FILE = "torch/backends/cudnn/__init__.py"
VALUES = ("auto", "cudnn", "native")


@pytest.fixture(autouse=True)
def the_switch_as_it_was():
    # Where PyTorch's own tests are, the flags are frozen.
    with torch.backends.__allow_nonbracketed_mutation():
        before = cudnn.conv_transpose1d_kernel
        yield
        cudnn.conv_transpose1d_kernel = before


# ---- The switch -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", VALUES)
def test_it_holds_what_it_was_set_to(value):
    cudnn.conv_transpose1d_kernel = value
    assert cudnn.conv_transpose1d_kernel == torch.backends.cudnn.conv_transpose1d_kernel == value


@pytest.mark.parametrize("value", ("", "Auto", "fast", None, 1, True, b"auto"))
def test_other_values_are_refused(value):
    cudnn.conv_transpose1d_kernel = "native"
    with pytest.raises(ValueError, match='must be "auto", "cudnn" or "native", got ') as error:
        cudnn.conv_transpose1d_kernel = value
    assert "torch.backends.cudnn.conv_transpose1d_kernel" in str(error.value)
    assert cudnn.conv_transpose1d_kernel == "native"


def test_flags_set_it_for_a_while():
    cudnn.conv_transpose1d_kernel = "native"
    enabled = cudnn.enabled
    with cudnn.flags(enabled=not enabled, conv_transpose1d_kernel="cudnn"):
        assert (cudnn.enabled, cudnn.conv_transpose1d_kernel) == (not enabled, "cudnn")
    assert (cudnn.enabled, cudnn.conv_transpose1d_kernel) == (enabled, "native")
    with cudnn.flags(True, True, 5):  # as they were called before there was a switch
        assert (cudnn.benchmark, cudnn.conv_transpose1d_kernel) == (True, "native")
        cudnn.conv_transpose1d_kernel = "auto"
    assert cudnn.conv_transpose1d_kernel == "native"
    with pytest.raises(KeyError), cudnn.flags(conv_transpose1d_kernel="cudnn"):
        raise KeyError
    with pytest.raises(ValueError), cudnn.flags(enabled=not enabled, conv_transpose1d_kernel="fast"):
        pass
    assert (cudnn.enabled, cudnn.conv_transpose1d_kernel) == (enabled, "native")


def test_flags_decorate_a_function():
    @cudnn.flags(conv_transpose1d_kernel="cudnn")
    def inside():
        return cudnn.conv_transpose1d_kernel

    cudnn.conv_transpose1d_kernel = "native"
    assert inside() == inside() == "cudnn"


def test_modes_do_not_see_it():
    with FakeTensorMode():
        cudnn.conv_transpose1d_kernel = "native"
        assert cudnn.conv_transpose1d_kernel == "native"


def in_a_process(code: str, **environment: str) -> str:
    code = f"import torch, torch_overlay\ncudnn = torch.backends.cudnn\n{code}"
    paths = os.pathsep.join(map(str, (REPO, REPO / "scripts")))
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    run = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("value, expected", [(None, "auto"), ("", "auto"), ("cudnn", "cudnn"), ("native", "native")])
def test_the_environment_variable(value, expected):
    environment = {} if value is None else {"TORCH_CUDNN_CONV_TRANSPOSE1D_KERNEL": value}
    assert in_a_process("print(cudnn.conv_transpose1d_kernel)", **environment) == expected


def test_a_wrong_environment_variable_is_a_value_error_whenever_it_is_asked_for():
    code = """
for i in range(2):
    try:
        cudnn.conv_transpose1d_kernel
    except ValueError as error:
        print(error)
torch.nn.functional.conv_transpose1d(torch.ones(1, 1, 2), torch.ones(1, 1, 2))  # not on the CPU
"""
    message = 'TORCH_CUDNN_CONV_TRANSPOSE1D_KERNEL must be "auto", "cudnn" or "native", got "fast"'
    assert in_a_process(code, TORCH_CUDNN_CONV_TRANSPOSE1D_KERNEL="fast") == f"{message}\n{message}"


def test_it_is_frozen_with_the_other_flags():
    code = """
torch.backends.disable_global_flags()
try:
    cudnn.conv_transpose1d_kernel = "native"
except RuntimeError as error:
    print("not allowed to set torch.backends.cudnn flags" in str(error))
with cudnn.flags(conv_transpose1d_kernel="native"):
    print(cudnn.conv_transpose1d_kernel)
"""
    assert in_a_process(code) == "True\nnative"


def test_a_build_and_wheel_mode_have_the_same_switch(monkeypatch):
    """The file as the edits leave it, run as a module of its own, beside what was replayed at import."""
    original = Path(cudnn.__file__)
    edits = [edit for edit in load_patches() if edit.target == CUDNN_FILE]
    text, outcomes = apply_edits(CUDNN_FILE, original.read_bytes(), edits)
    assert len(outcomes) == 4 and not any(outcome.error for outcome in outcomes)
    module = types.ModuleType("torch.backends.cudnn")
    module.__path__, module.__package__ = [str(original.parent)], "torch.backends.cudnn"
    monkeypatch.setitem(sys.modules, "torch.backends.cudnn", module)
    exec(compile(text, str(original), "exec", dont_inherit=True), vars(module))
    built = sys.modules["torch.backends.cudnn"]
    assert built is not cudnn and type(built).__name__ == "CudnnModule"
    assert module.__annotations__["conv_transpose1d_kernel"] is str
    ours = {name for name in dir(type(cudnn)) if not name.startswith("__")}
    assert ours == {name for name in dir(type(built)) if not name.startswith("__")}
    built.conv_transpose1d_kernel = "native"
    assert cudnn.conv_transpose1d_kernel == "native"
    with built.flags(enabled=True, conv_transpose1d_kernel="cudnn"):
        assert cudnn.conv_transpose1d_kernel == "cudnn"
    assert built.conv_transpose1d_kernel == "native"


# ---- The CPU --------------------------------------------------------------------------------


@st.composite
def calls(draw):
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    stride, dilation = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    taps, length = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    padding = draw(st.integers(0, ((length - 1) * stride + dilation * (taps - 1)) // 2))
    p = Parameters(stride, padding, draw(st.integers(0, max(stride, dilation) - 1)), dilation, groups)
    sizes = draw(st.integers(1, 2)), groups * draw(st.integers(1, 3)), length
    return p, sizes, (sizes[1], draw(st.integers(1, 3)), taps)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(calls())
def test_the_reference_is_what_the_cpu_computes(call):
    p, input_sizes, weight_sizes = call
    x, w = torch.randn(input_sizes).double(), torch.randn(weight_sizes).double()
    leaves = [tensor.requires_grad_() for tensor in (x, w, torch.randn(weight_sizes[1] * p.groups).double())]
    out = F.conv_transpose1d(*leaves, **p.arguments())
    arrays = [double(tensor) for tensor in leaves]
    np.testing.assert_allclose(forward(*arrays, p), double(out), rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(out)
    for got, want in zip(backward(double(grad), *arrays[:2], p), torch.autograd.grad(out, leaves, grad)):
        np.testing.assert_allclose(got, double(want), rtol=1e-12, atol=1e-12)
    singles = [array.astype(np.float32) for array in arrays]
    error = np.abs(fma(*singles, p) - forward(*(single.astype(np.float64) for single in singles), p))
    assert (error <= (terms(x, w, p) + 1) * 2.0**-24 * forward(*map(abs, arrays), p) * 1.01 + 2.0**-149).all()


def test_the_cpu_is_not_affected():
    x, w = torch.randn(2, 4, 9, requires_grad=True), torch.randn(4, 3, 3, requires_grad=True)
    before = cudnn._conv_transpose1d.native_counts()
    results = []
    for value in VALUES:
        cudnn.conv_transpose1d_kernel = value
        out = F.conv_transpose1d(x, w, stride=2)
        results.append((out, *torch.autograd.grad(out.sum(), (x, w))))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))
    assert cudnn._conv_transpose1d.native_counts() == before == dict.fromkeys(before, 0)


def make(*sizes, dtype=torch.float32):
    return torch.zeros(sizes, dtype=dtype)


@pytest.mark.parametrize("name", list(bad_calls(make)))
def test_errors_on_the_cpu_are_pytorchs(name):
    results = []
    for value in VALUES:
        cudnn.conv_transpose1d_kernel = value
        results.append(raised(bad_calls(make)[name]))
    assert results[1:] == results[:-1]
    if name not in ("integers", "no output"):  # which the CPU computes
        assert issubclass(results[0][0], RuntimeError)


def test_it_is_in_no_graph():
    """Routing is within the kernel of convolution: an exported program is what it was."""

    class Module(torch.nn.Module):
        def forward(self, x, w):
            return F.conv_transpose1d(x, w, stride=2)

    cudnn.conv_transpose1d_kernel = "native"
    program = torch.export.export(Module(), (torch.randn(2, 4, 9), torch.randn(4, 3, 3)))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names == ["aten.conv_transpose1d.default"]


def test_a_torch_without_cuda_keeps_its_kernels():
    for name in ("aten::convolution", "aten::convolution_backward"):
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
        assert has_kernel == (torch.version.cuda is not None)


@pytest.mark.parametrize("capability", (70, 75, 80, 86, 89, 100, 120))
def test_auto_is_cudnn_on_architectures_that_were_not_measured(capability):
    for name in ("forward", "grad_input", "grad_weight", "grad_bias"):
        assert not torch.ops.aten_overlay.conv_transpose1d_was_faster(
            capability, name, torch.float32, False, [16, 32, 131072], [32, 64, 3], 2, 2, 1
        )
