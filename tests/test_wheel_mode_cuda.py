"""Wheel mode for a torch with CUDA, and the CUDA sources. No GPU is needed; nvcc is, for those that compile."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from overlay.errors import OverlayError
from overlay.model import load_patches
from overlay.paths import OVERLAYS
from overlay.wheel_mode import build, cuda
from overlay.wheel_mode.codegen import generate
from overlay.wheel_mode.toolchain import find_toolchain
from wheel_mode_helpers import target_of

SOURCES = sorted(path for root in OVERLAYS for path in root.rglob("*.cu"))
HOST_SOURCES = sorted(path for root in OVERLAYS for path in root.rglob("cuda/*.cpp")) + [build.CUDA_REGISTRATIONS]


@pytest.fixture
def target():
    """The headers of 2.14.1, as if it had been built with CUDA 13.0."""
    return replace(target_of("2.14.1"), cuda="13.0")


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """Makes CUDA_HOME a toolkit whose nvcc says that it is of a release."""

    def make(release: str) -> Path:
        for name, text in {
            "bin/nvcc": f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n",
            "include/cuda_runtime_api.h": "",
            "lib64/libcudart.so": "",
        }.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        return tmp_path

    return make


def test_a_torch_without_cuda_needs_no_nvcc(target, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    assert cuda.find_cuda(replace(target, cuda=None)) is None


def test_without_nvcc_the_operators_are_for_the_cpu(target, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_HOME", "none")
    assert cuda.find_cuda(target) is None
    assert "without CUDA: no nvcc found for the CUDA 13.0 of this torch" in capsys.readouterr().out


def test_a_toolkit_is_taken_whose_major_release_fits(target, toolkit):
    home = toolkit("13.2")
    found = cuda.find_cuda(target)
    assert found.compiler == home / "bin/nvcc" and found.runtime == home / "lib64/libcudart.so"
    toolkit("12.8")
    with pytest.raises(OverlayError, match="built with CUDA 13.0; nvcc is .* release 12.8") as error:
        cuda.find_cuda(target)
    assert "CUDA_HOME=none" in error.value.hint


def test_architectures(target, toolkit, monkeypatch):
    home = toolkit("13.0")
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    default = cuda.cuda_toolchain(home, target)
    assert [flag for flag in default.flags if flag.startswith("-gencode")] == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_80,code=compute_80",
        "-gencode=arch=compute_90a,code=sm_90a",
    ]
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a;12.0+PTX")
    named = cuda.cuda_toolchain(home, target)
    assert "-gencode=arch=compute_90a,code=sm_90a" in named.flags and "9.0a;12.0+PTX" == named.architectures
    tools = find_toolchain(target)
    assert len({tools.key(target), tools.key(target, *default.key()), tools.key(target, *named.key())}) == 3
    for wrong in ("7.5", "Hopper", "9.0 +PTX"):
        with pytest.raises(OverlayError, match="lists compute capabilities of 8.0 and later"):
            cuda.architecture_flags(wrong)


def test_kernels_of_a_device_are_registered_where_it_is_built(target, tmp_path):
    for devices in ((), ("CUDA",)):
        generate(target, load_patches(), tmp_path / "generated", devices)
        registered = 'include "RegisterCUDAEverything.cpp"' in (tmp_path / "generated/src/operators.cpp").read_text()
        assert registered == bool(devices)
    text = (tmp_path / "generated/src/RegisterCUDAEverything.cpp").read_text()
    assert re.search(r'm\.impl\("causal_conv1d",\s*TORCH_FN\(', text) and "CUDAContext.h" not in text


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_cuda_source_compiles(source, target, tmp_path, monkeypatch):
    """For sm_80 and sm_90a, against the headers of 2.14.1 (of its wheel) and of nvcc's own toolkit. Of the filter
    widths that have kernels of their own, two: the others are the same templates, and take minutes."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0 9.0a")
    toolchain = cuda.find_cuda(target)
    if toolchain is None:
        # CI says that it has nvcc.
        assert not os.environ.get("OVERLAY_TEST_NVCC"), "OVERLAY_TEST_NVCC is set, and there is no nvcc"
        pytest.skip("no nvcc")
    includes = [f"-I{root / 'aten/src'}" for root in OVERLAYS] + ["-isystem", str(target.include)]
    output = tmp_path / "device.fatbin"
    options = ["-DCAUSAL_CONV1D_MAX_WIDTH=2", "--threads=2", "-fatbin"]
    command = [toolchain.compiler, *toolchain.flags, *options, *includes, source, "-o", output]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "warning" not in run.stderr, run.stderr
    assert output.stat().st_size > 0


def test_host_code_and_the_registrations_belong_to_a_build_with_cuda(target, toolkit):
    toolchain, toolkit_13 = find_toolchain(target), cuda.cuda_toolchain(toolkit("13.0"), target)
    compiles = [c for root in OVERLAYS for c in build._cuda_host_compiles(root, toolchain, toolkit_13)]
    assert {compile.source for compile in compiles} == set(HOST_SOURCES)
    assert {compile.rule for compile in compiles} == {"compile"}
    without = [compile.source for root in OVERLAYS for compile in build._overlay_compiles(root, toolchain)]
    assert without and not set(without) & set(HOST_SOURCES)


@pytest.mark.parametrize("source", HOST_SOURCES, ids=lambda path: path.stem)
def test_host_code_of_cuda_compiles(source, target):
    """Against the headers of 2.14.1, those of its CUDA parts included."""
    toolkit = cuda.find_cuda(target)
    if toolkit is None:
        assert not os.environ.get("OVERLAY_TEST_NVCC"), "OVERLAY_TEST_NVCC is set, and there is no nvcc"
        pytest.skip("no nvcc")
    toolchain = find_toolchain(target)
    includes = [f"-I{root / 'aten/src'}" for root in OVERLAYS]
    includes += [f"-isystem{path}" for path in (target.include, target.include / "torch/csrc/api/include")]
    command = [*toolchain.compiler.split(), *toolchain.flags, *toolchain.overlay_flags, *toolkit.host_flags, *includes]
    run = subprocess.run([*command, "-Werror", "-fsyntax-only", source], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
