"""Rules of the Metal Shading Language that a C++ compiler does not know."""

from __future__ import annotations

from collections.abc import Iterator

from overlay.errors import OverlayError

from .attributes import ADDRESS_SPACES
from .tokens import OPENING, Kind, Token, matching, matching_angle, split_arguments

_REFUSED = {
    "double": ("Metal has no `double`", "use float, or two floats"),
    "asm": ("Metal has no inline assembly", ""),
    "catch": ("Metal has no exceptions", "report errors through TORCH_REPORT_ERROR of <c10/metal/error.h>"),
    "delete": ("Metal has no `delete`", ""),
    "dynamic_cast": ("Metal has no `dynamic_cast`", ""),
    "goto": ("Metal has no `goto`", ""),
    "new": ("Metal has no `new`", "memory comes from the host, as a buffer"),
    "register": ("Metal has no `register`", ""),
    "std": ("Metal has no `std`", "most of its type traits and math are in `metal`"),
    "thread_local": ("Metal has no `thread_local`", "locals are a thread's own"),
    "throw": ("Metal has no exceptions", "report errors through TORCH_REPORT_ERROR of <c10/metal/error.h>"),
    "try": ("Metal has no exceptions", "report errors through TORCH_REPORT_ERROR of <c10/metal/error.h>"),
    "typeid": ("Metal has no `typeid`", ""),
    "virtual": ("Metal has no virtual functions", "use a template"),
    **{
        word: (f"`{word}` needs C++20; Metal 4.0 is C++17", "")
        for word in ("char8_t", "co_await", "co_return", "co_yield", "concept", "consteval", "constinit", "requires")
    },
    "__int128": ("Metal has no 128-bit integers", ""),
    "_Float16": ("Metal's 16-bit float is `half`", ""),
    "__bf16": ("Metal's bfloat16 is `bfloat`", ""),
}

# What a lambda's `[` may follow.
_BEFORE_EXPRESSION = frozenset("( , = { } ; ? : && || ! + - * / return < &".split())


def refused_words(tokens: list[Token]) -> Iterator[OverlayError]:
    for i, token in enumerate(tokens):
        if token.kind is not Kind.IDENTIFIER or token.spelling not in _REFUSED:
            continue
        if token.spelling == "delete" and tokens[i - 1].spelling == "=":
            continue
        rule, hint = _REFUSED[token.spelling]
        yield OverlayError(token.place, rule, hint)


def lambdas(tokens: list[Token]) -> Iterator[OverlayError]:
    for i, token in enumerate(tokens):
        if token.spelling != "[" or i == 0 or tokens[i - 1].spelling not in _BEFORE_EXPRESSION:
            continue
        end = matching(tokens, i)
        if end > i + 1 and tokens[i + 1].spelling == "[":  # an attribute
            continue
        if end + 1 < len(tokens) and tokens[end + 1].spelling in ("(", "{"):
            yield OverlayError(token.place, "Metal 3.1 has no lambdas", "write a function object")


def _unqualified(tokens: list[Token], start: int, end: int) -> Token | None:
    """The `*` or `&` of the declaration [start, end) that has no address space in front of it."""
    i = start
    while i < end:
        spelling = tokens[i].spelling
        if spelling in ADDRESS_SPACES or spelling in ("auto", "=", "decltype", "operator"):
            return None
        if spelling in OPENING:
            i = matching(tokens, i)
        elif spelling == "<" and tokens[i - 1].kind is Kind.IDENTIFIER:
            i = matching_angle(tokens, i, end)
        elif spelling in ("*", "&", "&&") and i > start:
            return tokens[i]
        i += 1
    return None


def _refusal(token: Token, what: str) -> OverlayError:
    kind = "pointer" if token.spelling == "*" else "reference"
    return OverlayError(
        token.place, f"{what} is a {kind} without an address space", "device, constant, threadgroup or thread"
    )


def unqualified_parameters(tokens: list[Token], start: int, end: int) -> Iterator[OverlayError]:
    """In the parameter list [start, end) of a function."""
    for first, last in split_arguments(tokens, start, end):
        token = _unqualified(tokens, first, last)
        if token:
            yield _refusal(token, "this parameter")


def unqualified_variable(tokens: list[Token], start: int) -> Iterator[OverlayError]:
    """In the statement that begins at `start`, if it declares a variable: `T* p = ...`, `const T& r = ...`."""
    i = start
    while i < len(tokens):
        token = tokens[i]
        if token.spelling == "<" and i > start and tokens[i - 1].kind is Kind.IDENTIFIER:
            close = matching_angle(tokens, i, min(i + 200, len(tokens)))
            if close == i:
                return
            i = close + 1
            continue
        if token.kind is not Kind.IDENTIFIER and token.spelling not in ("::", "*", "&"):
            return
        if token.spelling in ADDRESS_SPACES or token.spelling in ("auto", "return", "using", "typedef", "operator"):
            return
        if token.spelling in ("*", "&"):
            break
        i += 1
    else:
        return
    if i == start or tokens[i - 1].spelling in ("*", "&"):
        return
    star = tokens[i]
    while tokens[i].spelling in ("*", "&", "const"):
        i += 1
    if tokens[i].kind is Kind.IDENTIFIER and tokens[i + 1].spelling in ("=", ";", "[", "{", ":"):
        yield _refusal(star, f"`{tokens[i].spelling}`")
