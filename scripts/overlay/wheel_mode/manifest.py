"""manifest.json: what `import torch_overlay` has to know about a build.

The Python edits are replayed at import from here, so they come from the patch files alone.
"""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..errors import OverlayError
from ..model import Edit

_REPLAYED = ("add_import", "add_to_all", "add_element", "add_statement")


# What PyTorch's own suites expect of MPS, which only a build with it asks.
_LISTS_OF_MPS = "torch/testing/_internal/common_mps.py"


def python_edits(edits: list[Edit], version: Version) -> dict[str, list[dict[str, Any]]]:
    """Module name to its edits, in order; each has `operation` and that operation's arguments."""
    modules: dict[str, list[dict[str, Any]]] = {}
    for edit in edits:
        if not (edit.target.startswith("torch/") and edit.target.endswith(".py") and edit.applies_to(version)):
            continue
        if edit.target == _LISTS_OF_MPS or _is_of_an_opinfo(edit):
            continue
        if edit.operation not in _REPLAYED:
            raise OverlayError(
                edit.place,
                f"wheel mode replays {', '.join(_REPLAYED)} at import; it cannot replay `{edit.operation}`",
            )
        module = edit.target.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        modules.setdefault(module, []).append({"operation": edit.operation, **edit.arguments})
    return modules


def _is_of_an_opinfo(edit: Edit) -> bool:
    """What it changes of an operator that PyTorch has; our own OpInfos are added by operations that are replayed."""
    return edit.target.startswith("torch/testing/") and edit.operation not in _REPLAYED


def extended_packages(files: list[str]) -> list[str]:
    """The packages of torch that the overlay's Python files ("torch/nn/modules/x.py") are modules of."""
    own = {file.removesuffix("/__init__.py") for file in files if file.endswith("/__init__.py")}
    folders = {file.rpartition("/")[0] for file in files if not file.endswith("/__init__.py")}
    inside = {folder for folder in folders if any(f"{folder}/".startswith(f"{package}/") for package in own)}
    parents = {package.rpartition("/")[0] for package in own if package.rpartition("/")[0] not in own}
    return sorted(folder.replace("/", ".") for folder in (folders - inside) | parents)
