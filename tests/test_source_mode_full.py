"""Source mode for real, on Debian 13's 2.6.0: hours, as root, with 15 GB of disk. `make test-full` runs it.

It goes on from what an earlier run built.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from overlay.paths import REPO, TREES
from overlay.source_mode.chroot import CHROOTS
from overlay.source_mode.machine import Machine

pytestmark = pytest.mark.full

TREE, CHROOT = TREES / "2.6.0", CHROOTS / "trixie"
USE = """
import torch
x, weight = torch.randn(2, 8, 50), torch.randn(8, 4)
F = torch.nn.functional
expected = F.silu(F.conv1d(F.pad(x, (3, 0)), weight[:, None], groups=8))
torch.testing.assert_close(F.causal_conv1d(x, weight, activation="silu"), expected)
"""


def overlay(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPO / "scripts")}
    subprocess.run([sys.executable, "-m", "overlay", *arguments], env=environment, check=True)


def python(code: str) -> str:
    status, output = Machine(CHROOT, (REPO,)).run(["python3", "-c", code], environment={"PYTHONPATH": str(TREE)})
    assert status == 0, output
    return output.strip()


def test_patched_and_back():
    overlay("chroot", "2.6.0")
    overlay("apply", str(TREE))
    overlay("build", str(TREE))
    python(USE)
    overlay("test-ops", str(TREE))
    overlay("test-nn", str(TREE))
    overlay("package", str(TREE))
    overlay("revert", str(TREE))
    overlay("build", str(TREE))
    assert python("import torch; print(hasattr(torch.nn.functional, 'causal_conv1d'))") == "False"
    assert python("import torch; print(hasattr(torch._C._nn, 'causal_conv1d'))") == "False"
