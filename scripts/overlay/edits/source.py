"""An upstream file under edit: its bytes, positions in it, and the splices an operation answers with."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


class Refusal(Exception):
    """An operation cannot do what it should; the engine adds the file and the edit."""

    def __init__(self, line: int | None, rule: str, hint: str):
        super().__init__(rule)
        self.line, self.rule, self.hint = line, rule, hint


@dataclass(frozen=True)
class Splice:
    """Replaces bytes [start, end) of the original file."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True)
class Change:
    """One touched place. All splices refer to the original file, so that edits do not move each other's anchors."""

    line: int  # of the anchor
    splices: tuple[Splice, ...]


class Source:
    """A file as upstream has it. Positions are byte offsets; lines count from 1."""

    def __init__(self, path: str, data: bytes):
        self.path = path
        self.data = data

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        while (newline := self.data.find(b"\n", starts[-1])) >= 0:
            starts.append(newline + 1)
        return starts

    def line(self, offset: int) -> int:
        return bisect.bisect_right(self._line_starts, offset)

    def line_start(self, offset: int) -> int:
        return self._line_starts[self.line(offset) - 1]

    def line_end(self, offset: int) -> int:
        """The start of the next line, or the end of the file."""
        line = self.line(offset)
        return self._line_starts[line] if line < len(self._line_starts) else len(self.data)

    def offset(self, line: int, byte_column: int) -> int:
        return self._line_starts[line - 1] + byte_column

    def character_offset(self, line: int, column: int) -> int:
        start = self._line_starts[line - 1]
        text = self.data[start : self.line_end(start)].decode()
        return start + len(text[:column].encode())

    def starts_line(self, offset: int) -> bool:
        """Whether only white space stands before `offset` on its line."""
        return not self.data[self.line_start(offset) : offset].strip()

    def indentation(self, offset: int) -> bytes:
        """What brings new text to the column of `offset`."""
        before = self.data[self.line_start(offset) : offset]
        return before if not before.strip() else b" " * len(before.decode())

    def insert_lines(self, anchor: int, offset: int, text: str) -> Change:
        """Puts whole lines at `offset`, the start of a line or the end of the file, for what stands at `anchor`."""
        block = text.rstrip("\n").encode() + b"\n"
        if offset == len(self.data) and not self.data.endswith(b"\n"):
            block = b"\n" + block
        return Change(self.line(anchor), (Splice(offset, offset, block),))

    def missing(self, what: str) -> Refusal:
        return Refusal(None, f"the anchor is missing: {what}", "upstream may have renamed or removed it: "
                       "look at the file, then mend the edit or end its `versions`")

    def present(self, offset: int, what: str) -> Refusal:
        return Refusal(self.line(offset), f"already upstream: {what}", "end the edit's `versions` before this release")


def splice(data: bytes, splices: Iterable[Splice]) -> bytes:
    """`data` with all splices made; those at one place keep their order."""
    parts, position = [], 0
    for part in sorted(splices, key=lambda part: (part.start, part.end)):
        if part.start < position:
            raise ValueError("splices overlap")
        parts += [data[position : part.start], part.text]
        position = part.end
    return b"".join([*parts, data[position:]])
