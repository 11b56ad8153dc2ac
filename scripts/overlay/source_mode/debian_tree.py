"""What Debian's source package of PyTorch needs before it can be built in place.

Its debian/rules regenerates the header of the flatbuffers schema, since the installed library's version must be the
one that made it, and brings googletest. Some of Debian's patches suit only its own packages, whose files lie in system
folders; for those, PyTorch's own behaviour is restored.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import OverlayError
from ..trees import Tree, display
from .machine import Machine

_SCHEMA = Path("torch/csrc/jit/serialization/mobile_bytecode.fbs")


@dataclass(frozen=True)
class _Restored:
    file: str
    debian: str
    upstream: str


_RESTORED = (
    # libtorch.so beside libtorch_python.so is found without LD_LIBRARY_PATH.
    _Restored(
        "cmake/Dependencies.cmake",
        'set(CMAKE_INSTALL_RPATH "")',
        'set(CMAKE_INSTALL_RPATH "${_rpath_portable_origin}")',
    ),
    # Libraries have one name each, as a wheel holds no links.
    _Restored(
        "CMakeLists.txt",
        'option(HAVE_SOVERSION "Whether to add SOVERSION to the shared objects" ON)',
        'option(HAVE_SOVERSION "Whether to add SOVERSION to the shared objects" OFF)',
    ),
    # A build can have a version of its own.
    _Restored(
        "tools/generate_torch_version.py",
        "return version + '+debian'",
        'return os.getenv("PYTORCH_BUILD_VERSION") or version',
    ),
)


def is_debian(tree: Tree) -> bool:
    return (tree.root / "debian" / "rules").is_file()


def prepare(tree: Tree, machine: Machine) -> None:
    """Does what is not done yet; a file that is as it should be keeps its time."""
    for restored in _RESTORED:
        _restore(tree, restored)
    _regenerate_header(tree, machine)
    googletest = tree.root / "third_party" / "googletest"
    if not googletest.exists():
        shutil.copytree(machine.path("/usr/src/googletest"), googletest)


def _restore(tree: Tree, restored: _Restored) -> None:
    file = tree.root / restored.file
    text = file.read_text()
    if restored.upstream in text:
        return
    if text.count(restored.debian) != 1:
        raise OverlayError(
            display(file),
            f"Debian's line stands there once: {restored.debian}",
            "use Debian's source package as it comes: make fetch",
        )
    file.write_text(text.replace(restored.debian, restored.upstream))


def _regenerate_header(tree: Tree, machine: Machine) -> None:
    """tools/gen_flatbuffers.sh does the same with a flatc that it builds."""
    schema = tree.root / _SCHEMA
    header = schema.with_name(f"{schema.stem}_generated.h")
    made = tree.root / "build" / "flatbuffers"
    made.mkdir(parents=True, exist_ok=True)
    flatc = ["flatc", "--cpp", "--gen-mutable", "--scoped-enums", "-o", str(made), schema.name]
    machine.call(flatc, schema.parent)
    if (made / header.name).read_bytes() == header.read_bytes():
        return
    os.replace(made / header.name, header)
