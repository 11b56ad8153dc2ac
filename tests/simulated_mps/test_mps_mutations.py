"""Mistakes in host code, each of which the device shows."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from metal_host import simulated_mps
from overlay.paths import OVERLAYS

HOST = OVERLAYS[0] / "aten/src/ATen/native/mps/operations/CausalConv1d.mm"
RUN = Path(__file__).with_name("mps_mutants.py")

# What is replaced, and by what. The one that faults comes last.
MUTATIONS = {
    "buffers_swapped": (
        "output, args_.input, args_.weight, given(args_.bias)",
        "output, args_.input, given(args_.bias), args_.weight",
    ),
    "storage_offset_forgotten": (
        "output, args_.input, args_.weight, given(args_.bias)",
        "output, getMTLBufferStorage(args_.input), args_.weight, given(args_.bias)",
    ),
    "host_reads_device_memory": (
        "  Call(args).forward(output, final_state);",
        "  if (args.input.const_data_ptr<float>()[0] != 0) {\n    Call(args).forward(output, final_state);\n  }",
    ),
}


def mutant(tmp_path: Path, name: str) -> Path:
    source = HOST.read_text()
    old, new = MUTATIONS[name]
    assert source.count(old) == 1, name
    path = tmp_path / f"{name}.mm"
    path.write_text(source.replace(old, new))
    return simulated_mps.build_host_library(path)


def test_each_is_caught(tmp_path):
    with ThreadPoolExecutor(2) as pool:  # the compiler is another process
        libraries = list(pool.map(lambda name: mutant(tmp_path, name), MUTATIONS))
    run = subprocess.run([sys.executable, str(RUN), *map(str, libraries)], capture_output=True, text=True)
    assert run.stdout.split() == ["agrees", "differs", "differs"], run.stderr
    assert run.returncode == -signal.SIGSEGV, run.stderr
