"""The Makefile: what `make help` says is there is there, and the other way round."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from overlay import versions
from overlay.paths import REPO

MAKEFILE = (REPO / "Makefile").read_text()
TARGETS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
TREE_COMMANDS = ("apply", "check", "status", "diff", "patch", "revert", "rebase")


# As typed in a terminal, although this runs below `make test`.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not re.match("MAKE|MFLAGS|TORCH$|VERSION$|TREE$|FOR$", name)
}


def make(*arguments: str, folder: Path = REPO) -> subprocess.CompletedProcess:
    return subprocess.run(["make", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)


def recipe(*arguments: str) -> str:
    result = make("-n", "-o", ".venv/.ready", *arguments)  # -o: as if it were there
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_help_is_the_default_and_lists_every_target():
    listed = re.findall(r"^  ([a-z-]+) +\S", make().stdout, re.MULTILINE)
    assert sorted(listed) == sorted(set(TARGETS) - {"help"})


def test_what_help_lists_exists():
    for target in TARGETS:
        recipe(target)
    for script in re.findall(r"(?:scripts|benchmarks)/\w+\.py", recipe("demo") + recipe("bench")):
        assert (REPO / script).is_file(), script


def test_help_fits_a_terminal():
    assert max(map(len, make("help").stdout.splitlines())) <= 110


def test_every_tree_command_takes_a_tree_or_a_version():
    for command in TREE_COMMANDS:
        assert f'tree="/some/where" && .venv/bin/python -m overlay {command} "$tree"' in recipe(
            command, "TREE=/some/where"
        )
        assert 'tree="build/trees/2.6.0"' in recipe(command, "VERSION=2.6.0")
    assert 'tree="$(.venv/bin/python -m overlay fetch newest)" && ' in recipe("check", "VERSION=newest")


def test_fetch_passes_its_options():
    assert recipe("fetch", "VERSION=2.6.0").strip().endswith("overlay fetch 2.6.0")
    options = recipe("fetch", "VERSION=2.14.1", "SOURCE=wheel", "PLATFORM=host").split()
    assert options[-5:] == ["2.14.1", "--source", "wheel", "--platform", "host"]


def test_wheel_mode_for_another_interpreter():
    assert '--python ".venv/bin/python"' in recipe("wheel-mode")
    assert '--python "/usr/bin/python3"' in recipe("wheel-mode", "FOR=/usr/bin/python3")


def test_each_release_has_its_own_environment():
    default = versions.default_release().version
    assert f'"torch=={default}"' in make("-n", "-W", "scripts/requirements.txt", ".venv/.ready").stdout
    other = make("-n", "-W", "scripts/requirements.txt", "demo", "TORCH=2.11.0").stdout
    assert "-m venv .venv-2.11.0" in other and '"torch==2.11.0"' in other and ".venv-2.11.0/bin/python scripts" in other


@pytest.mark.parametrize("command", TREE_COMMANDS)
def test_a_missing_tree_names_the_command_that_fetches_it(command):
    result = make(command, "VERSION=2.0.0")
    assert result.returncode != 0
    assert "make fetch VERSION=2.0.0" in result.stdout + result.stderr


def test_an_old_python_is_told_before_anything_is_made(tmp_path):
    for name in ("Makefile", "versions.toml"):
        shutil.copy(REPO / name, tmp_path)
    shutil.copytree(REPO / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPO / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    old = tmp_path / "old-python"
    old.write_text(
        "#!/usr/bin/env python3\n"
        "import runpy, sys\n"
        "sys.version_info, sys.modules['tomllib'] = (3, 8, 18), None\n"
        "sys.argv = sys.argv[2:]  # after -m\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    old.chmod(0o755)
    result = make("demo", f"PYTHON={old}", folder=tmp_path)
    assert result.returncode != 0
    assert "BLOCKER  Python" in result.stdout, result.stdout + result.stderr
    assert not list(tmp_path.glob(".venv*"))


def test_readme_names_only_targets_that_exist():
    for page in (REPO / "README.md", *(REPO / "docs").glob("*.md")):
        named = set(re.findall(r"\bmake ([a-z][a-z-]+)\b", page.read_text()))
        assert named <= set(TARGETS), page.name
