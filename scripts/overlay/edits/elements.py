"""Comma-separated elements in brackets, in any of the languages: putting some in, taking some out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .source import Change, Source, Splice

_COMMENTS = (b"#", b"//", b"/*")


@dataclass(frozen=True)
class Element:
    start: int
    end: int
    comma: int | None  # where its comma stands
    node: Any = None  # what the parser calls it; of a dict entry, the key

    @property
    def after(self) -> int:
        return self.end if self.comma is None else self.comma + 1


@dataclass(frozen=True)
class Container:
    kind: str  # "tuple" and "set" have rules of their own
    elements: list[Element]
    open: int  # after the bracket that opens it
    close: int  # the bracket that closes it


def insert_elements(source: Source, container: Container, index: int, texts: list[str]) -> Change:
    """Puts elements after the one at `index` (-1: first), laid out as their neighbours are."""
    elements = container.elements
    if not elements:
        text = ", ".join(texts) + ("," if container.kind == "tuple" else "")
        return _insertion(source, container.open, container.open, text)
    if index < 0:
        first = elements[0]
        if not source.starts_line(first.start):
            return _insertion(source, first.start, first.start, "".join(f"{text}, " for text in texts))
        indent = source.indentation(first.start)
        lines = "".join(_line(text, indent) + ",\n" for text in texts)
        return _insertion(source, first.start, source.line_start(first.start), lines)
    anchor = elements[index]
    neighbour = next(element for element in elements if source.line(element.start) == source.line(anchor.start))
    lines = [_line(text, source.indentation(neighbour.start)) for text in texts]
    if _ends_line(source, anchor):
        line_end = source.line_end(anchor.after)
        if anchor.comma is not None:
            return _insertion(source, anchor.start, line_end, "".join(line + ",\n" for line in lines))
        comma = Splice(anchor.end, anchor.end, b",")
        block = Splice(line_end, line_end, (",\n".join(lines) + "\n").encode())
        return Change(source.line(anchor.start), (comma, block))
    if index == len(elements) - 1 and index > 0 and source.starts_line(anchor.start):  # only the bracket follows
        return _insertion(source, anchor.start, anchor.end, "".join(",\n" + line for line in lines))
    return _insertion(source, anchor.start, anchor.end, "".join(f", {text}" for text in texts))


def remove_elements(source: Source, container: Container, indices: list[int]) -> list[Change]:
    """Takes elements out, with their lines where they stand alone on them."""
    elements = container.elements
    left = [element for index, element in enumerate(elements) if index not in indices]
    if not left and container.kind == "set":
        raise ValueError("the last element of a set stays, as {} is a dict; use replace_text")
    lone = left[0] if len(left) == 1 and container.kind == "tuple" else None
    changes = []
    for index in indices:
        splices = [] if index - 1 in indices else [_removal(source, elements, index, indices, lone)]  # one for a run
        changes.append(Change(source.line(elements[index].start), tuple(splices)))
    if lone and lone.comma is None:  # (a, b) becomes (b,)
        comma = Splice(lone.end, lone.end, b",")
        changes[-1] = Change(changes[-1].line, (*changes[-1].splices, comma))
    return changes


def _removal(source: Source, elements: list[Element], first: int, indices: list[int], lone: Element | None) -> Splice:
    """The run of removed elements that starts at `first`."""
    last = first
    while last + 1 in indices:
        last += 1
    start, end = elements[first].start, elements[last].after
    ends_line = _ends_line(source, elements[last])
    if source.starts_line(start) and ends_line:
        return Splice(source.line_start(start), source.line_end(end), b"")
    if last + 1 < len(elements) and not (first and ends_line):  # others follow on the line
        while source.data[end : end + 1] == b" ":
            end += 1
        return Splice(start, end, b"")
    before = elements[first - 1] if first else None
    if before is None or source.data[before.after : start].strip():  # a comment stands between
        return Splice(start, end, b"")
    return Splice(before.end if elements[last].comma is None and before is not lone else before.after, end, b"")


def _ends_line(source: Source, element: Element) -> bool:
    rest = source.data[element.after : source.line_end(element.after)].strip()
    return not rest or rest.startswith(_COMMENTS)


def _line(text: str, indent: bytes) -> str:
    return "\n".join(indent.decode() + line if line.strip() else "" for line in text.strip("\n").split("\n"))


def _insertion(source: Source, anchor: int, offset: int, text: str) -> Change:
    return Change(source.line(anchor), (Splice(offset, offset, text.encode()),))
