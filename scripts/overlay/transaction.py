"""Writing a plan: all of it, or nothing.

The journal is written first (see state.py), then every new content to a temporary file beside its target, then
the temporary files are renamed onto their targets, then the final state replaces the journal. A failure before that
last step is rolled back here; after a kill, or where rolling back fails too, `apply` and `revert` go on from the
journal.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from . import git
from .errors import OverlayError
from .plan import PlannedFile
from .state import STATE_FILE, State

_SUFFIX = ".aten-overlay~"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keeps a second apply, revert or build out of the tree. The lock is on the folder and leaves no file behind."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        rule = "one apply, revert or build runs at a time"
        raise OverlayError(str(root), rule, "wait for the other one to end") from None
    try:
        _discard_temporaries(root, [STATE_FILE])  # of a run killed before its journal stood
        yield
    finally:
        os.close(descriptor)


def commit(root: Path, files: list[PlannedFile], old: State | None, new: State | None) -> None:
    """Brings `files` to their new content and the tree's state from `old` to `new`; None is no state file."""
    changing = [file for file in files if file.changes]
    folders = _missing_folders(root, changing)
    kept = old.folders if old else ()
    journal = State(
        version=(new or old).version,
        files={file.path: file.record(file.current, file.new) for file in files},
        edits={},
        folders=(*kept, *folders),
        complete=False,
    )
    witness = _Witness(root, changing)
    try:
        _write(root, STATE_FILE, journal.dump(), 0o644)
        for folder in folders:
            os.mkdir(root / folder)
        for file in changing:
            if file.new is not None:
                _stage(root, file.path, file.new, file.mode)
        _refuse_changed(root, changing)
        for file in changing:
            _put(root, file.path, file.new)
        _discard_temporaries(root, [file.path for file in files])  # of an interrupted run
        remaining = _remove_folders(root, journal.folders, new)
        witness.verify()
        _write_state(root, replace(new, folders=remaining) if new else None)
    except BaseException as error:
        _roll_back(root, changing, folders, old, error)
        if isinstance(error, OSError):
            place = str(error.filename or root).removesuffix(_SUFFIX)
            raise OverlayError(place, f"it can be written: {error.strerror}",
                               "the tree is as it was; mend that and run it again") from None
        raise


def _roll_back(
    root: Path, changing: list[PlannedFile], folders: list[str], old: State | None, cause: BaseException
) -> None:
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for file in changing:
            _restore(root, file)
        _discard_temporaries(root, [file.path for file in changing])
        for folder in reversed(folders):
            if (root / folder).exists():
                os.rmdir(root / folder)
        _write_state(root, old)
        _discard_temporaries(root, [STATE_FILE])
    except OSError as error:
        rule = f"{str(cause) or type(cause).__name__}; putting the files back failed as well: {error}"
        hint = "mend that, then `make revert` and `make apply` both go on from the state file"
        raise OverlayError(str(root), rule, hint) from None
    finally:
        signal.signal(signal.SIGINT, handler)


def _restore(root: Path, file: PlannedFile) -> None:
    """Undoes our own writing; what somebody else wrote meanwhile stays."""
    content = _content(root / file.path)
    if content == file.current or content != file.new:
        return
    if file.current is None:
        os.unlink(root / file.path)
    else:
        (root / file.path).parent.mkdir(parents=True, exist_ok=True)
        _write(root, file.path, file.current, file.mode)


def _write(root: Path, path: str, data: bytes, mode: int) -> None:
    _stage(root, path, data, mode)
    _put(root, path, data)


def _stage(root: Path, path: str, data: bytes, mode: int) -> None:
    descriptor = os.open(_temporary(root, path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode)
        if (root / path).exists():
            owner = (root / path).stat()
            with suppress(PermissionError):  # only root can give a file away, and only root has to
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put(root: Path, path: str, data: bytes | None) -> None:
    if data is None:
        os.unlink(root / path)
    else:
        os.replace(_temporary(root, path), root / path)


def _write_state(root: Path, state: State | None) -> None:
    content, data = _content(root / STATE_FILE), state.dump() if state else None
    if content == data:
        return
    if data is None:
        os.unlink(root / STATE_FILE)
    else:
        _write(root, STATE_FILE, data, 0o644)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _temporary(root: Path, path: str) -> Path:
    return root / (path + _SUFFIX)


def _discard_temporaries(root: Path, paths: list[str]) -> None:
    for path in paths:
        if _temporary(root, path).exists():
            os.unlink(_temporary(root, path))


def _missing_folders(root: Path, files: list[PlannedFile]) -> list[str]:
    """The folders that new files need, outermost first."""
    missing = set()
    for file in files:
        if file.new is not None:
            parents = [parent for parent in Path(file.path).parents if not (root / parent).exists()]
            missing.update(parent.as_posix() for parent in parents)
    return sorted(missing)


def _remove_folders(root: Path, folders: tuple[str, ...], new: State | None) -> tuple[str, ...]:
    """Removes the folders that we made and that nothing needs any more; returns those that stay."""
    needed = {parent.as_posix() for path in (new.files if new else ()) for parent in Path(path).parents}
    for folder in reversed(sorted({*folders} - needed)):
        if (root / folder).exists() and not os.listdir(root / folder):  # else somebody else's files are in it
            os.rmdir(root / folder)
    return tuple(sorted({*folders} & needed))


def _refuse_changed(root: Path, files: list[PlannedFile]) -> None:
    """Against an editor that saved one of the files while they were computed."""
    for file in files:
        if _content(root / file.path) != file.current:
            raise OverlayError(file.path, "it changed while the plan was made", "the tree is as it was; run it again")


class _Witness:
    """Sees that nothing but the planned files changes: in their folders, and under git in the whole tree."""

    def __init__(self, root: Path, files: list[PlannedFile]):
        self.root = root
        self.expected = {file.path for file in files} | {STATE_FILE}
        self.folders = {Path(path).parent for path in self.expected}
        self.under_git = git.is_work_tree(root)
        self.before = self._look()
        self.git_before = git.status(root) if self.under_git else set()

    def verify(self) -> None:
        after = self._look()
        changed = {path for path in self.before.keys() | after.keys() if self.before.get(path) != after.get(path)}
        git_changed = git.status(self.root) ^ self.git_before if self.under_git else set()
        missing = self.expected - changed - {STATE_FILE}
        unexpected = (changed | git_changed) - self.expected
        if missing or unexpected:
            raise OverlayError(", ".join(sorted(missing | unexpected)), "exactly the planned files change",
                               "the tree is as it was; see what else writes to it, then run it again")

    def _look(self) -> dict[str, tuple[int, int, int]]:
        seen = {}
        for folder in self.folders:
            if not (self.root / folder).is_dir():
                continue
            for entry in os.scandir(self.root / folder):
                if entry.is_file(follow_symlinks=False) and not entry.name.endswith(_SUFFIX):
                    status = entry.stat(follow_symlinks=False)
                    seen[(folder / entry.name).as_posix()] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return seen
