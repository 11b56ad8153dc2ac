"""The same sources, byte for byte, serve both modes and every release."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from overlay.model import load_patches
from overlay.paths import OVERLAYS, REPO
from overlay.plan import make_plan
from overlay.trees import open_tree
from overlay.wheel_mode import build as wheel_mode
from overlay.wheel_mode.target import from_python


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def in_tree(root: Path) -> dict[str, str]:
    """What `make apply` adds to a tree."""
    plan = make_plan(open_tree(root), load_patches(), OVERLAYS, rebase=False, progress=lambda planned: None)
    assert not plan.refusals
    return {file.path: digest(file.new) for file in plan.files if file.original is None and file.new is not None}


@pytest.fixture(scope="module")
def in_2_6_0(tree_2_6_0) -> dict[str, str]:
    return in_tree(tree_2_6_0)


@pytest.mark.parametrize("tree", ("tree_2_13_0", "tree_2_14_1"))
def test_every_release_has_the_same(tree, in_2_6_0, request):
    assert in_tree(request.getfixturevalue(tree)) == in_2_6_0


def test_wheel_mode_compiles_what_source_mode_adds(in_2_6_0, tmp_path):
    """The compilers' own command lines, and every overlay file that they name or include."""
    folder = wheel_mode.build(from_python(sys.executable))
    commands = json.loads((folder / "compile_commands.json").read_text())
    compiled = {Path(command["directory"], command["file"]).resolve() for command in commands}
    ours = _ours(compiled)
    assert len(ours) > 5
    for name, path in ours.items():
        assert in_2_6_0[name] == digest(path.read_bytes()), name
    dependencies = subprocess.run(
        ["ninja", "-C", folder, "-t", "deps"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    included = {Path(line.strip()) for line in dependencies.splitlines() if line.startswith("    ")}
    for name, path in _ours(included).items():
        assert in_2_6_0[name] == digest(path.read_bytes()), name


def _ours(paths: set[Path]) -> dict[str, Path]:
    """Those of the overlay, by their place in the tree."""
    found = ((root, path) for root in OVERLAYS for path in paths if path.is_relative_to(root))
    return {path.relative_to(root).as_posix(): path for root, path in found}


def test_wheel_mode_has_the_same_python(in_2_6_0):
    for name, text in wheel_mode._python_files(wheel_mode.Overlay()).items():
        assert in_2_6_0[name] == digest(text.encode()), name


def test_build_variables_lists_every_source():
    """For the builds that take build_variables.bzl instead of what stands in the folders."""
    texts = [edit.arguments["text"] for edit in load_patches() if edit.target == "build_variables.bzl"]
    listed = {line.strip().strip('",') for text in texts for line in text.splitlines()}
    native = REPO / "aten_overlay" / "aten/src/ATen/native"
    sources = [*native.glob("*.cpp"), *(native / "cpu").glob("*.cpp")]
    assert listed == {path.relative_to(REPO / "aten_overlay").as_posix() for path in sources}
