"""The device's own code and the operators' host code under ASan and UBSan, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from metal_host.simulated_mps import host_sanitizers

HERE = Path(__file__).parent
SUITES = (
    "test_mps_device.py", "test_mps_causal_conv1d.py", "test_mps_elementwise.py", "test_mps_take_put.py",
    "test_mps_adaptive_avg_pooling.py", "test_mps_pointwise.py", "test_mps_operators.py", "test_mps_consistency.py",
)  # fmt: skip
FAULT = """
from pathlib import Path
import metal_host.simulated_mps as mps
mps.load(sanitize_host=True)
import torch
torch.ops.load_library(mps.build_host_library(Path({path!r})))
print(torch.ops.host_faults.read_beyond(3), torch.ops.host_faults.add_to_largest(0), flush=True)
print(torch.ops.host_faults.{call})
"""


def run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **host_sanitizers(), "METAL_TEST_HOST": "1", "METAL_TEST_FULL": ""}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.full
@pytest.mark.parametrize(
    ("call", "report"),
    (("read_beyond(4)", "heap-buffer-overflow"), ("add_to_largest(1)", "signed integer overflow")),
)
def test_mistakes_are_reported(call, report):
    result = run("-c", FAULT.format(path=str(HERE / "host_faults.mm"), call=call))
    assert result.stdout == f"7 {2**63 - 1}\n", result.stderr
    assert result.returncode != 0 and report in result.stderr


@pytest.mark.full
@pytest.mark.parametrize("suite", SUITES)
def test_the_suites(suite):
    result = run("-m", "pytest", "-q", "-p", "metal_host.pytest_mps", str(HERE / suite))
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "runtime error" not in result.stderr and "AddressSanitizer" not in result.stderr
