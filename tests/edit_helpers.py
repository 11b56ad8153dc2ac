"""Edits and small trees for the tests of the patch engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from overlay.edits import apply_edits, check_edit
from overlay.errors import OverlayError
from overlay.model import Edit, _load_edit


def make_edit(
    target: str, operation: str, /, *, id: str = "an-edit", count: int | None = None, **arguments: Any
) -> Edit:
    """An edit as a patch file gives it; `from_` is spelled `from` there."""
    raw = {"id": id, "description": "A test.", "upstream": "not proposed"}
    raw |= {} if count is None else {"count": count}
    raw[operation] = {name.rstrip("_"): value for name, value in arguments.items()}
    edit = _load_edit(raw, target, f"patches/{target}.yaml")
    check_edit(edit)
    return edit


def edited(target: str, text: str, operation: str, /, **arguments: Any) -> str:
    """The text after one edit, which must be taken."""
    result, (outcome,) = apply_edits(target, text.encode(), [make_edit(target, operation, **arguments)])
    assert outcome.error is None, outcome.error.render()
    return result.decode()


def refused(target: str, text: str, operation: str, /, **arguments: Any) -> OverlayError:
    """Why one edit is refused; the text must be as it was."""
    result, (outcome,) = apply_edits(target, text.encode(), [make_edit(target, operation, **arguments)])
    assert outcome.error is not None and result == text.encode()
    assert f"[patches/{target}.yaml: an-edit]" in outcome.error.place and outcome.error.hint
    return outcome.error


def snapshot(root: Path) -> dict[str, tuple[bytes | None, int]]:
    """Every file and folder of a tree with its content and mode."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes() if path.is_file() else None, path.stat().st_mode)
        for path in root.rglob("*")
        if ".git" not in path.parts
    }


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


NATIVE = """\
- func: add.Tensor(Tensor self, Tensor other) -> Tensor
  dispatch:
    CPU, CUDA: add

- func: conv(Tensor self) -> Tensor
  dispatch:
    CPU: conv_cpu
    MPS: conv_mps
"""

PATCHES = {
    "aten/src/ATen/native/native_functions.yaml.yaml": """\
edits:
- id: entries
  description: Declares twice.
  upstream: not proposed
  add_entries:
    after: conv
    entries: |
      - func: twice(Tensor self) -> Tensor
""",
    "torch/functional.py.yaml": """\
edits:
- id: import
  description: Imports twice.
  upstream: not proposed
  add_import:
    statement: from ._twice import twice
    after: torch
- id: public
  description: Makes twice public.
  upstream: not proposed
  add_to_all:
    names: [twice]
    after: add
- id: later
  description: For a later release.
  upstream: not proposed
  versions: ">=3"
  insert_text:
    after: nothing
    text: something
""",
}


class Setting:
    """A small source tree beside a small patch set, that the commands use."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.tree, self.patches, self.overlay = root / "tree", root / "patches", root / "overlay"
        write(self.tree, {
            "version.txt": "2.6.0\n",
            "torch/__init__.py": "",
            "torch/functional.py": 'import torch\n\n__all__ = [\n    "add",\n    "abs",\n]\n',
            "aten/src/ATen/native/native_functions.yaml": NATIVE,
            "aten/src/ATen/native/Add.cpp": "int add;\n",
        })
        write(self.patches, PATCHES)
        write(self.overlay, {
            "torch/_twice.py": "def twice(x):\n    return 2 * x\n",
            "aten/src/ATen/native/cpu/kernels/Twice.cpp": "int twice;\n",
            "test/run_twice.sh": "#!/bin/sh\n",
        })
        (self.overlay / "test/run_twice.sh").chmod(0o755)
        monkeypatch.setattr("overlay.commands.PATCHES", self.patches)
        monkeypatch.setattr("overlay.commands.OVERLAYS", (self.overlay,))

    def edit_patch(self, name: str, old: str, new: str) -> None:
        path = self.patches / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
