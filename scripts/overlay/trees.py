"""PyTorch trees: a source checkout, or a wheel tree (see wheels.py) with the same layout."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version

from .errors import OverlayError
from .paths import REPO, TREES

MARKER = ".wheel-tree.json"  # at the root of a wheel tree: what it was built from
NATIVE_FUNCTIONS = "aten/src/ATen/native/native_functions.yaml"


@dataclass(frozen=True)
class Tree:
    root: Path
    kind: Literal["source", "wheel"]
    version: Version
    origin: str  # where it came from, for messages

    def describe(self) -> str:
        return f"PyTorch {self.version}, {self.kind} tree ({self.origin}) at {display(self.root)}"


def open_tree(root: Path) -> Tree:
    """Recognises the PyTorch tree at `root`, or refuses."""
    root = Path(root).resolve()
    place = display(root)
    if not root.is_dir():
        raise OverlayError(place, "a tree is a folder, and there is none here", _fetch_hint(root))
    if (root / MARKER).is_file():
        marker = json.loads((root / MARKER).read_text())
        return Tree(root, "wheel", Version(marker["version"]), marker["origin"])
    if (root / "torch" / "version.py").is_file() and not (root / "aten").exists():
        raise OverlayError(
            place,
            "this is an installed torch, whose files are never changed",
            "build a tree from it: make fetch TORCH=<its version>, or use it as it is: make wheel-mode",
        )
    missing = [name for name in ("version.txt", NATIVE_FUNCTIONS, "torch/__init__.py") if not (root / name).is_file()]
    if missing:
        raise OverlayError(
            place,
            f"this is no PyTorch tree: {', '.join(missing)} not found",
            "name the root of a PyTorch checkout with TREE=, or a release with VERSION=",
        )
    return Tree(root, "source", _source_version(root), _source_origin(root))


def tree_path(version: str, origin: str = "") -> Path:
    """Where `make fetch` puts a tree."""
    return TREES / (f"{version}-{origin}" if origin else version)


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """A path to make a folder at, which becomes `destination` on success and is removed otherwise."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        yield holder / destination.name
        os.rename(holder / destination.name, destination)
    except OSError as error:
        raise OverlayError(
            display(destination),
            f"it could not be written: {error}",
            "nothing is left behind; mend that and run it again",
        ) from None
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def display(path: Path) -> str:
    """Relative to the repository where it lies inside it."""
    return str(path.relative_to(REPO)) if path.is_relative_to(REPO) else str(path)


def _fetch_hint(root: Path) -> str:
    if root.parent != TREES:
        return "name the root of a PyTorch checkout with TREE="
    version, _, origin = root.name.partition("-")
    option = {"": "", "debian": " SOURCE=debian", "git": " SOURCE=git"}.get(origin, f" PLATFORM={origin}")
    return f"make fetch VERSION={version}{option}"


def _source_version(root: Path) -> Version:
    text = (root / "version.txt").read_text().strip()
    try:
        return Version(text)
    except InvalidVersion:
        raise OverlayError(
            f"{display(root)}/version.txt", f"it holds a version such as 2.14.1 or 2.15.0a0, not `{text}`"
        ) from None


def _source_origin(root: Path) -> str:
    changelog = root / "debian" / "changelog"
    if changelog.is_file():
        with changelog.open() as lines:
            return "Debian " + lines.readline().partition(";")[0].strip()  # "pytorch (2.6.0+dfsg-7) unstable"
    return "git checkout" if (root / ".git").exists() else "source archive"
