"""What `apply` would do to a tree, computed in full before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from . import git
from .edits import Outcome, apply_edits, check_edit
from .errors import OverlayError
from .model import Edit
from .state import EditRecord, FileRecord, State, digest, load_state, record
from .trees import Tree


class Status(Enum):
    TO_APPLY = "to apply"
    APPLIED = "applied"
    OTHER_VERSION = "not for this version"
    NOT_IN_TREE = "not in this tree"
    REFUSED = "refused"


@dataclass(frozen=True)
class PlannedEdit:
    edit: Edit
    status: Status
    lines: tuple[int, ...] = ()
    error: OverlayError | None = None


@dataclass(frozen=True)
class PlannedFile:
    """A file as upstream has it, as it stands and as it will be; None where there is none."""

    path: str
    original: bytes | None
    current: bytes | None
    new: bytes | None
    mode: int

    @property
    def changes(self) -> bool:
        return self.current != self.new

    def record(self, *after: bytes | None) -> FileRecord:
        return record(self.original, *(data for data in after if data != self.original))


@dataclass
class Plan:
    tree: Tree
    state: State | None
    edits: list[PlannedEdit] = field(default_factory=list)
    files: list[PlannedFile] = field(default_factory=list)
    refusals: list[OverlayError] = field(default_factory=list)

    @property
    def new_state(self) -> State:
        files = {file.path: file.record(file.new) for file in self.files if file.new != file.original}
        edits = {
            planned.edit.id: EditRecord(fingerprint(planned.edit), planned.edit.target, planned.lines)
            for planned in self.edits
            if planned.status in (Status.TO_APPLY, Status.APPLIED)
        }
        return State(str(self.tree.version), files, edits)


def make_plan(
    tree: Tree,
    edits: list[Edit],
    overlays: tuple[Path, ...],
    *,
    rebase: bool,
    progress: Callable[[PlannedEdit], None],
) -> Plan:
    """Plans every edit and overlay file, and putting back what an earlier apply did and is no longer wanted."""
    for edit in edits:
        check_edit(edit)
    plan = Plan(tree, load_state(tree.root))
    targets: dict[str, list[Edit]] = {}
    for edit in edits:
        targets.setdefault(edit.target, []).append(edit)
    for target, its_edits in targets.items():
        for planned in _plan_target(plan, target, its_edits, rebase):
            plan.edits.append(planned)
            progress(planned)
    for path, source in _overlay_files(overlays):
        _plan_overlay_file(plan, path, source)
    _plan_leftovers(plan, rebase)
    plan.refusals += [planned.error for planned in plan.edits if planned.error]
    plan.refusals += _unwritable(tree, [file for file in plan.files if file.changes])
    return plan


def plan_revert(tree: Tree, state: State) -> Plan:
    """Plans putting back every original."""
    plan = Plan(tree, state)
    _plan_leftovers(plan, rebase=False)
    plan.refusals += _unwritable(tree, [file for file in plan.files if file.changes])
    return plan


def fingerprint(edit: Edit) -> str:
    content = [edit.target, edit.operation, edit.arguments, edit.count]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plan_target(plan: Plan, target: str, edits: list[Edit], rebase: bool) -> Iterator[PlannedEdit]:
    """The edits of one upstream file; adds the file to the plan."""
    tree = plan.tree
    wanted = [edit for edit in edits if edit.applies_to(tree.version)]
    yield from (PlannedEdit(edit, Status.OTHER_VERSION) for edit in edits if edit not in wanted)
    if not wanted:
        return
    known = plan.state.files.get(target) if plan.state else None
    current = _read(tree, target)
    if current is None and known is None:
        yield from (_without_file(tree, edit) for edit in wanted)
        return
    try:
        original = _original(tree, target, known, current, wanted, rebase)
    except OverlayError as error:
        yield from (PlannedEdit(edit, Status.REFUSED, error=error) for edit in wanted)
        return
    new, outcomes = apply_edits(target, original, wanted)
    plan.files.append(PlannedFile(target, original, current, new, _mode(tree, target)))
    if known is None and new != current and git.is_work_tree(tree.root) and git.status(tree.root, [target]):
        plan.refusals.append(OverlayError(target, "a file that an edit touches has no uncommitted changes",
                                          f"commit or undo them: git -C {tree.root} diff {target}"))
    yield from (_planned(plan, outcome, current) for outcome in outcomes)


def _planned(plan: Plan, outcome: Outcome, current: bytes | None) -> PlannedEdit:
    edit, state = outcome.edit, plan.state
    if outcome.error:
        return PlannedEdit(edit, Status.REFUSED, error=outcome.error)
    applied = state and edit.id in state.edits and state.edits[edit.id].fingerprint == fingerprint(edit)
    if applied and edit.target in state.files and digest(current) in state.files[edit.target].after and state.complete:
        return PlannedEdit(edit, Status.APPLIED, outcome.lines)
    return PlannedEdit(edit, Status.TO_APPLY, outcome.lines)


def _without_file(tree: Tree, edit: Edit) -> PlannedEdit:
    if tree.kind == "wheel":
        return PlannedEdit(edit, Status.NOT_IN_TREE)
    error = OverlayError(f"{edit.target} [{edit.place}]", f"there is no such file in PyTorch {tree.version}",
                         "upstream may have moved it: move the patch file, or end the edit's `versions`")
    return PlannedEdit(edit, Status.REFUSED, error=error)


def _original(
    tree: Tree, target: str, known: FileRecord | None, current: bytes | None, edits: list[Edit], rebase: bool
) -> bytes:
    """The file as upstream has it: after an update, as git has it, or as it stands now."""
    if known is None:
        return current
    under_git = git.is_work_tree(tree.root)
    if rebase and under_git:
        committed = git.committed(tree.root, target)
        if committed is not None and current in (committed, apply_edits(target, committed, edits)[0]):
            return committed
    if known.is_ours(digest(current)):
        return _stored(target, known)
    if rebase and not under_git and current is not None:
        return current
    raise _changed(target)


def _plan_overlay_file(plan: Plan, path: str, source: Path) -> None:
    data, current = source.read_bytes(), _read(plan.tree, path)
    known = plan.state.files.get(path) if plan.state else None
    if known is None and current == data:
        return  # it stood there before
    file = PlannedFile(path, None, current, data, 0o755 if os.access(source, os.X_OK) else 0o644)
    plan.files.append(file)
    if known is not None and not known.is_ours(digest(current)):
        plan.refusals.append(_changed(path))
    elif known is None and current is not None:
        plan.refusals.append(OverlayError(path, "an overlay file goes where no other file stands",
                                          "if upstream has it now, retire ours; else move the other one away"))


def _plan_leftovers(plan: Plan, rebase: bool) -> None:
    """What an earlier apply touched and this plan does not: back to the original."""
    planned = {file.path for file in plan.files} | {item.edit.target for item in plan.edits if item.error}
    for path, known in (plan.state.files if plan.state else {}).items():
        if path in planned:
            continue
        current = _read(plan.tree, path)
        if rebase and _is_updated(plan.tree, path, known, current):
            continue
        if known.is_ours(digest(current)):
            original = _stored(path, known)
            plan.files.append(PlannedFile(path, original, current, original, _mode(plan.tree, path)))
        else:
            plan.refusals.append(_changed(path))


def _is_updated(tree: Tree, path: str, known: FileRecord, current: bytes | None) -> bool:
    """Whether an update of PyTorch wrote the file as it stands."""
    if git.is_work_tree(tree.root):
        return git.committed(tree.root, path) == current
    return not known.is_ours(digest(current))


def _overlay_files(overlays: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    for root in overlays:
        for file in sorted(root.rglob("*")):
            path = file.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
            if file.is_file() and not hidden and file.suffix != ".pyc":
                yield path.as_posix(), file


def _stored(path: str, known: FileRecord) -> bytes | None:
    original = known.original_data()
    if digest(original) != known.before:
        raise OverlayError(path, "the original in the state file has the hash recorded there",
                           "the state file is damaged: restore this file from its source")
    return original


def _changed(path: str) -> OverlayError:
    return OverlayError(path, "it was changed since the patches were applied",
                        "undo that change; if an update of PyTorch made it: make rebase")


def _read(tree: Tree, path: str) -> bytes | None:
    file = tree.root / path
    if not file.parent.resolve().is_relative_to(tree.root) or file.is_symlink():
        raise OverlayError(path, "a file to change lies in the tree itself, not behind a symbolic link",
                           "replace the link by a copy of what it points to")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OverlayError(path, f"it can be read: {error.strerror}", "look at what stands there") from None


def _mode(tree: Tree, path: str) -> int:
    file = tree.root / path
    return stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644


def _unwritable(tree: Tree, files: list[PlannedFile]) -> Iterator[OverlayError]:
    if files and not os.access(tree.root, os.W_OK):
        yield OverlayError(str(tree.root), "a tree to change is writable", "make it writable, or use a copy of it")
        return
    for file in files:
        path = tree.root / file.path
        folder = next(parent for parent in path.parents if parent.exists())
        if path.exists() and (not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK)):
            rule = "a file to change is writable, and this one is read-only"
            yield OverlayError(file.path, rule, f"chmod u+w {path}")
        elif not os.access(folder, os.W_OK):
            yield OverlayError(file.path, f"its folder is writable, and {folder} is not", f"chmod u+w {folder}")
