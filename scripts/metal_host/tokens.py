"""Preprocessed Metal source as tokens that know where they came from, and can be edited in place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    IDENTIFIER = auto()
    NUMBER = auto()
    STRING = auto()
    CHARACTER = auto()
    PUNCTUATION = auto()


@dataclass(slots=True)
class Token:
    kind: Kind
    text: str  # as it goes to the compiler; an edit changes this alone
    spelling: str  # as it stood in the source
    lead: str  # blanks and line markers before it
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


_LEAD = re.compile(r"(?:\s|\\\n|^\#[^\n]*)+", re.MULTILINE)
_MARKER = re.compile(r'\#\s*(?:line\s+)?(\d+)\s+"((?:[^"\\]|\\.)*)"')
_TOKEN = re.compile(
    r"""
    (?P<STRING>(?:u8|u|U|L)?"(?:\\.|[^"\\\n])*")
  | (?P<CHARACTER>(?:u8|u|U|L)?'(?:\\.|[^'\\\n])*')
  | (?P<NUMBER>\.?\d(?:[eEpP][+-]|[\w.'])*)
  | (?P<IDENTIFIER>[A-Za-z_]\w*)
  | (?P<PUNCTUATION>::|->|\+\+|--|<<=|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\.\.\.|.)
    """,
    re.VERBOSE,
)

OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = frozenset(OPENING.values())


def tokenize(text: str, file: str) -> list[Token]:
    """The tokens of `text`, which went through a preprocessor. `<<` and `>>` are two tokens each: they may
    be brackets."""
    tokens: list[Token] = []
    line, position = 1, 0
    while position < len(text):
        lead = _LEAD.match(text, position)
        start = lead.end() if lead else position
        if lead and "\n" in lead[0]:
            for row in lead[0].split("\n")[:-1]:
                marker = _MARKER.match(row)
                if marker:
                    line, file = int(marker[1]), marker[2].replace("\\\\", "\\")
                else:
                    line += 1
        if start == len(text):
            break
        match = _TOKEN.match(text, start)
        assert match is not None and match.lastgroup is not None
        tokens.append(Token(Kind[match.lastgroup], match[0], match[0], text[position:start], file, line))
        position = match.end()
    return tokens


def untokenize(tokens: list[Token]) -> str:
    return "".join(token.lead + token.text for token in tokens) + "\n"


def matching(tokens: list[Token], start: int) -> int:
    """The index of the bracket that closes the one at `start`; of the last token if there is none."""
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i].spelling in OPENING:
            depth += 1
        elif tokens[i].spelling in CLOSING:
            depth -= 1
            if depth == 0:
                return i
    return len(tokens) - 1


def matching_angle(tokens: list[Token], start: int, end: int) -> int:
    """The index of the `>` that closes the `<` at `start`, before `end`; `start` itself if there is none."""
    depth, i = 0, start
    while i < end:
        spelling = tokens[i].spelling
        if spelling == "<":
            depth += 1
        elif spelling == ">":
            depth -= 1
            if depth == 0:
                return i
        elif spelling in OPENING:
            i = matching(tokens, i)
        elif spelling in (";", "}"):
            break
        i += 1
    return start


def outermost(tokens: list[Token], start: int, end: int) -> Iterator[int]:
    """The indices in [start, end) that stand in no bracket, angle brackets after a name included."""
    i = start
    while i < end:
        yield i
        spelling = tokens[i].spelling
        if spelling in OPENING:
            i = matching(tokens, i)
        elif spelling == "<" and i > start and tokens[i - 1].kind is Kind.IDENTIFIER:
            i = matching_angle(tokens, i, end)
        i += 1


def split_arguments(tokens: list[Token], start: int, end: int) -> list[tuple[int, int]]:
    """[start, end) cut at its outermost commas."""
    if start == end:
        return []
    commas = [i for i in outermost(tokens, start, end) if tokens[i].spelling == ","]
    return list(zip([start, *(i + 1 for i in commas)], [*commas, end], strict=True))


def text_of(tokens: list[Token], start: int, end: int) -> str:
    """The tokens on one line."""
    return " ".join(token.text for token in tokens[start:end] if token.text)
