"""What the tests on the simulated device share."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from metal_host.registrations import registrations
from metal_host.simulated_mps import Counts
from overlay.mps_coverage import family_of
from overlay.wheel_mode.target import from_root

_parts = registrations(from_root(Path(torch.__file__).parents[1])).parts
# The operators that have kernels here.
FAMILIES = {family_of(name) for part in _parts for name in re.findall(r'm\.impl\("([^"]+)"', part.read_text())}


def left_to_the_cpu(counts: Counts) -> list[str]:
    """Overloads of these operators that fell back."""
    return [name for name in counts.fallbacks if family_of(name.removeprefix("aten::")) in FAMILIES]
