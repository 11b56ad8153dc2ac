"""Text operations, for files with no parser here (documentation lists); a last resort elsewhere."""

from __future__ import annotations

from .source import Change, Source, Splice


def insert_text(source: Source, *, text: str, after: str | None = None, before: str | None = None) -> list[Change]:
    """Puts `text` right after or right before each occurrence of the anchor."""
    if (after is None) == (before is None):
        raise ValueError("it takes one of `after` and `before`")
    if (found := source.data.find(text.encode())) >= 0:
        raise source.present(found, f"the text `{text.strip()}`")
    anchor = after if after is not None else before
    shift = len(anchor.encode()) if after is not None else 0
    return [
        Change(source.line(start), (Splice(start + shift, start + shift, text.encode()),))
        for start in _occurrences(source, anchor)
    ]


def replace_text(source: Source, *, from_: str, to: str) -> list[Change]:
    """Replaces each occurrence of `from` by `to`."""
    old, new = from_.encode(), to.encode()
    if old not in source.data and (found := source.data.find(new)) >= 0:
        raise source.present(found, f"the text `{to.strip()}`")
    return [
        Change(source.line(start), (Splice(start, start + len(old), new),)) for start in _occurrences(source, from_)
    ]


def _occurrences(source: Source, anchor: str) -> list[int]:
    needle, found, start = anchor.encode(), [], -1
    if not needle:
        raise ValueError("the anchor is empty")
    while (start := source.data.find(needle, start + 1)) >= 0:
        found.append(start)
    if not found:
        raise source.missing(f"the text `{anchor.strip()}`")
    return found
