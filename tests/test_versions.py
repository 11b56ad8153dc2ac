"""versions.toml: it loads, wrong content is refused by name, and the README shows what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from overlay import versions
from overlay.errors import OverlayError
from overlay.paths import REPO

GOOD = """
[[release]]
version = "2.14.1"
parts = ["cpu"]
tree = "wheel"
verified = "run"
default = true
reference = true
"""


def load(tmp_path: Path, text: str) -> list[versions.Release]:
    path = tmp_path / "versions.toml"
    path.write_text(text)
    return versions.load_releases(path)


def test_the_list_itself():
    releases = versions.load_releases()
    assert versions.default_release() in releases
    assert versions.find_release("2.6.0").debian == "trixie"
    assert versions.find_release("1.0.0") is None


def test_fields(tmp_path):
    (release,) = load(tmp_path, GOOD)
    assert release == versions.Release("2.14.1", ("cpu",), "wheel", "run", default=True, reference=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('version = "2.14.1"', "version = 2.14", "a `version` such as"),
        ('["cpu"]', '["cpu", "tpu"]', "cpu, cuda, metal"),
        ('["cpu"]', "[]", "one or more of"),
        ('"run"', '"run"\nmetal = "run"', "where `parts` lists metal and only there"),
        ('["cpu"]', '["cpu", "metal"]', "where `parts` lists metal and only there"),
        ('["cpu"]', '["cpu", "metal"]\nmetal = "yes"', "one of compiled, simulated, run"),
        ('"wheel"', '"pip"', "wheel, debian, git"),
        ('"run"', '"fully"', "check, codegen, compile, run, suites"),
        ('"wheel"', '"debian"', "`debian` names the Debian release"),
        ("default = true", "", "exactly one release is `default = true`"),
        ("reference = true", "colour = 1", "unknown field colour"),
        ("[[release]]", "[release]", "array of tables"),
        ('"run"', '"run', "valid TOML"),
    ],
)
def test_refusals(tmp_path, old, new, message):
    with pytest.raises(OverlayError, match="versions.toml") as error:
        load(tmp_path, GOOD.replace(old, new))
    assert message in str(error.value)


def test_a_release_is_listed_once(tmp_path):
    with pytest.raises(OverlayError, match="2.14.1: a release is listed once"):
        load(tmp_path, GOOD + GOOD.replace("= true", "= false"))


def test_readme_shows_the_list():
    table = versions.markdown_table(versions.load_releases())
    assert table in (REPO / "README.md").read_text(), "put into README.md:\n" + table
