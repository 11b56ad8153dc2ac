"""`lint`: the rules of patch files, overlay files and Metal kernels that need no PyTorch tree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from .edits import check_edit
from .errors import OverlayError
from .model import Edit, load_patches
from .paths import OVERLAYS, PATCHES, REPO
from .versions import load_releases


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "lint", help="check patch files and overlay files by themselves", description=__doc__
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    errors = [
        *lint_patches(PATCHES),
        *(error for root in OVERLAYS for error in lint_files(root)),
        *lint_metal(OVERLAYS),
    ]
    for error in errors:
        print(error.render(), file=sys.stderr)
    print(f"lint: {len(errors)} errors" if errors else "lint: OK")
    return 1 if errors else 0


def lint_patches(root: Path) -> Iterator[OverlayError]:
    load_releases()
    for edit in load_patches(root):
        try:
            check_edit(edit)
            _check_retirement(edit)
        except OverlayError as error:
            yield error


def _check_retirement(edit: Edit) -> None:
    release = edit.upstream.removeprefix("merged in ")
    if release != edit.upstream and edit.versions.contains(release):
        raise OverlayError(
            edit.place, f"an edit that is merged in {release} ends there", f'`versions: ">=...,<{release}"`'
        )


def lint_files(root: Path) -> Iterator[OverlayError]:
    """Whitespace, as PyTorch's own lint has it."""
    for path in sorted(root.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        place = path.relative_to(REPO) if path.is_relative_to(REPO) else path
        text = path.read_text()
        if not text.endswith("\n") or text.endswith("\n\n"):
            yield OverlayError(str(place), "a file ends with one newline")
        for number, line in enumerate(text.splitlines(), 1):
            if line != line.rstrip() or "\t" in line:
                yield OverlayError(f"{place}:{number}", "no tabs, and no blanks at the end of a line")


def lint_metal(roots: Iterable[Path]) -> list[OverlayError]:
    """All Metal kernels, type-checked at both language levels, what must hold across them, and their host code."""
    from metal_host import checks, host_code  # they build on this package

    roots = list(roots)
    return [*checks.check_files(checks.metal_files(roots)), *host_code.check_files(host_code.host_files(roots))]
