"""Mistakes in how the device runs pointwise kernels, each of which test_mps_pointwise.py shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from metal_host import simulated_mps

SUITE = Path(__file__).with_name("test_mps_pointwise.py")
HOST = SUITE.with_name("pointwise.mm")
LIBRARY = simulated_mps.SOURCES / "ShaderLibrary.mm"

MUTATIONS = {
    "strides_swapped": ("arguments.add_geometry(iter, {1, 0});", "arguments.add_geometry(iter, {0, 1});"),
    "outer_from_dimension_0": ("add_geometry(iter, {0, 1, 2}, 1).add(run)", "add_geometry(iter, {0, 1, 2}).add(run)"),
    "every_element_a_tile": ("tiled ? tiles(numel) : numel", "numel / (tiled ? c10::metal::ILP_PER_THREAD : 1)"),
    "one_dispatch_for_64_bits": ("if (!iter.can_use_32bit_indexing()) {", "if (false) {"),
    "scalar_on_the_wrong_side": ("mtl_setBuffer(encoder, small, left ? 1 : 2);", "mtl_setBuffer(encoder, small, 1);"),
    "types_before_sizes": ("arguments.add(sizes).add(types);", "arguments.add(types).add(sizes);"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_is_caught(name, tmp_path):
    old, new = MUTATIONS[name]
    source = LIBRARY.read_text()
    assert source.count(old) >= 1, name
    mutant = tmp_path / f"{name}.mm"
    header = simulated_mps.SOURCES / "commands.h"
    mutant.write_text(source.replace(old, new).replace('"commands.h"', f'"{header}"'))
    library = simulated_mps.build_host_library(HOST, mutant)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "metal_host.pytest_mps", str(SUITE)]
    environment = {**os.environ, "POINTWISE_LIBRARY": str(library)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 1 and " failed" in run.stdout, run.stdout[-2000:] + run.stderr[-2000:]
