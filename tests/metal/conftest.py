"""Tests of scripts/metal_host and of the overlay's Metal kernels."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
