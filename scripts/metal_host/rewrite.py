"""From preprocessed Metal to C++ that clang takes with library/metal.h in front of it.

What is rewritten, and all that is: attributes (recorded and taken out), threadgroup variables, string and
floating literals. The rest of the language is C++ once the library is there. Lines stay where they are, so
that what the compiler says about the result holds for the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from overlay.errors import OverlayError

from . import literals, rules
from .attributes import (
    ADDRESS_SPACES,
    POSITIONS,
    ParameterParser,
    attribute_end,
    blank,
    parse_attributes,
)
from .kernels import MAX_THREADS, Entry, Kernel, Rewritten, Struct
from .tokens import (
    OPENING,
    Kind,
    Token,
    matching,
    matching_angle,
    outermost,
    split_arguments,
    text_of,
    tokenize,
    untokenize,
)

_STANDARD_ATTRIBUTES = frozenset({"maybe_unused", "nodiscard", "fallthrough", "deprecated", "likely", "unlikely"})
_CLASS_WORDS = frozenset({"struct", "class", "union"})


@dataclass(slots=True)
class _Scope:
    kind: str  # namespace, class, function, kernel or block
    close: int
    name: str = ""  # of a namespace


class Rewriter:
    """One pass over the tokens, statement by statement."""

    def __init__(self, text: str, file: str, is_shared_header: Callable[[str], bool] = lambda file: False):
        self.errors: list[OverlayError] = []
        self._tokens = tokenize(text, file)
        self._is_shared_header = is_shared_header
        self._kernels: list[Kernel] = []
        self._result = Rewritten("")
        self._scopes: list[_Scope] = []
        self._structs: set[str] = set()
        self._serial = 0

    def run(self) -> Rewritten:
        tokens = self._tokens
        self.errors.extend(rules.refused_words(tokens))
        self.errors.extend(rules.lambdas(tokens))
        self.errors.extend(literals.rewrite(tokens))
        i = 0
        while i < len(tokens):
            i = self._statement(i)
        self._result.text = untokenize(tokens)
        return self._result

    def _error(self, place: str, rule: str, hint: str = "") -> None:
        self.errors.append(OverlayError(place, rule, hint))

    # ---- Structure -------------------------------------------------------------------------

    def _statement(self, start: int) -> int:
        """Deals with the statement or declaration at `start`; the index after it, or of its first inner one."""
        tokens = self._tokens
        while self._scopes and start >= self._scopes[-1].close:
            self._scopes.pop()
        first = tokens[start].spelling
        if first in (";", "}", "{"):
            if first == "{":
                self._open("block", start)
            return start + 1
        inside_function = self._inside_function()
        if not inside_function and first in ("public", "private", "protected"):
            return start + 2
        end = self._statement_end(start, inside_function)
        if inside_function:
            return self._function_statement(start, end)
        return self._declaration(start, end)

    def _inside_function(self) -> bool:
        return any(scope.kind in ("function", "kernel") for scope in self._scopes) and not (
            self._scopes[-1].kind == "class"
        )

    def _open(self, kind: str, brace: int, name: str = "") -> None:
        self._scopes.append(_Scope(kind, matching(self._tokens, brace), name))

    def _statement_end(self, start: int, inside_function: bool) -> int:
        """The index of the `;` that ends the statement, or of the `{` of its body."""
        tokens, i, assigned = self._tokens, start, False
        while i < len(tokens):
            spelling = tokens[i].spelling
            if spelling == ";":
                return i
            if spelling == "}":
                return i
            if spelling == "=" and tokens[i - 1].spelling != "operator":
                assigned = True
            if spelling == "{":
                initializer = assigned or (
                    inside_function
                    and (tokens[i - 1].kind is Kind.IDENTIFIER or tokens[i - 1].spelling in (">", ",", "("))
                    and tokens[i - 1].spelling not in ("else", "do", "try", "const")
                    and not {token.spelling for token in tokens[start:i]} & _CLASS_WORDS
                )
                if not initializer:
                    return i
                i = matching(tokens, i)
            elif spelling in OPENING:
                i = matching(tokens, i)
            elif spelling == "<" and tokens[start].spelling == "template" and not assigned:
                i = max(i, matching_angle(tokens, i, len(tokens)))
            i += 1
        return len(tokens) - 1

    # ---- Namespace and class scope ---------------------------------------------------------

    def _declaration(self, start: int, end: int) -> int:
        tokens = self._tokens
        head = self._skip_template(start)
        words = {tokens[i].spelling for i in outermost(tokens, head, end)}
        opens = tokens[end].spelling == "{"
        if tokens[start].spelling == "template" and head == start:
            return self._explicit_instantiation(start, end)
        if "namespace" in words or tokens[start].spelling == "extern":
            if opens:
                name = tokens[end - 1].spelling
                self._open(
                    "namespace", end, name if name != "namespace" and tokens[end - 1].kind is Kind.IDENTIFIER else ""
                )
            return end + 1
        if "enum" in words:
            return (matching(tokens, end) if opens else end) + 1
        parameters = self._parameter_list(head, end)
        if parameters is not None and "using" not in words and "typedef" not in words:
            return self._function(start, head, parameters, end)
        if opens and words & _CLASS_WORDS:
            self._struct(head, end)
            self._open("class", end)
            return end + 1
        self._attributes_outside(start, end)
        if self._scopes and self._scopes[-1].kind == "class":
            self.errors.extend(rules.unqualified_variable(tokens, start))
        elif words & {"threadgroup", "device"} and not words & {"*", "&", "using", "typedef"}:
            space = "threadgroup" if "threadgroup" in words else "device"
            self._error(tokens[start].place, f"a {space} variable at program scope", "only constant ones exist there")
        return (matching(tokens, end) if opens else end) + 1

    def _skip_template(self, start: int) -> int:
        """Past `template <...>`, of which there may be several."""
        tokens, i = self._tokens, start
        while tokens[i].spelling == "template" and tokens[i + 1].spelling == "<":
            close = matching_angle(tokens, i + 1, len(tokens))
            if close == i + 1:
                return i
            i = close + 1
        return i

    def _parameter_list(self, start: int, end: int) -> int | None:
        """The index of the `(` of a function's parameters."""
        tokens = self._tokens
        for i in outermost(tokens, start, end):
            spelling = tokens[i].spelling
            if spelling == "=":
                return None
            if spelling == "operator":
                bracket = i + 1
                while tokens[bracket].spelling != "(" or bracket == i + 1:
                    bracket += 1
                return bracket
            if spelling == "(" and i > start and tokens[i - 1].kind is Kind.IDENTIFIER:
                if tokens[i - 1].spelling not in ("alignas", "decltype", "static_assert", "__attribute__", "explicit"):
                    return i
        return None

    def _function(self, start: int, head: int, bracket: int, end: int) -> int:
        tokens = self._tokens
        close = matching(tokens, bracket)
        kernel = self._kernel(start, head, bracket, close, tokens[end].spelling == "{")
        if kernel is None:
            self._attributes_outside(start, end)
            self.errors.extend(rules.unqualified_parameters(tokens, bracket + 1, close))
            self._array_parameters(bracket + 1, close)
            if tokens[bracket - 1].kind is Kind.IDENTIFIER:
                self.errors.extend(rules.unqualified_parameters(tokens, head, bracket - 1))
        if tokens[end].spelling != "{":
            return end + 1
        self._open("kernel" if kernel else "function", end)
        if kernel:
            self._kernels.append(kernel)
            if not kernel.is_template:
                self._add_entry(
                    Entry(
                        kernel.host_name or kernel.name,
                        f"&{kernel.name}",
                        tuple(kernel.parameters),
                        kernel.place,
                        kernel.max_threads,
                    ),
                    tokens[matching(tokens, end)],
                )
        return end + 1

    def _array_parameters(self, start: int, end: int) -> None:
        """`constant long sizes[3]` is a pointer; C++ would have the pointer itself in constant memory."""
        tokens = self._tokens
        for first, last in split_arguments(tokens, start, end):
            brackets = [i for i in outermost(tokens, first, last) if tokens[i].spelling in ("[", "*", "&", "=")]
            spaces = {token.spelling for token in tokens[first:last]} & (ADDRESS_SPACES - {"thread"})
            if spaces and [tokens[i].spelling for i in brackets] == ["["]:
                bracket = brackets[0]
                blank(tokens, bracket, matching(tokens, bracket) + 1)
                tokens[bracket - 1].text = "*" + tokens[bracket - 1].text

    def _kernel(self, start: int, head: int, bracket: int, close: int, is_definition: bool) -> Kernel | None:
        """The kernel declared there, its attributes taken out; None if it is another function."""
        tokens = self._tokens
        is_kernel, host_name, max_threads = False, None, MAX_THREADS
        i = start
        while i < bracket:
            end = attribute_end(tokens, i)
            if end is None:
                if tokens[i].spelling in ("kernel", "vertex", "fragment"):
                    if tokens[i].spelling != "kernel":
                        self._error(
                            tokens[i].place, f"only compute kernels run here, not a {tokens[i].spelling} function"
                        )
                    tokens[i].text, is_kernel = "", True
                i += 1
                continue
            for name, arguments in parse_attributes(tokens, i, end):
                if name == "kernel":
                    is_kernel = True
                elif name == "host_name":
                    host_name = self._string_value(*arguments)
                elif name == "max_total_threads_per_threadgroup":
                    max_threads = self._thread_limit(*arguments)
                elif name not in _STANDARD_ATTRIBUTES:
                    self._error(tokens[i].place, f"[[{name}]] is not an attribute of a function")
                else:
                    continue
                blank(tokens, i, end)
            i = end
        if not is_kernel:
            if host_name is not None:
                self._error(tokens[start].place, "[[host_name]] on a function that is not a kernel")
            return None
        if "void" not in {token.spelling for token in tokens[head:bracket]}:
            self._error(tokens[head].place, f"kernel `{tokens[bracket - 1].spelling}` does not return void")
        if not is_definition:
            return Kernel(tokens[bracket - 1].spelling, [], tokens[head].place, head > start)
        parameters = ParameterParser(tokens, self.errors.append).parse(bracket + 1, close)
        self.errors.extend(rules.unqualified_parameters(tokens, bracket + 1, close))
        return Kernel(
            tokens[bracket - 1].spelling, parameters, tokens[head].place, head > start, host_name, max_threads
        )

    def _string_value(self, start: int, end: int) -> str:
        if any(token.kind is not Kind.STRING for token in self._tokens[start:end]):
            self._error(self._tokens[start].place, "host_name is a string literal")
        return "".join(token.spelling.strip('"') for token in self._tokens[start:end])

    def _thread_limit(self, start: int, end: int) -> int:
        number = text_of(self._tokens, start, end)
        if not number.isdecimal() or not 0 < int(number) <= MAX_THREADS:
            self._error(
                self._tokens[start].place,
                f"max_total_threads_per_threadgroup({number}): a number from 1 to {MAX_THREADS}",
            )
            return MAX_THREADS
        return int(number)

    def _explicit_instantiation(self, start: int, end: int) -> int:
        """`template [[host_name("x")]] kernel void f<float>(...);`"""
        tokens = self._tokens
        host_name, is_kernel = None, False
        i = start + 1
        while i < end:
            close = attribute_end(tokens, i)
            if close is None:
                if tokens[i].spelling == "kernel":
                    tokens[i].text, is_kernel = "", True
                elif tokens[i].spelling in OPENING:
                    i = matching(tokens, i)
                i += 1
                continue
            for name, arguments in parse_attributes(tokens, i, close):
                if name == "host_name":
                    host_name = self._string_value(*arguments)
                elif name == "kernel":
                    is_kernel = True
                else:
                    self._error(tokens[i].place, f"[[{name}]] is not an attribute of an instantiation")
            blank(tokens, i, close)
            i = close
        if not is_kernel:
            if host_name is not None:
                self._error(tokens[start].place, "[[host_name]] on an instantiation that is not a kernel's")
            return end + 1
        self._kernel_instantiation(start, end, host_name)
        return end + 1

    def _kernel_instantiation(self, start: int, end: int, host_name: str | None) -> None:
        """Of `void f<float>(...)`, or of `decltype(f<float>) f<float>`."""
        tokens, place = self._tokens, self._tokens[start].place
        kind = next((i for i in range(start, end) if tokens[i].spelling in ("void", "decltype")), end)
        by_type = tokens[kind].spelling == "decltype"
        first = (matching(tokens, kind + 1) if by_type else kind) + 1
        template = next((i for i in range(first, end) if tokens[i].spelling == "<"), end)
        last = end if by_type else self._opening(end - 1)
        name = tokens[template - 1].spelling
        given = None if by_type else ParameterParser(tokens, lambda error: None).parse(last + 1, end - 1)
        found = [kernel for kernel in self._kernels if kernel.name == name]
        candidates = [kernel for kernel in found if given is None or len(kernel.parameters) == len(given)]
        bindings = {tuple(parameter.binding for parameter in kernel.parameters) for kernel in candidates}
        if not found:
            self._error(place, f"no kernel template `{name}` is defined above")
        elif not candidates:
            counts = f"{len(found[0].parameters)} parameters, but this instantiation {len(given or ())}"
            self._error(place, f"kernel `{name}` has {counts}")
        elif len(bindings) > 1:
            self._error(place, f"kernel templates named `{name}` differ in their bindings")
        elif host_name is None:
            self._error(
                place, f"the instantiation of kernel `{name}` has no [[host_name]]", "the host finds it by that"
            )
        else:
            kernel, function = candidates[-1], text_of(tokens, first, last)
            parameters = tuple(
                replace(theirs, declaration=mine.declaration)
                for mine, theirs in zip(given or kernel.parameters, kernel.parameters, strict=True)
            )
            entry = Entry(host_name, f"&{function}", parameters, place, kernel.max_threads)
            self._add_entry(entry, tokens[end], f"decltype({function})" if by_type else None)

    def _opening(self, close: int) -> int:
        """The index of the bracket that the one at `close` closes."""
        return next(i for i in range(close, -1, -1) if matching(self._tokens, i) == close and i != close)

    def _add_entry(self, entry: Entry, after: Token, kind: str | None = None) -> None:
        """`kind`: the function's type, if not void of its declared parameters."""
        self._result.entries.append(entry)
        self._serial += 1
        declarations = ", ".join(parameter.declaration for parameter in entry.parameters)
        bindings = "".join(f", ::metal_host::{parameter.binding}" for parameter in entry.parameters)
        # At the kernel's own place, since what is wrong with a parameter's type is found here.
        file, _, line = entry.place.rpartition(":")
        signature = f"::metal_host::signature<{kind or f'void({declarations})'}>"
        bound = f"{signature}::bound<{entry.function}{bindings}>"
        after.text += (
            f'\n# {line} "{file}"\n'
            f"static const ::metal_host::registration<{bound}> metal_host_kernel_{self._serial}"
            f'("{entry.host_name}", {entry.max_threads});'
            f'\n# {after.line} "{after.file}"\n'
        )

    def _attributes_outside(self, start: int, end: int) -> None:
        """Attributes where no kernel is."""
        tokens, i = self._tokens, start
        while i < end:
            close = attribute_end(tokens, i)
            if close is None:
                i += 1
                continue
            for name, _ in parse_attributes(tokens, i, close):
                if name in ("buffer", "threadgroup") or name in POSITIONS:
                    self._error(tokens[i].place, f"[[{name}]] on a function that is not marked `kernel`")
                elif name == "function_constant":
                    self._error(tokens[i].place, "function constants are not supported by the CPU executor")
                elif name not in _STANDARD_ATTRIBUTES:
                    self._error(tokens[i].place, f"[[{name}]] is not an attribute of Metal's compute functions")
            i = close

    def _struct(self, start: int, brace: int) -> None:
        tokens = self._tokens
        name = next((i + 1 for i in range(start, brace) if tokens[i].spelling in _CLASS_WORDS), brace)
        while tokens[name].spelling == "alignas":
            name = matching(tokens, name + 1) + 1
        if tokens[name].kind is not Kind.IDENTIFIER or tokens[name - 1].spelling == "union":
            return
        self._structs.add(tokens[name].spelling)
        self._assignment(tokens[name].spelling, tokens[matching(tokens, brace)])
        if not self._is_shared_header(tokens[brace].file) or tokens[start - 1].spelling == ">":
            return
        outer = "".join(f"{scope.name}::" for scope in self._scopes if scope.name)
        struct = Struct(outer + tokens[name].spelling, [], tokens[start].place)
        end, i = matching(tokens, brace), brace + 1
        while i < end:
            stop = self._statement_end(i, False)
            if tokens[stop].spelling == "{":
                i = matching(tokens, stop) + 1
                continue
            if self._parameter_list(i, stop) is None and tokens[i].spelling not in ("using", "typedef", "static", ";"):
                struct.members.extend(self._members(i, stop))
            i = stop + 1
        self._result.shared_structs.append(struct)

    def _assignment(self, name: str, brace: Token) -> None:
        """The assignment between address spaces, at a struct's end."""
        brace.text = (
            " public: template <class MetalHostTo, class MetalHostFrom, ::metal::enable_if_t<"
            f"::metal_host::is_copy_v<MetalHostTo, MetalHostFrom, {name}>, bool> = true> "
            "MetalHostTo& operator=(this MetalHostTo& to, const MetalHostFrom& from) "
            "{ ::metal_host::copy(to, from); return to; }" + brace.text
        )

    def _members(self, start: int, end: int) -> list[tuple[str, str, str]]:
        """(type, name, place) of the members that one declaration declares."""
        tokens = self._tokens
        members, kind = [], ""
        for i in outermost(tokens, start, end + 1):
            if tokens[i].spelling in (",", ";", "[", "=", "{") and tokens[i - 1].kind is Kind.IDENTIFIER:
                kind = kind or text_of(tokens, start, i - 1)
                members.append((kind, tokens[i - 1].spelling, tokens[i - 1].place))
                if tokens[i].spelling in ("=", "{"):
                    break
        return members

    # ---- Function bodies -------------------------------------------------------------------

    def _function_statement(self, start: int, end: int) -> int:
        tokens = self._tokens
        spelling = tokens[start].spelling
        if spelling in ("if", "while", "switch", "for"):
            bracket = start
            while tokens[bracket].spelling != "(":
                bracket += 1
            if spelling == "for":
                self.errors.extend(rules.unqualified_variable(tokens, bracket + 1))
            return matching(tokens, bracket) + 1
        if spelling in ("else", "do"):
            return start + 1
        if spelling in ("case", "default"):
            i = start
            while i < end and tokens[i].spelling != ":":
                i += 1
            return i + 1
        words = [tokens[i].spelling for i in outermost(tokens, start, end)]
        if set(words) & _CLASS_WORDS and tokens[end].spelling == "{":
            self._open("class", end)
            return end + 1
        self._attributes_outside(start, end)
        if "threadgroup" in words and not set(words) & {"*", "&", "using", "typedef", "("}:
            self._threadgroup_variable(start, end)
        else:
            self.errors.extend(rules.unqualified_variable(tokens, start))
            self._initial_value(start, end)
        if tokens[end].spelling == "{":
            self._open("block", end)
        return end + 1

    def _initial_value(self, start: int, end: int) -> None:
        """`Struct a = b;` or `auto a = b;`, where b may lie in another address space."""
        tokens, names = self._tokens, []
        for i in outermost(tokens, start, end):
            spelling = tokens[i].spelling
            if spelling == "=":
                break
            if tokens[i].kind is not Kind.IDENTIFIER and spelling not in ("::", "<"):
                return
            names.append(spelling)
        else:
            return
        kind = set(names[:-1])
        if not kind & (self._structs | {"auto"}) or tokens[i + 1].spelling == "{" or tokens[end].spelling != ";":
            return
        if any(tokens[j].spelling == "," for j in outermost(tokens, i + 1, end)):
            return
        tokens[i].text += " ::metal_host::value("
        tokens[end].text = ")" + tokens[end].text

    def _threadgroup_variable(self, start: int, end: int) -> None:
        """`threadgroup T a[n];` becomes a reference to memory that the executor provides."""
        tokens = self._tokens
        place = tokens[start].place
        if not any(scope.kind == "kernel" for scope in self._scopes):
            self._error(
                place, "a threadgroup variable outside of a kernel's body", "declare it in the kernel and pass it on"
            )
            return
        self._serial += 1
        key = f"metal_host_key_{self._serial}"
        name: int | None = None
        stops = [i for i in outermost(tokens, start, end + 1) if tokens[i].spelling in ("[", ",", ";", "=", "{")]
        for i in stops:
            if tokens[i].spelling in ("=", "{"):
                self._error(
                    tokens[i].place, "a threadgroup variable has no initial value", "assign to it, then a barrier"
                )
                return
            if name is None and tokens[i - 1].kind is Kind.IDENTIFIER:
                name = i - 1
                tokens[name].text = f"(&{tokens[name].text})"
            if tokens[i].spelling in (",", ";"):
                address = f"&{key}[{stops.index(i)}]"
                tokens[i].text = f" = ::metal_host::threadgroup_variable{{{address}}}{tokens[i].text}"
                name = None
        tokens[start].text = f"static char {key}[{len(stops)}]; {tokens[start].text}"
