"""`make doctor`: blockers fail, everything else only warns, and an older Python can still run it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from overlay import doctor, machine
from overlay.paths import REPO


def run(path: str, *options: str) -> subprocess.CompletedProcess:
    # -S: the standard library alone
    command = [sys.executable, "-S", "-m", "overlay.doctor", *options]
    environment = {"PATH": path, "PYTHONPATH": str(REPO / "scripts")}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def venv_with(root: Path, version: str, cuda: str | None) -> Path:
    file = root / "lib" / "python3.11" / "site-packages" / "torch" / "version.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n")
    return root


def test_this_machine():
    result = run("/usr/local/bin:/usr/bin:/bin")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("doctor: OK\n")
    for name in ("Python", "C++ compiler", "torch", "CUDA", "ninja", "ccache", "git", "disk", "memory"):
        assert f"  {name} " in result.stdout
    assert "MAX_JOBS=" in result.stdout


def test_no_compiler_is_a_blocker(tmp_path):
    result = run(str(tmp_path))
    assert result.returncode == 1
    assert "BLOCKER  C++ compiler" in result.stdout
    assert "\nfix C++ compiler: " in result.stdout and "\nfix ccache: " in result.stdout
    assert result.stdout.endswith("doctor: 1 to mend first\n")


def test_a_compiler_without_cpp20_is_a_blocker(tmp_path, monkeypatch):
    compiler = tmp_path / "old-c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "old-c++ 7.5"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    row = doctor._compiler()
    assert (row.found, row.state) == ("old-c++ 7.5", doctor.BLOCKER)


def test_an_older_python_is_a_blocker(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    assert doctor._python().state == doctor.BLOCKER


def test_the_sources_are_syntax_for_an_older_python():
    for name in ("doctor", "errors", "machine", "paths", "versions"):
        ast.parse((REPO / "scripts" / "overlay" / f"{name}.py").read_text(), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("version", "state"), [("2.13.0+cpu", doctor.OK), ("2.14.1", doctor.OK), ("1.13.0", doctor.WARNING)]
)
def test_torch(tmp_path, version, state):
    venv = venv_with(tmp_path, version, None)
    row = doctor._torch(venv, doctor._torch_build(venv))
    assert (row.found, row.state) == (f"{version} in {tmp_path.name}", state)


def test_no_torch_yet(tmp_path):
    assert doctor._torch(tmp_path, doctor._torch_build(tmp_path)).state == doctor.OK


@pytest.mark.parametrize(
    ("cuda", "nvcc", "state"),
    [
        (None, "", doctor.OK),
        ("13.0", "Cuda compilation tools, release 13.2, V13.2.1", doctor.OK),
        ("13.0", "Cuda compilation tools, release 12.8, V12.8.93", doctor.WARNING),
        ("13.0", "", doctor.WARNING),
    ],
)
def test_cuda(tmp_path, monkeypatch, cuda, nvcc, state):
    monkeypatch.setattr(doctor, "_output", lambda command: nvcc)
    venv = venv_with(tmp_path, "2.14.1", cuda)
    assert doctor._cuda(doctor._torch_build(venv)).state == state


@pytest.mark.parametrize(
    ("answers", "found", "state"),
    [
        ({"--show-sdk-path": "/sdk\n", "--find": "/bin/metal\n"}, "macOS SDK, metal", doctor.OK),
        ({"--show-sdk-path": "/sdk\n"}, "macOS SDK, no metal", doctor.WARNING),
        ({}, "no macOS SDK", doctor.WARNING),
    ],
)
def test_metal_on_a_mac_alone(tmp_path, monkeypatch, answers, found, state):
    def output(command):
        return answers.get(command[3], "") if command[0] == "xcrun" else ""

    monkeypatch.setattr(doctor, "_output", output)
    assert not [row for row in doctor.checks(tmp_path) if row.name == "Metal"]
    monkeypatch.setattr(sys, "platform", "darwin")
    [row] = [row for row in doctor.checks(tmp_path) if row.name == "Metal"]
    assert (row.found, row.state) == (found, state) and "unverified" in row.needed


@pytest.mark.parametrize(("free", "state"), [(1, doctor.BLOCKER), (4, doctor.WARNING), (100, doctor.OK)])
def test_disk(monkeypatch, free, state):
    usage = type("usage", (), {"free": free * doctor.GIB})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert doctor._disk().state == state


@pytest.mark.parametrize(
    ("gib", "cores", "wanted", "jobs"), [(1, 8, "", 1), (7, 8, "", 4), (64, 2, "", 2), (64, 8, "3", 3), (4, 8, "6", 2)]
)
def test_memory_limits_the_jobs(monkeypatch, gib, cores, wanted, jobs):
    monkeypatch.setattr(machine, "available_memory", lambda: gib * doctor.GIB)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setenv("MAX_JOBS", wanted)
    assert doctor._memory().needed.endswith(f"MAX_JOBS={jobs}")
