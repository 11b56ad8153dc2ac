"""The outline of C++, CUDA, Metal and Objective-C++ files: their includes, namespaces and definitions.

A tokenizer and a bracket matcher, no more: what stands inside a body is only balanced. That is what these files
need: tree-sitter's C++ and Objective-C grammars lose the structure of many of ATen's (macros before functions,
message sends, @autoreleasepool), sometimes of the whole file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from .elements import Container, Element
from .source import Source

_TOKEN = re.compile(
    rb"""
      (?P<space>    (?: \s | \\\n )+ )
    | (?P<comment>  //(?: \\\n | [^\n] )* | /\*.*?\*/ )
    | (?P<string>   (?: u8 | [uUL] )? R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"
                  | (?: u8 | [uUL@] )? "(?: \\. | [^"\\\n] )*" )
    | (?P<char>     [uUL]?'(?: \\. | [^'\\\n] )+' )
    | (?P<number>   \.?\d(?: [eEpP][+-] | '?[\w.] )* )
    | (?P<word>     [A-Za-z_$][\w$]* )
    | (?P<symbol>   :: | -> | [=!<>+\-*/%&|^]= | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(rb"#[ \t]*(\w*)(?:\\\r?\n|/\*.*?\*/|[^\n])*", re.DOTALL)
_AFTER_PARAMETERS = ("const", "noexcept", "override", "final")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Token:
    kind: str  # word, number, string, char, symbol, directive; or group: a bracket with what it holds
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Definition:
    """A function, class or enum with its body."""

    names: tuple[str, ...]
    kind: str  # function, class or enum
    start: int
    end: int
    body: int  # after its opening brace

    def is_named(self, name: str) -> bool:
        """By `f`, `Class::f`, `f(int x)` to tell overloads apart, or a macro: `TORCH_IMPL_FUNC(x)`."""
        wanted = _squeeze(name)
        return any(own == wanted or own.endswith("::" + wanted) for own in self.names)


@dataclass
class _Scope:
    """An open bracket, and the tokens of the item being read inside it."""

    kind: str  # file, namespace, class, enum, function or group
    close: str
    open: int
    path: tuple[str, ...] = ()
    item: list[Token] = field(default_factory=list)


@lru_cache(maxsize=4)
def tokens(source: Source) -> list[Token]:
    return list(_tokens(source))


@lru_cache(maxsize=4)
def definitions(source: Source) -> list[Definition]:
    """All definitions, those in namespaces and classes included. Raises ValueError if brackets do not match."""
    found: list[Definition] = []
    stack = [_Scope("file", "", 0)]
    branches: list[tuple[list[_Scope], list[_Scope] | None]] = []  # of each open #if: see _conditional
    for token in tokens(source):
        scope = stack[-1]
        if token.kind == "directive":
            stack = _conditional(token, stack, branches)
        elif token.text in _CLOSING:
            kind, path = _kind_of(source, token, scope)
            stack.append(_Scope(kind, _CLOSING[token.text], token.start, path))
        elif token.text in _CLOSING.values():
            if token.text != scope.close:
                raise ValueError(f"line {source.line(token.start)}: `{token.text}` closes nothing")
            stack.pop()
            found += _close(source, scope, stack[-1], token.end)
        elif token.text == ";" or _is_label(scope, token) or (token.text == "end" and _texts(scope.item)[-1:] == ["@"]):
            scope.item.clear()
        else:
            scope.item.append(token)
    if len(stack) > 1:
        raise ValueError(f"line {source.line(stack[-1].open)}: a bracket is not closed")
    return sorted(found, key=lambda definition: definition.start)


def enumerators(source: Source, enum: Definition) -> Container:
    inside = [token for token in tokens(source) if enum.body <= token.start < enum.end]
    elements, depth, first, last = [], 0, None, None
    for token in inside:
        if token.kind == "directive":
            continue
        if depth == 0 and token.text in (",", "}"):
            if first:
                comma = token.start if token.text == "," else None
                elements.append(Element(first.start, last.end, comma, first.text))
            first = None
            if token.text == "}":
                return Container("enum", elements, enum.body, token.start)
            continue
        depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
        first, last = first or token, token
    raise ValueError(f"line {source.line(enum.start)}: the enum does not end")


def _tokens(source: Source) -> Iterator[Token]:
    data, position, at_line_start = source.data, 0, True
    while position < len(data):
        if at_line_start and data[position : position + 1] == b"#":
            match, kind = _DIRECTIVE.match(data, position), "directive"
        else:
            match = _TOKEN.match(data, position)
            kind = match.lastgroup
        if kind == "space":
            at_line_start = at_line_start or b"\n" in match[0]
        elif kind != "comment":
            at_line_start = kind == "directive"
            yield Token(kind, match[1 if kind == "directive" else 0].decode(), position, match.end())
        position = match.end()


def _conditional(token: Token, stack: list[_Scope], branches: list) -> list[_Scope]:
    """Every branch of an #if starts from the same brackets; what follows #endif goes on from its first branch."""
    if token.text in ("if", "ifdef", "ifndef"):
        branches.append((copy.deepcopy(stack), None))
    elif token.text in ("else", "elif") and branches:
        before, first = branches.pop()
        branches.append((before, first or stack))
        return copy.deepcopy(before)
    elif token.text == "endif" and branches:
        return branches.pop()[1] or stack
    return stack


def _kind_of(source: Source, bracket: Token, scope: _Scope) -> tuple[str, tuple[str, ...]]:
    """What a bracket opens, and the qualified name of the scope inside it."""
    if bracket.text != "{" or scope.kind not in ("file", "namespace", "class"):
        return "group", ()
    item = _without_template(_declaration(source, scope.item))
    texts = _texts(item)
    if "namespace" in texts:
        return "namespace", (*scope.path, *(text for text in texts[texts.index("namespace") + 1 :] if text != "::"))
    if texts[:1] == ["extern"] and item[-1].kind == "string":
        return "namespace", scope.path
    called = any(_is_call(token) for token in item)
    last = texts[-1] if texts else ""
    named = last == ">" or (item[-1:] and item[-1].kind == "word" and last not in _AFTER_PARAMETERS)
    if {"class", "struct", "union", "enum"} & {*texts} and (not called or named):
        return ("enum" if "enum" in texts else "class"), (*scope.path, *_class_name(item))
    if not called or ("=" in texts and "operator" not in texts):
        return "group", ()  # an initializer
    after_call = texts[next(index for index, token in enumerate(item) if _is_call(token)) :]
    if ":" in after_call and (item[-1].kind == "word" or last == ">"):
        return "group", ()  # a member's initializer in a constructor: `: size_{0}`
    return "function", ()


def _close(source: Source, scope: _Scope, outer: _Scope, end: int) -> list[Definition]:
    if scope.kind == "namespace":
        outer.item.clear()
    elif scope.kind == "function":
        item, outer.item = _declaration(source, outer.item), []
        return [Definition(_function_names(outer.path, item), "function", item[0].start, end, scope.open + 1)]
    else:
        outer.item.append(Token("group", _squeeze(source.data[scope.open : end].decode()), scope.open, end))
        if scope.kind in ("class", "enum"):
            item = _declaration(source, outer.item)
            return [Definition(("::".join(scope.path),), scope.kind, item[0].start, end, scope.open + 1)]
    return []


def _declaration(source: Source, item: list[Token]) -> list[Token]:
    """The item without what stands before a blank line or a directive: a macro call that needs no semicolon."""
    for index in range(len(item) - 1, 0, -1):
        gap = source.data[item[index - 1].end : item[index].start]
        if item[index - 1].text != ">" and re.search(rb"\n\s*\n|\n[ \t]*#", gap):
            return item[index:]
    return item


def _without_template(item: list[Token]) -> list[Token]:
    """The item without the parameter lists of `template <...>`, whose defaults look like initializers."""
    kept, depth = [], 0
    for index, token in enumerate(item):
        opens = token.text == "<" and (depth or _texts(item[:index])[-1:] == ["template"])
        depth += bool(opens)
        if not depth:
            kept.append(token)
        depth -= bool(depth) and token.text == ">"
    return kept


def _function_names(path: tuple[str, ...], item: list[Token]) -> tuple[str, ...]:
    """For each call-like part `name(...)` of a definition's head: the name, without and with its parentheses."""
    names = []
    item = _without_template(item)
    for index, token in enumerate(item):
        if _is_call(token) and index and not _is_call(item[index - 1]):
            first = index
            while first and (item[first - 1].text in ("::", "~") or (
                item[first - 1].kind == "word" and (first == index or item[first].text in ("::", "~")))):
                first -= 1
            operator = next((i for i in range(max(0, index - 3), index) if item[i].text == "operator"), index)
            name = "::".join((*path, "".join(_texts(item[min(first, operator) : index]))))
            names += [name, name + token.text]
    return tuple(names)


def _class_name(item: list[Token]) -> tuple[str, ...]:
    """The last word before a base list: `struct TORCH_API Name final : Base`."""
    texts = _texts(item)
    head = item[: texts.index(":")] if ":" in texts else item
    words = [token.text for token in head if token.kind == "word" and token.text != "final"]
    return tuple(words[-1:])


def _is_call(token: Token) -> bool:
    return token.kind == "group" and token.text.startswith("(")


def _is_label(scope: _Scope, token: Token) -> bool:
    return token.text == ":" and _texts(scope.item) in (["public"], ["private"], ["protected"])


def _texts(item: list[Token]) -> list[str]:
    return [token.text for token in item]


def _squeeze(text: str) -> str:
    return re.sub(r"\s", "", text)
