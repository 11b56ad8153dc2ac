"""Metal, where wheel mode builds on a Mac: the overlay's host code, kernels and registrations in the same library.

Written as for a real machine and unverified: nobody has built it on one. torch's own library of kernels is closed, so
these are compiled when they are first used, as in a PyTorch that was built with PYTORCH_JIT_COMPILE_SHADERS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import OverlayError
from ..model import Edit
from .codegen import generate_registrations
from .files import sync_folder
from .target import Target

# Reference counts are manual, as in PyTorch's build.
HOST_FLAGS = ("-fno-objc-arc", "-DUSE_MPS", "-DPYTORCH_JIT_COMPILE_SHADERS", "-Wno-unguarded-availability-new")
_FRAMEWORKS = ("Foundation", "Metal", "MetalPerformanceShaders", "MetalPerformanceShadersGraph")
LINK_FLAGS = tuple(word for name in _FRAMEWORKS for word in ("-weak_framework", name))
REGISTRATIONS = Path(__file__).with_name("cpp") / "registrations_mps.cpp"  # of operators of PyTorch that gain a kernel
# See the replacement in RegisterDispatchKey.cpp.
REGISTRATION_FLAGS = ("-DDISPATCH_KEY_NAMESPACE=RegisterMPSOfPyTorch",)


@dataclass(frozen=True)
class Metal:
    include: tuple[Path, ...]
    sources: tuple[Path, ...]


def write_metal(target: Target, edits: list[Edit], roots: tuple[Path, ...], folder: Path) -> Metal:
    """Brings up to date what is generated."""
    registrations, metallibs = folder / "registrations", folder / "metallibs"
    generate_registrations(target, edits, registrations, "MPS")
    folders = [*(root / "aten" / "src" for root in roots), target.include]
    kernels = [path for root in roots for path in sorted(root.rglob("*.metal"))]
    names = {path: f"ATen/native/mps/{path.stem}_metallib.h" for path in kernels}
    sync_folder(metallibs, {name: metallib_header(path, folders) for path, name in names.items()})
    sources = tuple(sorted(path for root in roots for path in root.rglob("*.mm")))
    return Metal((registrations / "include", registrations / "src", metallibs), sources)


def metallib_header(path: Path, folders: list[Path]) -> str:
    """What host code includes in place of a library of kernels: the source, to be compiled as it runs."""
    source = "\n".join(_inlined(path, folders, set()))
    return (
        "#include <ATen/native/mps/OperationUtils.h>\n"
        f'static ::at::native::mps::MetalShaderLibrary lib(R"SHDR(\n{source}\n)SHDR");\n'
    )


def _inlined(path: Path, folders: list[Path], seen: set[Path]) -> Iterator[str]:
    """Its lines with what it includes of these folders, once each; Metal's own headers are found as it is compiled."""
    seen.add(path)
    for line in path.read_text().splitlines():
        name = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        found = name and next((folder / name[1] for folder in folders if (folder / name[1]).is_file()), None)
        if found is None:
            if name and "/" in name[1]:
                raise OverlayError(f"{path.name}: {line.strip()}", "a kernel includes headers of PyTorch or of Metal")
            if not re.match(r"\s*#\s*pragma\s+once", line):
                yield line
        elif found not in seen:
            yield from _inlined(found, folders, seen)
