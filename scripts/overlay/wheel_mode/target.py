"""The torch that is built against: installed in an interpreter, or the folder of an unpacked wheel."""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ..errors import OverlayError

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


def from_root(root: Path) -> Target:
    root = root.resolve()
    missing = [part for part in _PARTS if not (root / part).is_file()]
    if missing:
        raise OverlayError(
            str(root),
            f"the folder of an installed or unpacked PyTorch wheel holds torch/ and torchgen/; missing: {', '.join(missing)}",
            "name the folder with --torch-root, or an interpreter that has torch with --python",
        )
    values = _assignments(root / "torch" / "version.py")
    return Target(root, values["__version__"], values["git_version"], values["cuda"], _cxx_standard(root))


def from_python(executable: str) -> Target:
    """Asks the interpreter where its torch is, without importing it."""
    question = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    try:
        answer = subprocess.run([executable, "-c", question], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise OverlayError(executable, f"a Python interpreter was expected: {error}", "name another with --python") from None
    if not answer:
        raise OverlayError(executable, "this interpreter has no torch", f"{executable} -m pip install torch")
    return from_root(Path(answer).parents[1])


def _assignments(path: Path) -> dict[str, str | None]:
    """The literals that torch/version.py assigns; the file may hold imports that are not for us to run."""
    values = {}
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(getattr(node, "value", None), ast.Constant):
            values[target.id] = node.value.value
    missing = {"__version__", "git_version", "cuda"} - values.keys()
    if missing:
        raise OverlayError(str(path), f"it says version, git hash and CUDA version; missing: {', '.join(sorted(missing))}")
    return values


def _cxx_standard(root: Path) -> str:
    """What this torch tells C++ extensions to compile with."""
    path = root / "torch" / "utils" / "cpp_extension.py"
    found = re.findall(r"common_cflags \+= \['-std=(c\+\+\d+)'", path.read_text())
    if len(found) != 1:
        raise OverlayError(str(path), f"it sets the C++ standard of extensions in one place; found {len(found)}")
    return found[0]
