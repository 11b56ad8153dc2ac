"""`overlay lint`: the repository passes, and each rule finds its fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from overlay import lint
from overlay.paths import OVERLAYS, PATCHES

EDIT = """edits:
- id: example
  description: An example.
  upstream: {upstream}
  versions: "{versions}"
  {operation}: {{after: a, text: b}}
"""


def lint_patch(root: Path, upstream="not proposed", versions=">=2.6", operation="insert_text") -> list[str]:
    (root / "a.rst.yaml").write_text(EDIT.format(upstream=upstream, versions=versions, operation=operation))
    return [str(error) for error in lint.lint_patches(root)]


def test_this_repository():
    assert [str(error) for error in lint.lint_patches(PATCHES)] == []
    assert [str(error) for root in OVERLAYS for error in lint.lint_files(root)] == []


def test_a_good_edit(tmp_path):
    assert lint_patch(tmp_path) == []
    assert lint_patch(tmp_path, upstream="merged in 2.16.0", versions=">=2.6,<2.16") == []


def test_an_edit_that_does_not_retire(tmp_path):
    (error,) = lint_patch(tmp_path, upstream="merged in 2.16.0")
    assert "an edit that is merged in 2.16.0 ends there" in error


def test_an_unknown_operation(tmp_path):
    (error,) = lint_patch(tmp_path, operation="insert_tex")
    assert "there is no operation `insert_tex`" in error


@pytest.mark.parametrize(
    ("text", "rule"),
    [("int a; \n", "blanks"), ("\tint a;\n", "tabs"), ("int a;", "one newline"), ("int a;\n\n", "one newline")],
)
def test_whitespace(tmp_path, text, rule):
    (tmp_path / "a.cpp").write_text(text)
    (error,) = lint.lint_files(tmp_path)
    assert rule in str(error)


def test_metal_kernels(tmp_path):
    assert lint.lint_metal(OVERLAYS) == []
    (tmp_path / "a.metal").write_text("kernel void f(device float* out) {\n  double x = 1;\n  out[0] = x;\n}\n")
    (error,) = lint.lint_metal([tmp_path])
    assert error.place == f"{tmp_path}/a.metal:2" and "Metal has no `double`" in error.rule
