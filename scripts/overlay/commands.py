"""The commands on a tree: apply, check, status, diff, patch, revert, rebase."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import OverlayError
from .model import load_patches
from .paths import BUILD, OVERLAYS, PATCHES
from .plan import Plan, Status, make_plan, plan_revert
from .report import edit_printer, print_refusals, summary, unified_diff
from .state import State, digest, load_state
from .transaction import commit, locked
from .trees import Tree, open_tree


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    commands: list[tuple[str, Callable[[argparse.Namespace], int], str]] = [
        ("apply", apply, "put the edits and the overlay files into a tree"),
        ("check", check, "a dry run of apply, on any tree"),
        ("status", status, "what is applied to a tree, and what changed since"),
        ("diff", diff, "what is applied, or would be"),
        ("patch", patch, "the same as one file that `git apply` takes"),
        ("revert", revert, "put every byte back"),
        ("rebase", rebase, "after an update of the tree: apply again, and list what moved"),
    ]
    for name, command, text in commands:
        parser = subparsers.add_parser(name, help=text, description=text)
        parser.add_argument("tree", type=Path, help="the root of a PyTorch tree")
        if name == "patch":
            parser.add_argument("--output", type=Path, help="default: build/aten-overlay-<version>.patch")
        parser.set_defaults(run=command)


def apply(arguments: argparse.Namespace) -> int:
    return _apply(open_tree(arguments.tree), rebase=False)


def rebase(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    if load_state(tree.root) is None:
        raise OverlayError(str(tree.root), "a rebase brings applied patches to an updated tree, and none are applied",
                           "make apply")
    return _apply(tree, rebase=True)


def check(arguments: argparse.Namespace) -> int:
    plan = _plan(open_tree(arguments.tree))
    return _refused(plan, "check: it would be refused") or _done(f"check: OK; {summary(plan)}")


def status(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    state = load_state(tree.root)
    print(tree.describe())
    if state is None:
        return _done("nothing is applied")
    if not state.complete:
        print("an apply or revert was interrupted half way; `make apply` and `make revert` both go on from here")
    for path, known in state.files.items():
        file = tree.root / path
        if not known.is_ours(digest(file.read_bytes()) if file.exists() else None):
            print(f"changed since: {path}")
    plan = _plan(tree)
    wanted = {planned.edit.id for planned in plan.edits if planned.status is not Status.OTHER_VERSION}
    for id in sorted(state.edits.keys() - wanted):
        print(f"no longer wanted: {id}")
    print_refusals(plan.refusals)
    return _done(summary(plan))


def diff(arguments: argparse.Namespace) -> int:
    plan = _plan(open_tree(arguments.tree), quiet=True)
    sys.stdout.buffer.write(unified_diff(plan.files))
    return _refused(plan, "diff: without what is refused above")


def patch(arguments: argparse.Namespace) -> int:
    plan = _plan(open_tree(arguments.tree))
    if plan.refusals:
        return _refused(plan, "patch: nothing was written")
    output = arguments.output or BUILD / f"aten-overlay-{plan.tree.version}.patch"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(unified_diff(plan.files))
    except OSError as error:
        rule = f"it can be written: {error.strerror}"
        raise OverlayError(str(output), rule, "name another file with --output") from None
    return _done(f"patch: {output}; {summary(plan)}")


def revert(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    with _changing(tree):
        state = load_state(tree.root)
        if state is None:
            return _done("revert: nothing is applied")
        plan = plan_revert(tree, state)
        if plan.refusals:
            return _refused(plan, "revert: nothing was written")
        commit(tree.root, plan.files, state, None)
    return _done(f"revert: OK; {sum(file.changes for file in plan.files)} files are as they were")


def _apply(tree: Tree, rebase: bool) -> int:
    name = "rebase" if rebase else "apply"
    with _changing(tree):
        plan = _plan(tree, rebase)
        if plan.refusals:
            return _refused(plan, f"{name}: nothing was written")
        old, new, changing = plan.state, plan.new_state, [file for file in plan.files if file.changes]
        if old and old.complete and not changing and (old.files, old.edits) == (new.files, new.edits):
            return _done(f"{name}: nothing to do, all of it is applied")
        commit(tree.root, plan.files, old, new)
    if rebase:
        _print_moves(old, new)
    edits = sum(planned.status in (Status.TO_APPLY, Status.APPLIED) for planned in plan.edits)
    return _done(f"{name}: OK; {edits} edits stand, {len(changing)} files written")


def _plan(tree: Tree, rebase: bool = False, quiet: bool = False) -> Plan:
    edits = load_patches(PATCHES)
    progress = (lambda planned: None) if quiet else edit_printer(len(edits))
    return make_plan(tree, edits, OVERLAYS, rebase=rebase, progress=progress)


def _print_moves(old: State, new: State) -> None:
    for id in sorted(old.edits.keys() | new.edits.keys()):
        before, after = old.edits.get(id), new.edits.get(id)
        if before is None or after is None:
            print(f"{'new' if after else 'gone'}: {id}")
        elif (before.file, before.lines) != (after.file, after.lines):
            print(f"moved: {id}: {before.file}:{_lines(before.lines)} -> {after.file}:{_lines(after.lines)}")


def _lines(lines: tuple[int, ...]) -> str:
    return ",".join(map(str, lines))


@contextmanager
def _changing(tree: Tree) -> Iterator[None]:
    """Locks the tree, and says how an interrupt left it."""
    try:
        with locked(tree.root):
            yield
    except KeyboardInterrupt:
        state = load_state(tree.root)
        if state and not state.complete:
            raise OverlayError(str(tree.root), "interrupted half way",
                               "`make apply` and `make revert` both go on from the state file") from None
        raise OverlayError(str(tree.root), "interrupted; nothing is half done", "make status") from None


def _refused(plan: Plan, text: str) -> int:
    print_refusals(plan.refusals)
    if plan.refusals:
        print(text, file=sys.stderr)
    return 1 if plan.refusals else 0


def _done(text: str) -> int:
    print(text)
    return 0
