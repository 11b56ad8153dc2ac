"""The edit operations: `apply_edits` makes all edits of one upstream file."""

from __future__ import annotations

import inspect
import keyword
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from ..errors import OverlayError
from ..model import Edit
from . import cpp, native_yaml, python, python_file, text
from .source import Change, Refusal, Source, Splice, splice

_YAML_FILES = ("native_functions.yaml", "derivatives.yaml")
_PYTHON_FILES = (".py", ".pyi", ".py.in", ".pyi.in")
_CPP_FILES = (".h", ".hpp", ".cpp", ".cu", ".cuh", ".mm", ".metal")

# name: the operation, and how the files it works on end
OPERATIONS: dict[str, tuple[Callable[..., list[Change]], tuple[str, ...]]] = {
    "add_entries": (native_yaml.add_entries, _YAML_FILES),
    "add_dispatch": (native_yaml.add_dispatch, _YAML_FILES[:1]),
    "move_dispatch": (native_yaml.move_dispatch, _YAML_FILES[:1]),
    "set_dispatch": (native_yaml.set_dispatch, _YAML_FILES[:1]),
    "add_import": (python.add_import, _PYTHON_FILES),
    "add_to_all": (python.add_to_all, _PYTHON_FILES),
    "add_element": (python.add_element, _PYTHON_FILES),
    "add_statement": (python.add_statement, _PYTHON_FILES),
    "add_argument": (python.add_argument, _PYTHON_FILES),
    "remove_key": (python.remove_key, _PYTHON_FILES),
    "remove_decorator": (python.remove_decorator, _PYTHON_FILES),
    "insert_after_includes": (cpp.insert_after_includes, _CPP_FILES),
    "insert_after_function": (cpp.insert_after_function, _CPP_FILES),
    "remove_definition": (cpp.remove_definition, _CPP_FILES),
    "add_enumerator": (cpp.add_enumerator, _CPP_FILES),
    "insert_text": (text.insert_text, ("",)),
    "replace_text": (text.replace_text, ("",)),
}

_PARSERS: tuple[tuple[tuple[str, ...], ModuleType], ...] = (
    (_YAML_FILES, native_yaml),
    (_PYTHON_FILES, python_file),
    (_CPP_FILES, cpp),
)


@dataclass(frozen=True)
class Outcome:
    """What an edit does to the file as upstream has it: the lines it touches, or why it cannot."""

    edit: Edit
    lines: tuple[int, ...] = ()
    error: OverlayError | None = None


def check_edit(edit: Edit) -> None:
    """Refuses an edit that no file could take: an unknown operation, wrong arguments, the wrong kind of file."""
    if edit.operation not in OPERATIONS:
        raise OverlayError(edit.place, f"there is no operation `{edit.operation}`", f"one of: {', '.join(OPERATIONS)}")
    function, suffixes = OPERATIONS[edit.operation]
    if not edit.target.endswith(suffixes):
        raise OverlayError(edit.place, f"`{edit.operation}` works on {', '.join(suffixes)}, not on {edit.target}")
    try:
        inspect.signature(function).bind(None, **_keywords(edit))
    except TypeError as error:
        rule = f"the arguments of `{edit.operation}`: {error}".replace("from_", "from")
        raise OverlayError(edit.place, rule, "see docs/edits.md") from None
    for name, kind in typing.get_type_hints(function).items():
        value = _keywords(edit).get(name)
        if name not in ("source", "return") and value is not None and not _is_of(value, kind):
            what = {str: "text", list: "a list of texts", dict: "a mapping of texts"}[_plain(kind)]
            raise OverlayError(edit.place, f"`{name.rstrip('_')}` of `{edit.operation}` is {what}, not `{value}`")


def apply_edits(path: str, data: bytes, edits: list[Edit]) -> tuple[bytes, list[Outcome]]:
    """The file with all edits that it takes, and what each did. All of them see the file as upstream has it."""
    source = Source(path, data)
    taken: dict[str, list[Splice]] = {}
    outcomes = []
    for edit in edits:
        try:
            changes = _changes(source, edit)
            splices = [part for change in changes for part in change.splices]
            _refuse_overlap(source, taken, splices)
        except Refusal as refusal:
            outcomes.append(Outcome(edit, error=_error(path, edit, refusal)))
        else:
            taken[edit.id] = splices
            outcomes.append(Outcome(edit, tuple(change.line for change in changes)))
    result = splice(data, [part for splices in taken.values() for part in splices])
    if problem := _problem(path, result):
        problems = {id: _problem(path, splice(data, splices)) for id, splices in taken.items()}
        if not any(problems.values()):
            problems = dict.fromkeys(taken, problem)  # each is valid alone
        outcomes = [_invalid(path, outcome, problems.get(outcome.edit.id)) for outcome in outcomes]
        return data, outcomes
    return result, outcomes


def _changes(source: Source, edit: Edit) -> list[Change]:
    try:
        changes = OPERATIONS[edit.operation][0](source, **_keywords(edit))
    except ValueError as error:
        raise Refusal(None, str(error), "mend the edit") from None
    if len(changes) != edit.count:
        lines = ", ".join(str(change.line) for change in changes)
        fault = "ambiguous" if len(changes) > edit.count else "missing"
        raise Refusal(changes[0].line, f"the anchor is {fault}: it fits {len(changes)} places (lines {lines}), "
                      f"and `count` is {edit.count}", "make the anchor fit one place, or state the right `count`")
    return changes


def _refuse_overlap(source: Source, taken: dict[str, list[Splice]], splices: list[Splice]) -> None:
    for other, parts in taken.items():
        for one in parts:
            if any(one.start < two.end and two.start < one.end for two in splices):
                rule = f"it changes what the edit `{other}` changes"
                raise Refusal(source.line(one.start), rule, "make them one edit")


def _problem(path: str, data: bytes) -> str | None:
    """Why the edited file is not valid in its language."""
    for suffixes, parser in _PARSERS:
        if path.endswith(suffixes):
            try:
                parser.validate(Source(path, data))
            except ValueError as error:
                return str(error)
    return None


def _invalid(path: str, outcome: Outcome, problem: str | None) -> Outcome:
    if problem is None:
        return outcome
    refusal = Refusal(outcome.lines[0], f"the edited file is not valid: {problem}", "mend the edit")
    return Outcome(outcome.edit, error=_error(path, outcome.edit, refusal))


def _error(path: str, edit: Edit, refusal: Refusal) -> OverlayError:
    line = f":{refusal.line}" if refusal.line else ""
    return OverlayError(f"{path}{line} [{edit.place}]", refusal.rule, refusal.hint)


def _keywords(edit: Edit) -> dict[str, typing.Any]:
    """The arguments as Python can name them: `from` becomes `from_`."""
    return {f"{name}_" if keyword.iskeyword(name) else name: value for name, value in edit.arguments.items()}


def _plain(kind: typing.Any) -> type:
    """str, list or dict, from hints such as `list[str] | None`."""
    first = next((arm for arm in typing.get_args(kind) if arm is not type(None)), kind) if _is_union(kind) else kind
    return typing.get_origin(first) or first


def _is_union(kind: typing.Any) -> bool:
    return type(None) in typing.get_args(kind)


def _is_of(value: typing.Any, kind: typing.Any) -> bool:
    plain = _plain(kind)
    texts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return isinstance(value, plain) and bool(texts) and all(isinstance(text, str) for text in texts)
