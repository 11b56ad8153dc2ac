"""What the tests on the simulated device share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from metal_host.executor import SCHEDULES
from metal_host.registrations import registrations
from metal_host.simulated_mps import Counts
from overlay.mps_coverage import family_of
from overlay.wheel_mode.target import from_root

FULL = os.environ.get("METAL_TEST_FULL") == "1"
STEP = 1 << 30  # elements, of which four are more than 32 bits count

_parts = registrations(from_root(Path(torch.__file__).parents[1])).parts
# The operators that have kernels here.
FAMILIES = {family_of(name) for part in _parts for name in re.findall(r'm\.impl\("([^"]+)"', part.read_text())}


def left_to_the_cpu(counts: Counts) -> list[str]:
    """Overloads of these operators that fell back."""
    return [name for name in counts.fallbacks if family_of(name.removeprefix("aten::")) in FAMILIES]


def in_schedules() -> Iterator[None]:
    """Once in each order of threads under METAL_TEST_FULL=1, else once."""
    try:
        for schedule in SCHEDULES.values() if FULL else (SCHEDULES["forward"],):
            torch.ops.metal_host.set_options(schedule, 1)
            yield
    finally:
        torch.ops.metal_host.set_options(SCHEDULES["forward"], 1)


def far_apart(values: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The values on mps, STEP elements from one to the next along a dimension. Few pages between are ever touched."""
    inner = values.select(dim, 0).contiguous()
    strides = list(inner.stride())
    strides.insert(dim, STEP)
    storage = torch.empty(STEP * (values.shape[dim] - 1) + inner.numel(), dtype=values.dtype, device="mps")
    return storage.as_strided(values.shape, strides).copy_(values)
