"""The registrations of the overlay's Metal kernels, by torch's own torchgen out of the patched entries.

They are what a PyTorch for macOS, built from a patched tree, would have: of our operators, and of those of PyTorch that
gain a kernel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from overlay.model import load_patches
from overlay.paths import BUILD, PATCHES
from overlay.wheel_mode import codegen
from overlay.wheel_mode.entries import DERIVATIVES, NATIVE_FUNCTIONS
from overlay.wheel_mode.files import write_if_changed
from overlay.wheel_mode.target import Target

from . import compiler

FOLDER = BUILD / "simulated-mps"
# One unit, since parsing PyTorch's headers is nearly all the work.
_UNIT = """#define DISPATCH_KEY_NAMESPACE RegisterMPS
#include "{ours}"
#undef DISPATCH_KEY_NAMESPACE
#define DISPATCH_KEY_NAMESPACE RegisterMPSOfPyTorch
#include "{theirs}"
"""


@dataclass(frozen=True)
class Registrations:
    source: Path
    parts: tuple[Path, Path]  # what it includes
    include: tuple[Path, Path]  # folders that come before PyTorch's
    theirs: Path  # that of them which has the headers of PyTorch's operators


@cache
def registrations(target: Target) -> Registrations:
    """Brings them up to date for a torch."""
    folder = FOLDER / "generated" / _digest(target)
    with compiler.made_once(folder) as made:
        if made:
            edits = load_patches(PATCHES)
            codegen.generate(target, edits, made / "ours", ("MPS",))
            codegen.generate_registrations(target, edits, made / "theirs", "MPS")
    ours, theirs = folder / "ours", folder / "theirs"
    parts = (ours / "src" / "RegisterMPSEverything.cpp", theirs / "src" / "RegisterMPS.cpp")
    source = folder / "registrations.cpp"
    write_if_changed(source, _UNIT.format(ours=parts[0], theirs=parts[1]))
    return Registrations(source, parts, (ours / "include", theirs / "include"), theirs / "include")


def _digest(target: Target) -> str:
    """Of all that they are made of."""
    of_patches = [f"{NATIVE_FUNCTIONS}.yaml", f"{DERIVATIVES}.yaml", "aten/src/ATen/native/mps/**/*.yaml"]
    of_wheel_mode = ["codegen.py", "entries.py", "templates.py", "torchgen_driver.py", "cpp/*"]
    made_of = [path for pattern in of_patches for path in PATCHES.glob(pattern)]
    made_of += [path for pattern in of_wheel_mode for path in Path(codegen.__file__).parent.glob(pattern)]
    digest = hashlib.sha256(target.describe().encode())
    for path in sorted(path for path in made_of if path.is_file()):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]
