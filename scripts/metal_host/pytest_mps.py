"""`pytest -p metal_host.pytest_mps`: the tests run with the simulated mps device, which must come before torch."""

from __future__ import annotations

import os

from . import simulated_mps

sanitize_host = os.environ.get("METAL_TEST_HOST") == "1"
simulated_mps.load(sanitize=os.environ.get("METAL_TEST_FULL") == "1" and not sanitize_host, sanitize_host=sanitize_host)
