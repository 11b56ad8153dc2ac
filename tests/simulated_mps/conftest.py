"""Tests on the simulated mps device: `make test-mps-sim`. It is loaded before torch, so they run in a process of their
own and other runs of pytest do not collect them."""

import sys

collect_ignore_glob = [] if "metal_host.pytest_mps" in sys.modules else ["test_*.py"]
