"""Mistakes in operators, each of which the checks of the suite show."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from metal_host import simulated_mps
from overlay.errors import OverlayError
from overlay.model import load_patches
from overlay.paths import OVERLAYS
from overlay.wheel_mode.entries import entries_with_device
from overlay.wheel_mode.target import from_python
from packaging.version import Version

MPS = OVERLAYS[0] / "aten/src/ATen/native/mps"
HOST, KERNELS = MPS / "operations/CausalConv1d.mm", MPS / "kernels/CausalConv1d.metal"
RUN = Path(__file__).with_name("mps_mutants.py")

# What is replaced, and by what. A library of host code takes the place of the one before, and the right kernels are
# loaded again after wrong ones; the mistake that faults comes last.
MUTATIONS = {
    "reads_before_the_view": (
        KERNELS,
        "return static_cast<float>(input[offset_of(p.input, b, d, s)]);",
        "return static_cast<float>(input[offset_of(p.input, b, d, s) - 1]);",
    ),
    "buffers_swapped": (
        HOST,
        "output, args_.input, args_.weight, given(args_.bias)",
        "output, args_.input, given(args_.bias), args_.weight",
    ),
    "storage_offset_forgotten": (
        HOST,
        "output, args_.input, args_.weight, given(args_.bias)",
        "output, getMTLBufferStorage(args_.input), args_.weight, given(args_.bias)",
    ),
    "host_reads_device_memory": (
        HOST,
        "  Call(args).forward(output, final_state);",
        "  if (args.input.const_data_ptr<float>()[0] != 0) {\n    Call(args).forward(output, final_state);\n  }",
    ),
}


def mutant(tmp_path: Path, name: str) -> Path:
    original, old, new = MUTATIONS[name]
    source = original.read_text()
    assert source.count(old) == 1, name
    path = tmp_path / f"{name}{original.suffix}"
    path.write_text(source.replace(old, new))
    return simulated_mps.build_host_library(path) if original == HOST else path


def test_each_is_caught(tmp_path):
    with ThreadPoolExecutor(2) as pool:  # the compiler is another process
        mutants = list(pool.map(lambda name: mutant(tmp_path, name), MUTATIONS))
    kernels, *host = mutants
    mistakes = [str(path) for path in (kernels, KERNELS, *host)]
    run = subprocess.run([sys.executable, str(RUN), *mistakes], capture_output=True, text=True)
    assert run.stdout.split() == ["agrees", "differs", "agrees", "differs", "differs"], run.stderr
    assert run.returncode == -signal.SIGSEGV, run.stderr


def test_overloads_without_their_kernel_are_caught():
    """An in-place operator of PyTorch, and an operator of ours."""
    run = subprocess.run([sys.executable, str(RUN), "put_", "causal_conv1d"], capture_output=True, text=True)
    assert run.stdout.splitlines() == ["agrees", "falls back", "falls back"], run.stderr


def test_an_edit_that_forgets_an_overload_is_refused():
    target = from_python(sys.executable)
    native_functions = (target.packaged / "ATen/native/native_functions.yaml").read_bytes()
    edits = load_patches()
    [take] = [edit for edit in edits if "take" in edit.arguments.get("functions", ())]
    take.arguments["functions"].remove("take")
    with pytest.raises(OverlayError, match="overloads left behind: take"):
        entries_with_device(native_functions, edits, Version(target.version), "MPS")
