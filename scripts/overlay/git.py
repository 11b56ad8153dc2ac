"""What git knows of a tree that is the root of a work tree; every other tree counts as not under git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def is_work_tree(root: Path) -> bool:
    return (root / ".git").exists() and _run(root, "rev-parse", "--is-inside-work-tree") is not None


def status(root: Path, paths: list[str] | None = None) -> set[str]:
    """Changed and untracked paths, as `git status` lists them."""
    arguments = ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"]
    output = _run(root, *arguments, "--", *(paths or []))
    return {os.fsdecode(entry[3:]) for entry in (output or b"").split(b"\0") if entry}


def committed(root: Path, path: str) -> bytes | None:
    """A file as the checked out commit has it."""
    return _run(root, "show", f"HEAD:{path}")


def _run(root: Path, *arguments: str) -> bytes | None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "--literal-pathspecs", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
