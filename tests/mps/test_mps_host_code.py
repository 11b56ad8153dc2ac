"""Host code compiles against the stand-in for Apple's SDK, and mistakes in it are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from metal_host import host_code
from overlay.paths import OVERLAYS, REPO
from wheel_mode_helpers import target_of

MISTAKES = Path(__file__).with_name("host_mistakes.mm")
VERSIONS = ("2.13.0", "2.14.1")


@pytest.mark.parametrize("version", VERSIONS)
def test_mistakes_are_refused(version):
    lines = MISTAKES.read_text().splitlines()
    expected = {n: match[1] for n, line in enumerate(lines, 1) if (match := re.search(r"// error: (.*)$", line))}
    found = {}
    for error in host_code.check_files([MISTAKES], target_of(version).include):
        file, _, line = error.place.rpartition(":")
        assert file == str(MISTAKES.relative_to(REPO)), error
        found.setdefault(int(line), []).append(str(error.rule))
    assert set(found) == set(expected), found
    for line, words in expected.items():
        assert any(words in rule for rule in found[line]), (words, found[line])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("source", host_code.host_files(OVERLAYS), ids=lambda path: path.stem)
def test_the_overlay_compiles(source, version):
    assert host_code.compile_object(source, target_of(version).include).stat().st_size > 0
