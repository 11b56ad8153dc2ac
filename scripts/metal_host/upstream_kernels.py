"""The names of the kernels that PyTorch ships: all kernels of a build are one library, so ours must differ.

Run on macOS wheels, this writes the list anew:

    python -m metal_host.upstream_kernels torch-2.14.1-cp311-cp311-macosx_14_0_arm64.whl ...
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("upstream_kernels.txt")

_TYPE = r"(?:b?float|half|bool|u?(?:char|short|int|long))[234]?|u?int\d+_t|\d+"
_VARIANT = r"dense|strided|inner_contiguous|castout|cast|ilp\d*|broadcast|rhs|lhs|scalar"
_REST = re.compile(rf"_(?:{_TYPE}|{_VARIANT})(?:_.*)?$")


def stem(name: str) -> str:
    """A kernel's name up to its first type or variant: what one functor registers shares it."""
    return _REST.sub("", name)


@cache
def upstream_stems() -> frozenset[str]:
    return frozenset(line for line in LIST.read_text().splitlines() if not line.startswith("#"))


def kernel_names(data: bytes) -> Iterator[str]:
    """Of every metallib in `data`: a header, whose third word is where a list of tagged entries begins."""
    for match in re.finditer(b"MTLB", data):
        start = match.start()
        size, functions = struct.unpack_from("<QQ", data, start + 16)
        if not 88 <= functions < size <= len(data) - start:
            continue  # these four letters, somewhere else
        (count,) = struct.unpack_from("<I", data, start + functions)
        entry = start + functions + 4
        for _ in range(count):
            (length,) = struct.unpack_from("<I", data, entry)
            yield _tag(data, entry + 4, b"NAME").rstrip(b"\0").decode()
            entry += length


def _tag(data: bytes, start: int, name: bytes) -> bytes:
    while (tag := data[start : start + 4]) != b"ENDT":
        (length,) = struct.unpack_from("<H", data, start + 4)
        if tag == name:
            return data[start + 6 : start + 6 + length]
        start += 6 + length
    raise ValueError(f"a kernel without a {name.decode()}")


def main(wheels: list[str]) -> None:
    names: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names.update(kernel_names(archive.read("torch/lib/libtorch_cpu.dylib")))
    stems = sorted({stem(name) for name in names})
    sources = ", ".join(Path(wheel).name for wheel in wheels)
    LIST.write_text(f"# Made by upstream_kernels.py from {sources}\n" + "".join(f"{s}\n" for s in stems))
    print(f"{len(names)} kernels, {len(stems)} stems")


if __name__ == "__main__":
    main(sys.argv[1:])
