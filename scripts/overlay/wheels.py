"""Wheel trees: a PyTorch-layout tree rebuilt from a wheel, installed or not.

A wheel holds most of what the patches touch, in other places. Where each part goes:

    torchgen/packaged/ATen          -> aten/src/ATen      native_functions.yaml, tags.yaml, the code templates
    torchgen/packaged/autograd      -> tools/autograd     derivatives.yaml and the autograd generators
    torch/include/{ATen,c10,torch}  -> aten/src/ATen, c10, torch
    torch, torchgen, functorch      -> themselves         Python only

What the build generated and PyTorch's sources do not hold (ATen/ops) is left out.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from .errors import OverlayError
from .trees import MARKER, NATIVE_FUNCTIONS, Tree, display, new_folder, open_tree

# The first prefix that fits decides; None: not part of a tree.
_PLACES: tuple[tuple[str, str | None], ...] = (
    ("torchgen/packaged/ATen/", "aten/src/ATen/"),
    ("torchgen/packaged/autograd/", "tools/autograd/"),
    ("torchgen/packaged/", None),
    ("torch/include/ATen/ops/", None),
    ("torch/include/ATen/", "aten/src/ATen/"),
    ("torch/include/c10/", "c10/"),
    ("torch/include/torch/", "torch/"),
    ("torch/include/", None),
    ("torch/lib/", None),
    ("torch/bin/", None),
    ("torch/share/", None),
    ("torch/test/", None),
    ("torch/", "torch/"),
    ("torchgen/", "torchgen/"),
    ("functorch/", "functorch/"),
)
_BINARY = {".so", ".dylib", ".pyd", ".pyc", ".dll", ".lib", ".a"}


@dataclass(frozen=True)
class Build:
    """What torch/version.py says of a wheel."""

    version: str
    git_version: str
    cuda: str | None


class Site(Protocol):
    """The content of a wheel, named as in site-packages."""

    origin: str

    def names(self) -> Iterator[str]: ...
    def open(self, name: str) -> BinaryIO: ...


class InstalledSite:
    def __init__(self, root: Path):
        self.root = root
        self.origin = f"installed in {display(root)}"

    def names(self) -> Iterator[str]:
        for package in ("torch", "torchgen", "functorch"):
            for folder, _, files in os.walk(self.root / package):
                for file in files:
                    yield (Path(folder) / file).relative_to(self.root).as_posix()

    def open(self, name: str) -> BinaryIO:
        return (self.root / name).open("rb")


class WheelFile:
    def __init__(self, path: Path):
        try:
            self.archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise OverlayError(
                display(path), f"this is no wheel file: {error}", "remove it and fetch it again"
            ) from None
        self.origin = path.name

    def names(self) -> Iterator[str]:
        return (info.filename for info in self.archive.infolist() if not info.is_dir())

    def open(self, name: str) -> BinaryIO:
        return self.archive.open(name)


def open_site(path: Path) -> Site:
    """A `.whl` file, or a site-packages folder."""
    return WheelFile(path) if path.suffix == ".whl" else InstalledSite(path)


def installed_site(python: str) -> Path:
    """The site-packages folder that holds the torch of an interpreter, which is asked without importing it."""
    executable = shutil.which(python)
    code = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    try:
        if executable is None:
            raise FileNotFoundError("no such program")
        answer = subprocess.run([Path(executable).absolute(), "-c", code], cwd="/", check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise OverlayError(python, f"this is no working Python interpreter: {error}", "name another one") from None
    origin = answer.stdout.decode().strip()
    if not origin:
        raise OverlayError(python, "this interpreter has no torch", f"{python} -m pip install torch")
    site = Path(origin).parents[1]
    if not (site / "torchgen" / "packaged").is_dir():
        raise OverlayError(
            str(site),
            "this torch was not installed from a wheel: it holds no torchgen/packaged",
            "for a source build, name its checkout with TREE=",
        )
    return site


def read_build(site: Site) -> Build:
    """The constants of torch/version.py, read without running it."""
    try:
        with site.open("torch/version.py") as file:
            module = ast.parse(file.read())
    except (OSError, KeyError):
        raise OverlayError(site.origin, "this holds no torch: torch/version.py not found") from None
    values = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            values[ast.unparse(target)] = statement.value.value
    missing = {"__version__", "git_version", "cuda"} - values.keys()
    if missing:
        raise OverlayError(f"{site.origin}: torch/version.py", f"it does not say {', '.join(sorted(missing))}")
    return Build(values["__version__"], values["git_version"], values["cuda"])


def place_in_tree(name: str) -> str | None:
    """Where a file of a wheel stands in a PyTorch tree; None if it is no part of it."""
    path = PurePosixPath(name)
    if path.suffix in _BINARY:
        return None
    for prefix, place in _PLACES:
        if name.startswith(prefix):
            return None if place is None else place + name.removeprefix(prefix)
    return None


def build_tree(source: Path, destination: Path) -> Tree:
    """Builds the wheel tree of a wheel file or site-packages folder; `destination` appears whole or not at all."""
    site = open_site(source)
    build = read_build(site)
    with new_folder(destination) as root:
        root.mkdir()
        _copy(site, root, {name: place for name in site.names() if (place := place_in_tree(name))})
        if not (root / NATIVE_FUNCTIONS).is_file():
            raise OverlayError(
                site.origin,
                f"this torch ({build.version}) has no {NATIVE_FUNCTIONS} in torchgen/packaged",
                "use a release of versions.toml",
            )
        parts = sorted(entry.name for entry in root.iterdir())
        marker = {**build.__dict__, "origin": site.origin, "parts": parts}
        (root / MARKER).write_text(json.dumps(marker, indent=1) + "\n")
    return open_tree(destination)


def unpack_site(wheel: Path, destination: Path) -> None:
    """Unpacks what compiling and linking against a torch takes, as in site-packages: Python, headers, libraries."""
    site = WheelFile(wheel)
    unneeded = ("torch/bin/", "torch/share/", "torch/test/")
    names = [
        name for name in site.names() if name.startswith(("torch/", "torchgen/")) and not name.startswith(unneeded)
    ]
    with new_folder(destination) as root:
        root.mkdir()
        _copy(site, root, {name: name for name in names})


def _copy(site: Site, root: Path, places: dict[str, str]) -> None:
    for name, place in places.items():
        if ".." in PurePosixPath(place).parts:
            raise OverlayError(f"{site.origin}: {name}", "a wheel's file stays inside it")
        target = root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        with site.open(name) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
