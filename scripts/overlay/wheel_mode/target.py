"""The torch that is built against: installed in an interpreter, or the folder of an unpacked wheel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ..errors import OverlayError
from ..wheels import InstalledSite, installed_site, read_build

_PARTS = ("torch/version.py", "torch/include/ATen/ATen.h", "torchgen/gen.py", "torchgen/packaged/ATen/native/tags.yaml")


@dataclass(frozen=True)
class Target:
    root: Path  # the folder that holds torch/ and torchgen/
    version: str  # as torch.__version__: "2.13.0+cpu"
    git_version: str
    cuda: str | None
    cxx_standard: str  # "c++20"

    @property
    def release(self) -> Version:
        return Version(self.version)

    @property
    def include(self) -> Path:
        return self.root / "torch" / "include"

    @property
    def packaged(self) -> Path:
        return self.root / "torchgen" / "packaged"

    def describe(self) -> str:
        return f"torch {self.version} (git {self.git_version[:8]}) in {self.root}"


def from_python(executable: str) -> Target:
    return from_root(installed_site(executable))


def from_root(root: Path) -> Target:
    root = root.resolve()
    missing = [part for part in _PARTS if not (root / part).is_file()]
    if missing:
        raise OverlayError(
            str(root),
            f"a folder with torch/ and torchgen/ of a PyTorch wheel was expected; missing: {', '.join(missing)}",
            "name the folder with --torch-root, or an interpreter that has torch with --python",
        )
    build = read_build(InstalledSite(root))
    return Target(root, build.version, build.git_version, build.cuda, _cxx_standard(root))


def _cxx_standard(root: Path) -> str:
    """What this torch tells C++ extensions to compile with."""
    path = root / "torch" / "utils" / "cpp_extension.py"
    found = re.findall(r"common_cflags \+= \['-std=(c\+\+\d+)'", path.read_text())
    if len(found) != 1:
        raise OverlayError(str(path), f"it sets the C++ standard of extensions in one place; found {len(found)}")
    return found[0]
