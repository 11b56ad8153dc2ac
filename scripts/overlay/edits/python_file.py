"""Finding places in Python files through `ast` positions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from .elements import Container, Element
from .source import Source

_TRIVIA = re.compile(rb"(?:[ \t\f\r\n]|\\\r?\n|#[^\n]*)*")
_TEMPLATE = re.compile(rb"\$\{(\w+)\}")
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@lru_cache(maxsize=4)
def parse(source: Source) -> ast.Module:
    data = source.data
    if source.path.endswith(".in"):  # a template's ${name} parses as the name __name_
        data = _TEMPLATE.sub(rb"__\1_", data)
    try:
        return ast.parse(data)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: not valid Python: {error.msg}") from None


def validate(source: Source) -> None:
    """Raises ValueError unless the file is Python."""
    parse(source)


def expression(text: str) -> ast.expr:
    """One element of a list, as written; may be starred."""
    try:
        elements = ast.parse(f"[{text}\n]", mode="eval").body.elts
    except (SyntaxError, AttributeError):
        raise ValueError(f"`{text}` is not an expression") from None
    if len(elements) != 1:
        raise ValueError(f"`{text}` is not one expression")
    return elements[0]


def same(one: ast.AST, other: ast.AST) -> bool:
    return ast.dump(one) == ast.dump(other)


def start_of(source: Source, node: ast.AST) -> int:
    return source.offset(node.lineno, node.col_offset)


def end_of(source: Source, node: ast.AST) -> int:
    return source.offset(node.end_lineno, node.end_col_offset)


def functions(source: Source, qualified_name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    scopes = _scopes(parse(source), qualified_name.split("."))
    return [scope for scope in scopes if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)]


def classes(source: Source, qualified_name: str) -> list[ast.ClassDef]:
    scopes = _scopes(parse(source), qualified_name.split("."))
    return [scope for scope in scopes if isinstance(scope, ast.ClassDef)]


def bound_names(statement: ast.stmt) -> list[str]:
    """The names that a definition, an import or an assignment gives its scope."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def variables(source: Source, qualified_name: str) -> list[Container]:
    """The containers assigned or added to a variable: `op_db`, or `function.name` for one inside a function."""
    *path, name = qualified_name.split(".")
    return [
        container_of(source, literal)
        for scope in _scopes(parse(source), path)
        for value in _assigned(scope, name)
        for literal in _literals(value)
    ]


def container_of(source: Source, node: ast.List | ast.Tuple | ast.Set | ast.Dict) -> Container:
    start, end = start_of(source, node), end_of(source, node)
    if source.data[start : start + 1] not in (b"[", b"(", b"{"):
        raise ValueError(f"line {source.line(start)}: a tuple without parentheses; use replace_text")
    if isinstance(node, ast.Dict):
        items = [(key or value, value) for key, value in zip(node.keys, node.values)]
    else:
        items = [(element, element) for element in node.elts]
    kind = type(node).__name__.lower()
    return Container(kind, list(_elements(source, items, start + 1, end - 1)), start + 1, end - 1)


def arguments_of(source: Source, call: ast.Call) -> Container:
    items = [(item, item) for item in [*call.args, *call.keywords]]
    items.sort(key=lambda item: start_of(source, item[0]))
    end = end_of(source, call) - 1
    start = _skip(source.data, end_of(source, call.func))
    while source.data[start : start + 1] == b")":  # the callee may stand in parentheses
        start = _skip(source.data, start + 1)
    return Container("call", list(_elements(source, items, start + 1, end)), start + 1, end)


def parameters_of(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Container:
    signature = function.args
    positional = [*signature.posonlyargs, *signature.args]
    defaults = [None] * (len(positional) - len(signature.defaults)) + signature.defaults
    items = [(argument, default or argument) for argument, default in zip(positional, defaults)]
    items += [(argument, argument) for argument in (signature.vararg, signature.kwarg) if argument]
    items += [(argument, default or argument)
              for argument, default in zip(signature.kwonlyargs, signature.kw_defaults)]
    items.sort(key=lambda item: start_of(source, item[0]))
    start = source.data.index(b"(", source.data.index(function.name.encode(), start_of(source, function)))
    close = _closing(source.data, end_of(source, items[-1][1]) if items else start + 1)
    return Container("parameters", list(_elements(source, items, start + 1, close)), start + 1, close)


def _scopes(scope: _Scope, path: list[str]) -> list[_Scope]:
    if not path:
        return [scope]
    inner = [node for node in _statements(scope)
             if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == path[0]]
    return [found for node in inner for found in _scopes(node, path[1:])]


def _statements(scope: _Scope) -> Iterator[ast.stmt]:
    """The statements of a scope, in order, those of nested functions and classes left out."""
    pending = list(reversed(scope.body))
    while pending:
        statement = pending.pop()
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = [node for node in ast.iter_child_nodes(statement)
                     if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case)]
            pending += reversed(inner)


def _assigned(scope: _Scope, name: str) -> Iterator[ast.expr]:
    for statement in _statements(scope):
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
            targets = [statement.target]
        else:
            continue
        if statement.value and any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield statement.value


def _literals(value: ast.expr) -> list[ast.expr]:
    """The literal containers in [...], dict.fromkeys([...], x), frozenset({...}) and sums of such."""
    if isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Dict):
        return [value]
    if isinstance(value, ast.Call) and value.args:
        return _literals(value.args[0])
    if isinstance(value, ast.BinOp):
        return _literals(value.left) + _literals(value.right)
    return []


def _elements(source: Source, items: list[tuple[ast.AST, ast.AST]], low: int, high: int) -> Iterator[Element]:
    data = source.data
    for index, (first, last) in enumerate(items):
        limit = start_of(source, items[index + 1][0]) if index + 1 < len(items) else high
        start, end = _skip(data, low), end_of(source, last)
        position = _skip(data, end)
        while position < limit and data[position : position + 1] == b")":
            end = position + 1
            position = _skip(data, end)
        comma = position if position < limit and data[position : position + 1] == b"," else None
        yield Element(start, end, comma, first)
        low = end if comma is None else comma + 1


def _skip(data: bytes, position: int) -> int:
    """Past white space and comments."""
    return _TRIVIA.match(data, position).end()


def _closing(data: bytes, position: int) -> int:
    """The parenthesis that ends a parameter list: the last one before its colon or arrow."""
    close = position = _skip(data, position)
    while (character := data[position : position + 1]) in (b",", b"/", b")"):
        close = position if character == b")" else close
        position = _skip(data, position + 1)
    return close
