"""What the commands print: a line an edit, the refusals, and unified diffs."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Callable

from .errors import OverlayError
from .plan import Plan, PlannedEdit, PlannedFile, Status


def edit_printer(total: int) -> Callable[[PlannedEdit], None]:
    """Prints "(n/m) edit: file:line status" for each edit as it is planned."""
    count = 0

    def show(planned: PlannedEdit) -> None:
        nonlocal count
        count += 1
        lines = f":{','.join(map(str, planned.lines))}" if planned.lines else ""
        print(f"({count}/{total}) {planned.edit.id}: {planned.edit.target}{lines}: {planned.status.value}", flush=True)

    return show


def summary(plan: Plan) -> str:
    """How many edits and overlay files stand how."""
    edits = Counter(planned.status for planned in plan.edits)
    added = [file for file in plan.files if file.original is None and file.new is not None]
    waiting = sum(file.changes for file in added)
    parts = [f"{edits[status]} {status.value}" for status in Status if edits[status]]
    files = [f"{count} {status.value}" for count, status in
             ((len(added) - waiting, Status.APPLIED), (waiting, Status.TO_APPLY)) if count]
    return f"edits: {', '.join(parts) or 'none'}; overlay files: {', '.join(files) or 'none'}"


def print_refusals(refusals: list[OverlayError]) -> None:
    for error in refusals:
        print(error.render(), file=sys.stderr)


def unified_diff(files: list[PlannedFile]) -> bytes:
    """Originals against results, as `git apply` takes it."""
    return b"".join(_file_diff(file) for file in sorted(files, key=lambda file: file.path) if file.original != file.new)


def _file_diff(file: PlannedFile) -> bytes:
    old, new = f"a/{file.path}".encode(), f"b/{file.path}".encode()
    header = b"diff --git %s %s\n" % (old, new)
    if file.original is None:
        header += b"new file mode %o\n" % (0o100755 if file.mode & 0o100 else 0o100644)
        old = b"/dev/null"
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(file.original or b""), _lines(file.new), old, new, lineterm=b"\n"
    )
    return header + b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines
    )


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
