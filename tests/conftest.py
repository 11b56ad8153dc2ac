"""Fixtures shared by the tests: real trees, fetched once into build/test-trees and never changed there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "scripts"))

import edit_helpers  # noqa: E402
from one_at_a_time import TEST_TREES, one_at_a_time  # noqa: E402
from overlay import fetch, trees  # noqa: E402
from wheel_mode_helpers import dummy_build  # noqa: E402, F401


def _fetched(version: str) -> Path:
    with one_at_a_time(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "TREES", TEST_TREES)  # build/trees is the user's, and may be patched
        return fetch.fetch_tree(version)


@pytest.fixture(scope="session")
def tree_2_14_1() -> Path:
    """The wheel tree of the reference release. Copy it before changing it."""
    return _fetched("2.14.1")


@pytest.fixture(scope="session")
def tree_2_6_0() -> Path:
    """The source tree of Debian 13. Copy it before changing it."""
    return _fetched("2.6.0")


@pytest.fixture(scope="session")
def tree_2_13_0() -> Path:
    """The wheel tree of the release that CI runs, of the installed torch where it is that one."""
    return _fetched("2.13.0")


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> edit_helpers.Setting:
    """A small tree and a small patch set; see edit_helpers.py."""
    return edit_helpers.Setting(tmp_path, monkeypatch)
