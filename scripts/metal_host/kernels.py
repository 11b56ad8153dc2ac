"""What the front end knows about a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_BUFFERS = 31
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Parameter:
    declaration: str  # without its attribute
    binding: str  # a type of library/kernel.h
    place: str
    attribute: str  # as written, or "" for a buffer that takes the next index


@dataclass(slots=True)
class Kernel:
    """A definition of a kernel function, which may be a template."""

    name: str
    parameters: list[Parameter]
    place: str
    is_template: bool
    host_name: str | None = None
    max_threads: int = MAX_THREADS


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel as the host finds it: by name, with the template's arguments fixed."""

    host_name: str
    function: str  # an expression that names the function
    parameters: tuple[Parameter, ...]
    place: str
    max_threads: int


@dataclass(slots=True)
class Struct:
    """A struct of a header that the host includes too."""

    name: str
    members: list[tuple[str, str, str]]  # declared type, name, place
    place: str


@dataclass(slots=True)
class Rewritten:
    text: str
    entries: list[Entry] = field(default_factory=list)
    shared_structs: list[Struct] = field(default_factory=list)
