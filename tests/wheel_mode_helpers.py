"""A small overlay with one operator of each kind, and torches to build it against."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from one_at_a_time import TEST_TREES, one_at_a_time
from overlay import fetch, wheels
from overlay.paths import REPO
from overlay.wheel_mode import build as wheel_mode
from overlay.wheel_mode.target import Target, from_python, from_root

DUMMY = Path(__file__).with_name("wheel_mode_overlay")
DUMMY_PATCHES = DUMMY / "patches"


def dummy_overlay(root: Path = DUMMY) -> wheel_mode.Overlay:
    return wheel_mode.Overlay(root / "patches", (root / "aten_overlay", root / "test_overlay"))


def target_of(version: str) -> Target:
    """The installed torch if it is that release, else a wheel that is unpacked once: its Python and headers."""
    if fetch.installed_version() == version:
        return from_python(sys.executable)
    site = TEST_TREES / f"{version}-site"
    with one_at_a_time():
        if not site.exists():
            # Any platform's wheel has the generators and the headers; this one is the smallest. Its sleef.h alone is
            # for its own processor.
            wheels.unpack_site(fetch.download_wheel(version, "macos-arm64"), site)
        sleef = Path("torch", "include", "sleef.h")
        shutil.copy(from_python(sys.executable).root / sleef, site / sleef)
    return from_root(site)


@dataclass
class DummyBuild:
    """The small overlay in a folder of its own, which tests may change, and its build."""

    overlay: Path
    builds: Path
    target: Target
    folder: Path

    def build(self) -> Path:
        return wheel_mode.build(self.target, dummy_overlay(self.overlay), self.builds)

    def write(self, name: str, text: str) -> Path:
        path = self.overlay / "aten_overlay" / "aten" / "src" / "ATen" / "native" / name
        path.write_text(text)
        return path

    def times(self) -> dict[str, int]:
        """When each object was made."""
        return {
            path.relative_to(self.folder).as_posix(): path.stat().st_mtime_ns
            for path in [*self.folder.rglob("*.o"), self.folder / wheel_mode.LIBRARY]
        }


@pytest.fixture(scope="session")
def dummy_build(tmp_path_factory: pytest.TempPathFactory) -> DummyBuild:
    root = tmp_path_factory.mktemp("wheel-mode")
    shutil.copytree(DUMMY, root / "overlay")
    target = from_python(sys.executable)
    folder = wheel_mode.build(target, dummy_overlay(root / "overlay"), root / "builds")
    return DummyBuild(root / "overlay", root / "builds", target, folder)


def run_python(code: str, build: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where `import torch_overlay` finds `build` and nothing else."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "TORCH_OVERLAY_BUILD": str(build or "/nonexistent")}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def check_python(code: str, build: Path | None = None) -> None:
    run = run_python(code, build)
    assert run.returncode == 0, run.stderr
