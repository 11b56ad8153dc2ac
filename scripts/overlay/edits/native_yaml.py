"""Operations on native_functions.yaml and derivatives.yaml, through PyYAML's node positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import yaml

from .source import Change, Refusal, Source, Splice

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is 10 times faster


@dataclass(frozen=True)
class Entry:
    """One operator overload, as either file lists it."""

    name: str  # with its overload: add_.Tensor
    fields: dict[str, yaml.Node]
    start: int
    end: int  # after its last character

    @property
    def base(self) -> str:
        return self.name.partition(".")[0]

    @property
    def operator(self) -> str:
        """The base name without the underscore of an in-place variant."""
        base = self.base
        return base[:-1] if base.endswith("_") and not base.endswith("__") else base

    @property
    def structured_delegate(self) -> str | None:
        node = self.fields.get("structured_delegate")
        return node.value if node else None


@dataclass(frozen=True)
class DispatchLine:
    """`CPU, CUDA: kernel` in an entry's `dispatch`."""

    keys: tuple[str, ...]
    key_start: int
    key_end: int
    kernel_start: int
    kernel_end: int


def validate(source: Source) -> None:
    """Raises ValueError unless the file is a list of entries with distinct names."""
    names = Counter(entry.name for entry in _entries(source))
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"listed twice: {', '.join(twice)}")


def add_entries(source: Source, *, after: str, entries: str) -> list[Change]:
    """Puts entries after an overload, or after the last overload of a base name."""
    new = _entries(Source(source.path, entries.encode()))
    existing = {entry.name: entry for entry in _entries(source)}
    for entry in new:
        if entry.name in existing:
            raise source.present(existing[entry.name].start, f"the entry `{entry.name}`")
    if "." in after:
        anchors = [entry for entry in _entries(source) if entry.name == after]
    else:
        anchors = [entry for entry in _entries(source) if entry.base == after][-1:]
    if not anchors:
        raise source.missing(f"no entry `{after}`")
    block = "\n" + entries.strip("\n")
    return [source.insert_lines(anchor.start, _end_of_lines(source, anchor), block) for anchor in anchors]


def add_dispatch(source: Source, *, functions: list[str], line: str, key: str) -> list[Change]:
    """Lets a device share the dispatch line that `line` stands on."""
    changes = []
    for entry in _named(source, functions):
        if present := _line_with(source, entry, key):
            raise source.present(present.key_start, f"`{key}` in the dispatch of `{entry.name}`")
        shared = _required_line(source, entry, line)
        insertion = Splice(shared.key_end, shared.key_end, f", {key}".encode())
        changes.append(Change(source.line(shared.key_start), (insertion,)))

    def served(entry: Entry) -> bool:
        """It has the device, or what serves `line` there serves any device."""
        return bool(_line_with(source, entry, key)) or not _line_with(source, entry, line)

    _refuse_left_behind(source, functions, served)
    return changes


def move_dispatch(source: Source, *, functions: list[str], key: str, to: str) -> list[Change]:
    """Moves a device from its own kernel to the line that `to` stands on."""
    changes = []
    for entry in _named(source, functions):
        shared, own = _required_line(source, entry, to), _required_line(source, entry, key)
        if own == shared:
            raise source.present(shared.key_start, f"`{key}` on the line of `{to}` in `{entry.name}`")
        insertion = Splice(shared.key_end, shared.key_end, f", {key}".encode())
        changes.append(Change(source.line(own.key_start), (_without_key(source, own, key), insertion)))

    def served(entry: Entry) -> bool:
        """The two share a line, or neither has one."""
        return _line_with(source, entry, key) == _line_with(source, entry, to)

    _refuse_left_behind(source, functions, served)
    return changes


def set_dispatch(
    source: Source, *, functions: list[str], key: str, kernel: str, device_check: str | None = None
) -> list[Change]:
    """Gives a device its own kernel.

    `device_check` is the entry's: NoCheck, where a kernel for any device had none generated and has its own.
    """
    changes = []
    for entry in _named(source, functions):
        lines = _dispatch(source, entry)
        if not lines:
            rule = f"`{entry.name}` has no `dispatch`: it is CompositeImplicitAutograd, which a kernel ends"
            raise Refusal(source.line(entry.start), rule, "write the entry's dispatch with replace_text")
        own = _line_with(source, entry, key)
        if own and source.data[own.kernel_start : own.kernel_end] == kernel.encode():
            raise source.present(own.key_start, f"`{key}: {kernel}` in `{entry.name}`")
        if own and own.keys == (key,):
            splices = [Splice(own.kernel_start, own.kernel_end, kernel.encode())]
        else:
            anchor = own or lines[-1]
            place = source.line_end(anchor.kernel_end)
            indentation = source.indentation(anchor.key_start).decode()
            splices = list(source.insert_lines(place, place, f"{indentation}{key}: {kernel}").splices)
            splices += [_without_key(source, own, key)] if own else []
        if device_check is not None:
            splices += _new_field(source, entry, "device_check", device_check).splices
        changes.append(Change(source.line((own or lines[-1]).key_start), tuple(splices)))

    def served(entry: Entry) -> bool:
        """It has the device, or is composed of operators that do."""
        composed = any("CompositeImplicitAutograd" in line.keys for line in _dispatch(source, entry))
        return bool(_line_with(source, entry, key)) or composed or "dispatch" not in entry.fields

    _refuse_left_behind(source, functions, served)
    return changes


@lru_cache(maxsize=8)
def _entries(source: Source) -> list[Entry]:
    try:
        root = yaml.compose(source.data.decode(), _LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {error}") from None
    if not isinstance(root, yaml.SequenceNode):
        raise ValueError("it is a list of operator entries")
    return [_entry(source, node) for node in root.value]


def _entry(source: Source, node: yaml.Node) -> Entry:
    start = source.character_offset(node.start_mark.line + 1, node.start_mark.column)
    fields = {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}
    signature = fields.get("func") or fields.get("name")
    if not isinstance(signature, yaml.ScalarNode):
        raise ValueError(f"line {source.line(start)}: an entry has a `func` or a `name`")
    last = node
    while not isinstance(last, yaml.ScalarNode) and last.value:
        last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
    text = source.data[start : _end(source, last)].rstrip()  # a block scalar ends after the blank lines below it
    return Entry(signature.value.partition("(")[0].strip(), fields, start, start + len(text))


def _end(source: Source, node: yaml.Node) -> int:
    return source.character_offset(node.end_mark.line + 1, node.end_mark.column)


def _end_of_lines(source: Source, entry: Entry) -> int:
    """Where the line after the entry starts; its own indented comments belong to it."""
    end = source.line_end(entry.end)
    while (following := source.data[end : source.line_end(end)]).startswith(b" ") and following.strip()[:1] == b"#":
        end = source.line_end(end)
    return end


def _dispatch(source: Source, entry: Entry) -> list[DispatchLine]:
    node = entry.fields.get("dispatch")
    if not isinstance(node, yaml.MappingNode):
        return []
    lines = []
    for key, kernel in node.value:
        start, kernel_start = (source.character_offset(mark.line + 1, mark.column)
                               for mark in (key.start_mark, kernel.start_mark))
        keys = tuple(name.strip() for name in key.value.split(","))
        lines.append(DispatchLine(keys, start, _end(source, key), kernel_start, _end(source, kernel)))
    return lines


def _new_field(source: Source, entry: Entry, name: str, value: str) -> Change:
    """A line after the `func` of an entry."""
    if name in entry.fields:
        raise source.present(entry.start, f"`{name}` in `{entry.name}`")
    end = _end(source, entry.fields["func"])
    return source.insert_lines(entry.start, source.line_end(end), f"  {name}: {value}")


def _line_with(source: Source, entry: Entry, key: str) -> DispatchLine | None:
    return next((line for line in _dispatch(source, entry) if key in line.keys), None)


def _required_line(source: Source, entry: Entry, key: str) -> DispatchLine:
    line = _line_with(source, entry, key)
    if line is None:
        raise source.missing(f"`{entry.name}` (line {source.line(entry.start)}) has no `{key}` in its dispatch")
    return line


def _without_key(source: Source, line: DispatchLine, key: str) -> Splice:
    if line.keys == (key,):
        return Splice(source.line_start(line.key_start), source.line_end(line.kernel_end), b"")
    rest = ", ".join(name for name in line.keys if name != key)
    return Splice(line.key_start, line.key_end, rest.encode())


def _named(source: Source, functions: list[str]) -> list[Entry]:
    entries = {entry.name: entry for entry in _entries(source)}
    for function in functions:
        if function not in entries:
            raise source.missing(f"no entry `{function}`")
    return [entries[function] for function in functions]


def _refuse_left_behind(source: Source, functions: list[str], served: Callable[[Entry], bool]) -> None:
    """Every overload of a migrated operator moves with it, or has no need to.

    An overload is covered if the edit names it, if `served` says its own dispatch already does what the edit
    gives, or if it is structured and delegates to one that is covered.
    """
    entries = {entry.name: entry for entry in _entries(source)}

    def covered(entry: Entry) -> bool:
        if entry.name in functions:
            return True
        if entry.structured_delegate:
            return covered(entries[entry.structured_delegate])
        return served(entry)

    operators = {entries[function].operator for function in functions}
    left = [entry for entry in entries.values() if entry.operator in operators and not covered(entry)]
    if left:
        names = ", ".join(entry.name for entry in left)
        raise Refusal(source.line(left[0].start), f"overloads left behind: {names}", "name them in `functions` too")
