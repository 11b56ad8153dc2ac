"""Operations on Python files."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from functools import lru_cache

from .elements import Container, insert_elements, remove_elements
from .python_file import (
    arguments_of,
    bound_names,
    classes,
    container_of,
    end_of,
    expression,
    functions,
    parameters_of,
    parse,
    same,
    start_of,
    variables,
)
from .source import Change, Refusal, Source


def add_import(source: Source, *, statement: str, after: str) -> list[Change]:
    """Puts an import after the module-level import of `after`, which is spelled as in the file: `.batchnorm`."""
    new = _parsed(statement, "`statement`")
    if not isinstance(new, ast.Import | ast.ImportFrom):
        raise ValueError(f"`{statement}` is not an import")
    imports = [node for node in parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        if _modules(node) == _modules(new) and {*map(ast.dump, new.names)} <= {*map(ast.dump, node.names)}:
            raise source.present(start_of(source, node), f"`{ast.unparse(new)}`")
    anchors = [node for node in imports if after in _modules(node)]
    if not anchors:
        raise source.missing(f"no module-level import of `{after}`")
    return [
        source.insert_lines(start_of(source, node), source.line_end(end_of(source, node)), statement)
        for node in anchors
    ]


def add_to_all(
    source: Source, *, names: list[str], after: str | None = None, before: str | None = None
) -> list[Change]:
    """Puts names into `__all__`, quoted as their neighbour is; a sorted one stays so, which PyTorch may assert."""
    if after is not None and before is not None:
        raise ValueError("it takes one of `after` and `before`")
    anchor = after or before
    containers = _required_variables(source, "__all__")
    _refuse_present(source, containers, [expression(repr(name)) for name in names])
    changes = []
    for container, index in _anchors(source, containers, "__all__", repr(anchor) if anchor else None):
        quote = source.data[container.elements[index].start : container.elements[index].start + 1].decode() or '"'
        texts = [f"{quote}{name}{quote}" for name in names]
        place = index - 1 if before else index
        public = [ast.literal_eval(element.node) for element in container.elements]
        if public == sorted(public):
            public[place + 1 : place + 1] = names
            if public != sorted(public):
                raise ValueError(f"`__all__` is sorted, and {', '.join(names)} would stand out of order in it")
        changes.append(insert_elements(source, container, place, texts))
    return changes


def add_element(
    source: Source,
    *,
    to: str,
    elements: list[str] | None = None,
    key: str | None = None,
    value: str | None = None,
    after: str | None = None,
) -> list[Change]:
    """Puts elements, or one key with its value, into the container that a variable is assigned.

    They go after the element `after` (of a dict: the key), or to the end.
    """
    if (elements is None) == (key is None) or (key is None) != (value is None):
        raise ValueError("it takes `elements`, or `key` and `value`")
    texts = elements or [f"{key}: {value}"]
    containers = _required_variables(source, to)
    _refuse_present(source, containers, [expression(text) for text in elements or [key]])
    anchors = _anchors(source, containers, to, after)
    for container, _ in anchors:
        if (container.kind == "dict") != (key is not None):
            kind = "a dict, which takes `key` and `value`" if key is None else "no dict; it takes `elements`"
            raise ValueError(f"`{to}` is {kind}")
    return [insert_elements(source, container, index, texts) for container, index in anchors]


def remove_key(source: Source, *, from_: str, key: str) -> list[Change]:
    """Takes an entry out of a dict, set or list that a variable is assigned."""
    wanted, changes = expression(key), []
    for container in _required_variables(source, from_):
        found = [index for index, element in enumerate(container.elements) if same(element.node, wanted)]
        changes += remove_elements(source, container, found) if found else []
    if not changes:
        raise source.missing(f"`{from_}` has no `{key}`")
    return changes


def add_statement(source: Source, *, statement: str, after: str, within: str | None = None) -> list[Change]:
    """Puts a statement after the one that binds the name `after`, at module level or in the body of a class.

    That is a definition, an import or an assignment; the last one where the name is bound several times.
    """
    new = _parsed(statement, "`statement`")
    scopes = [parse(source)] if within is None else classes(source, within)
    if not scopes:
        raise source.missing(f"no class `{within}`")
    changes = []
    for scope in scopes:
        for node in scope.body:
            if same(node, new):
                raise source.present(start_of(source, node), f"`{statement.strip()}`")
        anchors = [node for node in scope.body if after in bound_names(node)]
        if not anchors:
            raise source.missing(f"{f'`{within}`' if within else 'the module'} binds no `{after}`")
        start, end = start_of(source, anchors[-1]), end_of(source, anchors[-1])
        text = textwrap.indent(statement, source.indentation(start).decode())
        changes.append(source.insert_lines(start, source.line_end(end), text))
    return changes


def add_argument(
    source: Source,
    *,
    argument: str,
    function: str | None = None,
    call: str | None = None,
    within: str | None = None,
    after: str | None = None,
) -> list[Change]:
    """Puts an argument into the definition of `function`, or into each `call` made inside the function `within`.

    It goes after the parameter, keyword or positional argument `after`, or to the end.
    """
    if (function is None) == (call is None) or (within is not None and call is None):
        raise ValueError("it takes `function`, or `call` with an optional `within`")
    if function is not None:
        new = _parsed(f"def f({argument}): ...", "`argument`").args
        name = [*new.posonlyargs, *new.args, *new.kwonlyargs][0].arg
        containers = [parameters_of(source, node) for node in functions(source, function)]
    else:
        keywords = _parsed(f"f({argument})", "`argument`").value.keywords
        name = keywords[0].arg if keywords else argument
        containers = [arguments_of(source, node) for node in _calls(source, call, within)]
    if not containers:
        raise source.missing(f"no definition of `{function}`" if function else f"no call of `{call}`")
    changes = []
    for container in containers:
        names = [_argument_name(element.node) for element in container.elements]
        if name in names:
            raise source.present(container.elements[names.index(name)].start, f"the argument `{name}`")
        if after is not None and after not in names:
            raise source.missing(f"line {source.line(container.open)} has no argument `{after}`")
        index = names.index(after) if after is not None else len(names) - 1
        changes.append(insert_elements(source, container, index, [argument]))
    return changes


def remove_decorator(source: Source, *, opinfo: str, decorator: dict[str, str], variant: str = "") -> list[Change]:
    """Takes a DecorateInfo out of the `decorators` or `skips` of an OpInfo.

    `decorator` says which, by any of `class`, `test`, `device_type` and `decorator` (its source text).
    """
    unknown = decorator.keys() - {"class", "test", "device_type", "decorator"}
    if unknown or not decorator:
        raise ValueError("`decorator` names any of class, test, device_type and decorator")
    infos = [node for node in _all_calls(source) if _is_opinfo(node, opinfo, variant)]
    name = f"{opinfo}.{variant}" if variant else opinfo
    if not infos:
        raise source.missing(f"no OpInfo `{name}`")
    if len(infos) > 1:
        lines = ", ".join(str(info.lineno) for info in infos)
        raise Refusal(infos[0].lineno, f"the anchor is ambiguous: `{name}` stands in lines {lines}",
                      "name its `variant`")
    changes = []
    for keyword in infos[0].keywords:
        if keyword.arg in ("decorators", "skips"):
            for literal in ast.walk(keyword.value):
                if isinstance(literal, ast.Tuple | ast.List) and isinstance(literal.ctx, ast.Load):
                    changes += _remove_where(source, literal, lambda node: _is_decorate_info(node, decorator))
    if not changes:
        raise source.missing(f"the OpInfo `{name}` (line {infos[0].lineno}) has no such DecorateInfo")
    return changes


def _parsed(text: str, what: str) -> ast.stmt:
    """What is the one statement `text`."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        raise ValueError(f"{what} is not valid Python: {text}") from None
    return statement


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")]


def _required_variables(source: Source, name: str) -> list[Container]:
    found = variables(source, name)
    if not found:
        raise source.missing(f"no list, tuple, set or dict is assigned to `{name}`")
    return found


def _refuse_present(source: Source, containers: list[Container], new: list[ast.expr]) -> None:
    dumps = {ast.dump(node): node for node in new}
    for container in containers:
        for element in container.elements:
            if node := dumps.get(ast.dump(element.node)):
                raise source.present(element.start, f"`{ast.unparse(node)}`")


def _anchors(
    source: Source, containers: list[Container], name: str, after: str | None
) -> list[tuple[Container, int]]:
    if after is None:
        return [(container, len(container.elements) - 1) for container in containers]
    wanted = expression(after)
    found = [
        (container, index)
        for container in containers
        for index, element in enumerate(container.elements)
        if same(element.node, wanted)
    ]
    if not found:
        raise source.missing(f"`{name}` has no `{after}`")
    return found


@lru_cache(maxsize=4)
def _all_calls(source: Source) -> list[ast.Call]:
    return [node for node in ast.walk(parse(source)) if isinstance(node, ast.Call)]


def _calls(source: Source, callee: str, within: str | None) -> list[ast.Call]:
    wanted = expression(callee)
    scopes = functions(source, within) if within else []
    nodes = [node for scope in scopes for node in ast.walk(scope)] if within else _all_calls(source)
    return [node for node in nodes if isinstance(node, ast.Call) and same(node.func, wanted)]


def _argument_name(node: ast.AST) -> str:
    """What `after` calls an argument: a parameter's or keyword's name, a positional argument's text."""
    if isinstance(node, ast.arg | ast.keyword):
        return node.arg or ast.unparse(node)
    return ast.unparse(node)


def _callee(node: ast.AST) -> str:
    """The last name of what is called."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _is_opinfo(node: ast.AST, name: str, variant: str) -> bool:
    if not _callee(node).endswith("Info"):
        return False
    names = node.args[:1] + [keyword.value for keyword in node.keywords if keyword.arg == "name"]
    variants = [_text(keyword.value) for keyword in node.keywords if keyword.arg == "variant_test_name"]
    return name in map(_text, names) and (variants or [""]) == [variant]


def _is_decorate_info(node: ast.AST, wanted: dict[str, str]) -> bool:
    if _callee(node) != "DecorateInfo":
        return False
    names = ("decorators", "cls_name", "test_name")
    values = dict(zip(names, node.args)) | {keyword.arg: keyword.value for keyword in node.keywords}
    fields = {"class": "cls_name", "test": "test_name", "device_type": "device_type"}
    if not all(_text(values.get(field)) == wanted[key] for key, field in fields.items() if key in wanted):
        return False
    return "decorator" not in wanted or same(values["decorators"], expression(wanted["decorator"]))


def _remove_where(source: Source, literal: ast.Tuple | ast.List, condition: Callable[[ast.AST], bool]) -> list[Change]:
    indices = [index for index, node in enumerate(literal.elts) if condition(node)]
    return remove_elements(source, container_of(source, literal), indices) if indices else []


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
