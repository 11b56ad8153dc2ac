"""The attributes of kernel parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from overlay.errors import OverlayError

from .kernels import MAX_BUFFERS, Parameter
from .shared_structs import is_widened_flag
from .tokens import OPENING, Token, matching, split_arguments, text_of

MAX_THREADGROUP_ARGUMENTS = 31
COORDINATES = frozenset(
    {
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
        "threadgroups_per_grid",
        "threads_per_grid",
    }
)
INDICES = frozenset(
    {
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
        "thread_index_in_quadgroup",
        "quadgroup_index_in_threadgroup",
        "threads_per_simdgroup",
        "thread_execution_width",
        "simdgroups_per_threadgroup",
        "dispatch_simdgroups_per_threadgroup",
    }
)
POSITIONS = COORDINATES | INDICES
ADDRESS_SPACES = frozenset({"device", "constant", "threadgroup", "thread"})


def attribute_end(tokens: list[Token], start: int) -> int | None:
    """Where an attribute list `[[...]]` that begins at `start` ends, after its brackets."""
    if start + 1 < len(tokens) and tokens[start].spelling == "[" and tokens[start + 1].spelling == "[":
        return matching(tokens, start) + 1
    return None


def parse_attributes(tokens: list[Token], start: int, end: int) -> list[tuple[str, tuple[int, int]]]:
    """(name, range of its arguments) of each attribute in the list [start, end)."""
    attributes = []
    for first, last in split_arguments(tokens, start + 2, end - 2):
        if first == last:
            continue
        name = first
        while name + 2 < last and tokens[name + 1].spelling == "::":
            name += 2
        arguments = (name + 2, last - 1) if last > name + 1 and tokens[name + 1].spelling == "(" else (last, last)
        attributes.append((text_of(tokens, first, name + 1), arguments))
    return attributes


def blank(tokens: list[Token], start: int, end: int) -> None:
    for token in tokens[start:end]:
        token.text = ""


class ParameterParser:
    """The parameters of one kernel, with their attributes taken out."""

    def __init__(self, tokens: list[Token], report: Callable[[OverlayError], None]):
        self._tokens = tokens
        self._report = report

    def parse(self, start: int, end: int) -> list[Parameter]:
        parameters = [self._parameter(first, last) for first, last in split_arguments(self._tokens, start, end)]
        parameters = self._number_buffers(parameters)
        self._check_clashes(parameters)
        self._check_coordinates(parameters)
        return parameters

    def _error(self, place: str, rule: str, hint: str = "") -> None:
        self._report(OverlayError(place, rule, hint))

    def _parameter(self, start: int, end: int) -> Parameter:
        tokens, place = self._tokens, self._tokens[start].place
        binding = attribute = ""
        i = start
        while i < end:
            close = attribute_end(tokens, i)
            if close is None:
                i = matching(tokens, i) + 1 if tokens[i].spelling in OPENING else i + 1
                continue
            for name, arguments in parse_attributes(tokens, i, close):
                attribute = attribute or name
                binding = self._binding(name, arguments, place)
            blank(tokens, i, close)
            i = close
        declaration = text_of(tokens, start, end)
        words = {token.spelling for token in tokens[start:end]}
        if not binding:
            if not words & ADDRESS_SPACES:
                pointer = words & {"*", "&"}
                self._error(
                    place,
                    f"kernel parameter `{declaration}` "
                    + ("names no address space" if pointer else "has no attribute that says what it is"),
                    "`device T*`, `constant T*` or `constant T&`"
                    if pointer
                    else "a position needs one such as [[thread_position_in_grid]]; a value comes as `constant T&`",
                )
            elif "threadgroup" in words:
                self._error(place, f"threadgroup parameter `{declaration}` has no index", "[[threadgroup(n)]]")
        if "&" in words and "constant" in words and is_widened_flag(declaration, declaration.split()[-1]):
            self._error(place, f"flag `{declaration}` is widened to an integer", "`constant bool&`")
        return Parameter(declaration, binding, place, attribute)

    def _binding(self, name: str, arguments: tuple[int, int], place: str) -> str:
        if name in ("buffer", "threadgroup"):
            number = text_of(self._tokens, *arguments)
            limit = MAX_BUFFERS if name == "buffer" else MAX_THREADGROUP_ARGUMENTS
            if not number.isdecimal() or int(number) >= limit:
                self._error(place, f"[[{name}({number})]]: the index is a number from 0 to {limit - 1}")
                number = "0"
            return f"buffer<{number}>" if name == "buffer" else f"threadgroup_memory<{number}>"
        if name in POSITIONS:
            return name
        if name in ("texture", "sampler", "function_constant", "id", "visible_function_table"):
            self._error(place, f"[[{name}]] is not supported by the CPU executor")
        else:
            self._error(place, f"[[{name}]] is not an attribute of a kernel parameter")
        return "buffer<0>"

    def _number_buffers(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        if all(parameter.binding for parameter in parameters):
            return list(parameters)
        given = [parameter for parameter in parameters if parameter.attribute == "buffer"]
        if given:
            missing = next(parameter for parameter in parameters if not parameter.binding)
            self._error(
                missing.place,
                f"kernel parameter `{missing.declaration}` has no [[buffer(n)]], but others have one",
                "give an index to all of them or to none",
            )
        numbered, index = [], 0
        for parameter in parameters:
            if not parameter.binding:
                parameter = Parameter(parameter.declaration, f"buffer<{index}>", parameter.place, "")
                index += 1
            numbered.append(parameter)
        return numbered

    def _check_clashes(self, parameters: Sequence[Parameter]) -> None:
        seen: dict[str, Parameter] = {}
        for parameter in parameters:
            first = seen.setdefault(parameter.binding, parameter)
            if first is not parameter and parameter.attribute in ("buffer", "threadgroup"):
                what = parameter.binding.replace("_memory", "").replace("<", "(").replace(">", ")")
                self._error(
                    parameter.place,
                    f"[[{what}]] is bound twice: to `{first.declaration}` and to `{parameter.declaration}`",
                )

    def _check_coordinates(self, parameters: Sequence[Parameter]) -> None:
        """Metal wants all of these to have the same number of coordinates."""
        first: Parameter | None = None
        for parameter in parameters:
            if parameter.attribute not in COORDINATES:
                continue
            first = first or parameter
            if _dimensions(first) != _dimensions(parameter):
                self._error(
                    parameter.place,
                    f"`{parameter.declaration}` and `{first.declaration}` differ in their number of coordinates",
                    "the positions and sizes that a kernel takes are all scalars, or all vectors of one size",
                )


def _dimensions(parameter: Parameter) -> int:
    word = next((w for w in parameter.declaration.split() if w.startswith(("u", "ushort"))), "uint")
    return int(word[-1]) if word[-1].isdecimal() and not word.endswith(("16", "32", "64")) else 1
