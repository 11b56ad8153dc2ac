"""Tests on the simulated mps device: `make test-mps-sim`. It is loaded before torch, so they run in a process of their
own and other runs of pytest do not collect them."""

import os
import sys

import pytest
from metal_host.executor import SCHEDULES

collect_ignore_glob = [] if "metal_host.pytest_mps" in sys.modules else ["test_*.py"]


@pytest.fixture(params=SCHEDULES if os.environ.get("METAL_TEST_FULL") == "1" else ("forward",))
def schedule(request):
    """The order in which threads run: each of them under METAL_TEST_FULL=1."""
    import torch

    torch.ops.metal_host.set_options(SCHEDULES[request.param], 1)
    yield
    torch.ops.metal_host.set_options(SCHEDULES["forward"], 1)
