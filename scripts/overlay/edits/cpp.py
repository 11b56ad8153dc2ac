"""Operations on C++, CUDA, Metal and Objective-C++ files."""

from __future__ import annotations

from .cpp_file import Definition, definitions, enumerators, tokens
from .elements import insert_elements
from .source import Change, Refusal, Source, Splice


def validate(source: Source) -> None:
    """Raises ValueError unless brackets match and the outline can be read."""
    definitions(source)


def insert_after_includes(source: Source, *, text: str) -> list[Change]:
    """Puts lines after the block of #include and #import directives that the file opens with."""
    _refuse_present(source, text)
    end, depth, includes = None, 0, False
    for token in tokens(source):
        if token.kind != "directive":
            break
        depth += token.text in ("if", "ifdef", "ifndef")
        depth -= token.text == "endif"
        includes = includes or token.text in ("include", "import")
        if depth == 0 and includes and token.text in ("include", "import", "endif"):
            end, includes = token.end, False
    if end is None:
        raise source.missing("the file opens with no #include")
    return [source.insert_lines(end, source.line_end(end), text)]


def insert_after_function(source: Source, *, function: str, text: str) -> list[Change]:
    """Puts lines after a function's definition, a blank line between."""
    _refuse_present(source, text)
    return [
        source.insert_lines(item.start, source.line_end(item.end), "\n" + text) for item in _functions(source, function)
    ]


def remove_definition(source: Source, *, definition: str) -> list[Change]:
    """Takes a whole function out, with one of the blank lines around it."""
    changes = []
    for function in _functions(source, definition):
        _refuse_statement_before(source, function)
        start, end = source.line_start(function.start), source.line_end(function.end)
        if source.data[start : function.start].strip() or source.data[function.end : end].strip(b" \t\r\n;"):
            raise Refusal(source.line(start), "the definition shares its lines with something else", "use replace_text")
        following = source.line_end(end)
        if not source.data[end:following].strip():
            end = following
        changes.append(Change(source.line(start), (Splice(start, end, b""),)))
    return changes


def add_enumerator(source: Source, *, enum: str, enumerator: str, after: str) -> list[Change]:
    """Puts an enumerator after another."""
    enums = [item for item in definitions(source) if item.kind == "enum" and item.is_named(enum)]
    if not enums:
        raise source.missing(f"no enum `{enum}`")
    changes = []
    for item in enums:
        container = enumerators(source, item)
        names = [element.node for element in container.elements]
        name = enumerator.partition("=")[0].strip()
        if name in names:
            raise source.present(container.elements[names.index(name)].start, f"the enumerator `{name}`")
        if after in names:
            changes.append(insert_elements(source, container, names.index(after), [enumerator]))
    if not changes:
        raise source.missing(f"`{enum}` has no enumerator `{after}`")
    return changes


def _functions(source: Source, name: str) -> list[Definition]:
    found = [item for item in definitions(source) if item.kind == "function" and item.is_named(name)]
    if not found:
        raise source.missing(f"no definition of `{name}`")
    return found


def _refuse_present(source: Source, text: str) -> None:
    lines = b"\n%s\n" % text.strip("\n").encode()
    if (found := (b"\n" + source.data).find(lines)) >= 0:
        raise source.present(found, f"`{text.strip().splitlines()[0]}`")


def _refuse_statement_before(source: Source, function: Definition) -> None:
    """A macro call on a line of its own before a function may be a statement that only lacks its semicolon."""
    head = [token for token in tokens(source) if function.start <= token.start < function.body]
    first_line = [token for token in head if source.line(token.start) == source.line(function.start)]
    if first_line[-1].text == ")" and head[len(first_line) :][0].kind == "word":
        text = source.data[function.start : first_line[-1].end].decode()
        raise Refusal(source.line(function.start), f"`{text}` before the definition may be a statement of its own",
                      "use replace_text")
