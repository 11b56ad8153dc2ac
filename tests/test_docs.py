"""docs/edits.md: its examples are accepted as patch files are, and no operation or argument is left out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from overlay.edits import OPERATIONS, check_edit
from overlay.model import Edit, load_patches
from overlay.paths import REPO

PAGE = (REPO / "docs" / "edits.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n# patches/(\S+\.yaml)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
HEAD = "edits:\n- id: example\n  description: An example.\n  upstream: not proposed\n"


def load(tmp_path: Path, file: str, text: str) -> Edit:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text if text.startswith("edits:") else HEAD + text)
    (edit,) = load_patches(tmp_path)
    return edit


@pytest.mark.parametrize(("file", "text"), EXAMPLES, ids=[text.strip().partition("\n")[0] for _, text in EXAMPLES])
def test_examples(tmp_path, file, text):
    check_edit(load(tmp_path, file, text))


def test_every_operation_has_an_example(tmp_path):
    shown = {load(tmp_path / str(i), *example).operation for i, example in enumerate(EXAMPLES)}
    assert shown == OPERATIONS.keys()


def test_every_argument_is_mentioned():
    for name, (function, _) in OPERATIONS.items():
        for argument in list(inspect.signature(function).parameters)[1:]:
            word = argument.rstrip("_")
            assert re.search(rf"\b{word}\b", PAGE), f"{name}: {word}"


# ---- docs/adding_an_operator.md --------------------------------------------------------------

WAY = (REPO / "docs" / "adding_an_operator.md").read_text()
SHOWN = re.findall(r"^```\w+\n(?:#|//) ((?:patches|aten_overlay)/\S+)\n(.*?)^```", WAY, re.MULTILINE | re.DOTALL)


def test_what_the_way_shows_is_what_is_there():
    """Edits stand in their patch file, sources are whole."""
    assert len(SHOWN) == 6
    for file, text in SHOWN:
        there = (REPO / file).read_text()
        assert text in there if file.startswith("patches/") else text == there, file
