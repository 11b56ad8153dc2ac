"""Structs that a kernel and its host code share: the same bytes on both sides, and bool as PyTorch has it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from overlay.errors import OverlayError

from . import compiler
from .kernels import Struct

_FLAG = re.compile(r"^(?:has|is|use|with|needs|should)(?:_[a-z0-9_]*|[A-Z]\w*)$|_flag$")
_INTEGERS = frozenset("signed unsigned char uchar short ushort int uint long ulong".split()) | frozenset(
    f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)
)


def is_widened_flag(kind: str, name: str) -> bool:
    """Whether an integer holds what is true or false, going by its name."""
    return bool(_FLAG.search(name)) and any(word in _INTEGERS for word in kind.split())


def bool_members(struct: Struct) -> Iterator[OverlayError]:
    """bool is one byte on both sides; it stands last, where no padding follows it."""
    for (kind, name, place), (next_kind, next_name, _) in zip(struct.members, struct.members[1:], strict=False):
        if kind.split()[-1:] == ["bool"] and next_kind.split()[-1:] != ["bool"]:
            yield OverlayError(
                place,
                f"bool member `{name}` of the shared struct `{struct.name}` stands before `{next_name}`",
                "bool members come last; the host's initializer in the same order",
            )
    for kind, name, place in struct.members:
        if is_widened_flag(kind, name):
            yield OverlayError(
                place, f"flag `{name}` of the shared struct `{struct.name}` is widened to `{kind}`", f"`bool {name};`"
            )


def layouts(header: str, structs: Sequence[Struct], kernel_text: str) -> list[OverlayError]:
    """Where the compilers of the two sides put a member at different bytes."""
    structs = [struct for struct in structs if struct.members]
    if not structs:
        return []
    labels: list[tuple[Struct, str, str]] = []
    values = []
    for struct in structs:
        labels.append((struct, "", struct.place))
        values.append(f"sizeof({struct.name})")
        for _, name, place in struct.members:
            labels.append((struct, name, place))
            values.append(f"__builtin_offsetof({struct.name}, {name})")
    kernel_source = f'{kernel_text}\nextern "C" const unsigned long metal_host_layout[] = {{{", ".join(values)}}};\n'
    kernel_source = kernel_source.replace('extern "C" const', 'extern "C" __attribute__((visibility("default"))) const')
    host_source = f'#include "{header}"\nextern "C" const unsigned long host_layout[] = {{{", ".join(values)}}};\n'
    path = compiler.CACHE / "layouts" / f"{compiler.key_of(kernel_source, host_source, Path(header).read_text())}.so"
    try:
        with compiler.made_once(path) as made:
            if made:
                _build(kernel_source, host_source, header, made)
    except OverlayError as error:
        return [error]
    library = ctypes.CDLL(str(path))
    ours, theirs = (
        (ctypes.c_ulong * len(labels)).in_dll(library, name) for name in ("metal_host_layout", "host_layout")
    )
    errors = []
    for (struct, member, place), kernel, host in zip(labels, ours, theirs, strict=True):
        if kernel != host:
            what = (
                f"member `{member}` lies at byte {kernel} for the kernel, but at {host}"
                if member
                else (f"it has {kernel} bytes for the kernel, but {host}")
            )
            errors.append(OverlayError(place, f"shared struct `{struct.name}`: {what} for the host"))
    return errors


def _build(kernel_source: str, host_source: str, header: str, made: Path) -> None:
    kernel_object, host_object = made.with_suffix(".kernel.o"), made.with_suffix(".host.o")
    compiler.compile_object(kernel_source, header, kernel_object)
    host = [
        *compiler.host_compiler(), "-x", "c++", "-std=c++20", "-fPIC",
        *compiler.include_flags(compiler.torch_include()), "-c", "-", "-o", str(host_object),
    ]  # fmt: skip
    result = subprocess.run(host, input=host_source, capture_output=True, text=True)
    if result.returncode:
        first = next((line for line in result.stderr.splitlines() if "error:" in line), result.stderr.strip())
        raise OverlayError(compiler.shown(header), f"it does not compile for the host: {first}")
    compiler.link([kernel_object, host_object], made)
