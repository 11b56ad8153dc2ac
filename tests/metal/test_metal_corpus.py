"""What a Metal compiler would refuse is refused, at its line and for its reason.

In the corpus, `// error: ...` ends each line that must be refused, with words of the message.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from metal_host import checks
from overlay.paths import REPO

CORPUS = Path(__file__).parent / "corpus" / "native" / "mps" / "kernels"
SOURCES = sorted(CORPUS.glob("*.metal"))


def expectations(path: Path) -> dict[str, str]:
    """Place to words of its message, in a source and the header of the same name."""
    expected = {}
    for file in (path, path.with_suffix(".h")):
        for number, line in enumerate(file.read_text().splitlines() if file.is_file() else (), 1):
            if match := re.search(r"// error: (.*)$", line):
                expected[f"{file.relative_to(REPO)}:{number}"] = match[1]
    return expected


def test_the_corpus_is_of_a_size():
    assert len(SOURCES) >= 30


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_refused(source):
    found = {}
    for error in checks.check_files([source]):
        found.setdefault(error.place, []).append(str(error.rule))
    expected = expectations(source)
    assert expected, "a source of the corpus has a mistake"
    assert set(found) == set(expected), found
    for place, words in expected.items():
        assert any(words in rule for rule in found[place]), found[place]
