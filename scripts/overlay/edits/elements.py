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
        return _insertion(source, container.open, ", ".join(texts) + ("," if container.kind == "tuple" else ""))
    if index < 0:
        first = elements[0]
        if not source.starts_line(first.start):
            return _insertion(source, first.start, "".join(f"{text}, " for text in texts))
        indent = source.indentation(first.start)
        return _insertion(source, source.line_start(first.start), "".join(_line(text, indent) + ",\n" for text in texts))
    anchor = elements[index]
    lines = [_line(text, source.indentation(anchor.start)) for text in texts]
    if _ends_line(source, anchor):
        line_end = source.line_end(anchor.after)
        if anchor.comma is not None:
            return _insertion(source, line_end, "".join(line + ",\n" for line in lines))
        comma = Splice(anchor.end, anchor.end, b",")
        return Change(source.line(line_end), (comma, Splice(line_end, line_end, (",\n".join(lines) + "\n").encode())))
    if index == len(elements) - 1 and index > 0 and source.starts_line(anchor.start):  # only the bracket follows
        return _insertion(source, anchor.end, "".join(",\n" + line for line in lines))
    return _insertion(source, anchor.end, "".join(f", {text}" for text in texts))


def remove_elements(source: Source, container: Container, indices: list[int]) -> list[Change]:
    """Takes elements out, each with its lines where it stands alone on them."""
    elements = container.elements
    left = [element for index, element in enumerate(elements) if index not in indices]
    if not left and container.kind == "set":
        raise ValueError("the last element of a set stays, as {} is a dict; use replace_text")
    splices = {index: [_removal(source, elements, index)] for index in indices}
    if len(left) == 1 and container.kind == "tuple" and left[0].comma is None:  # (a, b) becomes (b,)
        splices[indices[-1]].append(Splice(left[0].end, left[0].end, b","))
    return [Change(source.line(elements[index].start), tuple(parts)) for index, parts in splices.items()]


def _removal(source: Source, elements: list[Element], index: int) -> Splice:
    element = elements[index]
    if source.starts_line(element.start) and _ends_line(source, element):
        return Splice(source.line_start(element.start), source.line_end(element.after), b"")
    if index + 1 < len(elements):
        return Splice(element.start, elements[index + 1].start, b"")
    return Splice(elements[index - 1].after if index else element.start, element.after, b"")


def _ends_line(source: Source, element: Element) -> bool:
    rest = source.data[element.after : source.line_end(element.after)].strip()
    return not rest or rest.startswith(_COMMENTS)


def _line(text: str, indent: bytes) -> str:
    return "\n".join(indent.decode() + line if line.strip() else "" for line in text.strip("\n").split("\n"))


def _insertion(source: Source, offset: int, text: str) -> Change:
    return Change(source.line(offset), (Splice(offset, offset, text.encode()),))
