"""`package`: a wheel to install, in dist/: of a patched torch, or of wheel mode for one torch."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from .errors import OverlayError
from .paths import REPO
from .source_mode.build import Build, build, build_wheel
from .source_mode.command import add_tree, job_of
from .source_mode.switches import overlay_version
from .state import load_state
from .trees import display
from .wheel_mode import build as wheel_mode
from .wheel_mode.target import from_python

DIST = REPO / "dist"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("package", help="make a wheel to install", description=__doc__)
    add_tree(parser, optional=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.tree:
        wheel = package_torch(job_of(arguments))
    else:
        wheel = package_wheel_mode(wheel_mode.build(from_python(arguments.python or sys.executable)))
    print(f"package: {display(wheel)}, {wheel.stat().st_size / 1e6:.1f} MB; pip install it")
    return 0


def package_torch(job: Build, destination: Path = DIST) -> Path:
    if load_state(job.tree.root) is None:
        raise OverlayError(display(job.tree.root), "nothing of the overlay is in this tree", "make apply")
    build(job)
    destination.mkdir(exist_ok=True)
    return build_wheel(job, destination)


def package_wheel_mode(folder: Path, destination: Path = DIST) -> Path:
    """`folder`: a build of wheel mode."""
    torch = json.loads((folder / wheel_mode.MANIFEST).read_text())["torch"]["version"]
    version = f"{overlay_version()}+torch.{torch.replace('+', '.')}"
    with tempfile.TemporaryDirectory() as name:
        stage = Path(name) / "stage"
        _stage(folder, stage, version)
        made = Path(name) / "made"
        # Nothing is downloaded: setuptools is there, as torch needs it.
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
        command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(made), str(stage)]
        if subprocess.run(command).returncode:
            raise OverlayError(
                "pip wheel", "it packs the staged build; its messages are above", "pip install --upgrade setuptools"
            )
        (wheel,) = made.glob("*.whl")
        destination.mkdir(exist_ok=True)
        return Path(shutil.copy2(wheel, destination / wheel.name))


def _stage(folder: Path, stage: Path, version: str) -> None:
    """The package with the build inside, as pyproject.toml describes it and torch_overlay finds it."""
    package = stage / "torch_overlay"
    shutil.copytree(REPO / "torch_overlay", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy2(REPO / name, stage / name)
    (package / "_version.py").write_text(f'__version__ = "{version}"\n')
    staged = package / "build"
    staged.mkdir()
    for name in (wheel_mode.MANIFEST, wheel_mode.LIBRARY):
        shutil.copy2(folder / name, staged / name)
    shutil.copytree(folder / "python", staged / "python", ignore=shutil.ignore_patterns("__pycache__"))
    # The library does not link Python, so any Python of this platform takes it.
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    (stage / "setup.cfg").write_text(f"[bdist_wheel]\nplat_name = {platform}\n")
