"""Finding the build for the running torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parent
REPO = PACKAGE.parent


@dataclass(frozen=True)
class Build:
    folder: Path
    manifest: dict[str, Any]

    @property
    def torch(self) -> tuple[str, str]:
        return self.manifest["torch"]["version"], self.manifest["torch"]["git_version"]

    @property
    def library(self) -> Path:
        return self.folder / self.manifest["library"]


def find_build() -> Build:
    """The one for the running torch, the newest if there are several; nothing else will do."""
    running = str(torch.__version__), torch.version.git_version
    others = []
    for build in _builds():
        if build.torch == running:
            return build
        others.append(_name(*build.torch))
    raise ImportError(
        f"torch_overlay has no build for this {_name(*running)}"
        + (f", only for {', '.join(sorted(set(others)))}" if others else "")
        + f".\n  next: {_remedy()}"
    )


def _builds() -> Iterator[Build]:
    """In an installed wheel the build is in the package; in the repository, where `make wheel-mode` puts it."""
    if named := os.environ.get("TORCH_OVERLAY_BUILD"):
        manifests = [Path(named) / "manifest.json"]
    else:
        manifests = [PACKAGE / "build" / "manifest.json", *(REPO / "build" / "wheel-mode").glob("*/manifest.json")]
    manifests = [manifest for manifest in manifests if manifest.is_file()]
    for manifest in sorted(manifests, key=lambda path: path.stat().st_mtime, reverse=True):
        yield Build(manifest.parent, json.loads(manifest.read_text()))


def _name(version: str, git_version: str | None) -> str:
    return f"torch {version} (git {(git_version or 'unknown')[:8]})"


def _remedy() -> str:
    if not (REPO / "Makefile").is_file():
        return "install the torch_overlay that was built for this torch"
    if Path(sys.prefix).is_relative_to(REPO):
        return f"make -C {REPO} wheel-mode TORCH={torch.__version__.partition('+')[0]}"
    return f"make -C {REPO} wheel-mode FOR={sys.executable}"
