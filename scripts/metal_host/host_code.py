"""Objective-C++ host code, compiled on Linux: against PyTorch's headers, and sdk/ in place of Apple's."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from overlay.errors import OverlayError
from overlay.paths import OVERLAYS

from . import compiler
from .errors import MetalErrors

SDK = compiler.PACKAGE / "sdk"

# The ABI of libstdc++, as torch has it, and the Objective-C ABI that mps/objc_runtime.cpp implements. Reference counts
# are manual, as in PyTorch's build.
_FLAGS = (
    "-x", "objective-c++", "-std=c++20", "-target", "x86_64-unknown-linux-gnu", "-stdlib=libstdc++",
    "--gcc-toolchain=/usr", "-fobjc-runtime=gcc", "-fconstant-string-class=NSConstantString", "-fblocks", "-fPIC",
    "-DUSE_MPS", "-DAT_PER_OPERATOR_HEADERS", "-DFMT_HEADER_ONLY=1", "-ferror-limit=0", "-fno-color-diagnostics",
)  # fmt: skip
# A selector that a class lacks, and pointers of the wrong type, are warnings unless asked for.
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")


def host_files(roots: Iterable[Path]) -> list[Path]:
    return sorted(path for root in roots for path in root.rglob("*.mm"))


def check_files(paths: Iterable[Path], torch: Path | None = None) -> list[OverlayError]:
    """Everything that speaks against these files. `torch`: PyTorch's headers, by default the installed one's."""
    with ThreadPoolExecutor() as pool:  # the compiler is another process
        results = pool.map(lambda path: _check_file(path, torch), list(paths))
    return [error for errors in results for error in errors]


def _check_file(path: Path, torch: Path | None) -> list[OverlayError]:
    try:
        compile_object(path, torch)
    except MetalErrors as error:
        return error.errors
    return []


def compile_object(
    path: Path,
    torch: Path | None = None,
    include: Sequence[Path] = (),
    flags: Sequence[str] = ("-O1",),
    depends: Iterable[Path] = (),
) -> Path:
    """An object file of one source. What was compiled before is not compiled again.

    include: folders that come before PyTorch's
    depends: what the source includes beside the overlay's headers
    """
    torch = torch or compiler.torch_include()
    includes = [f"-I{folder}" for folder in (*include, OVERLAYS[0] / "aten" / "src")]
    includes += [f"-isystem{folder}" for folder in (SDK, torch, torch / "torch" / "csrc" / "api" / "include")]
    command = [*compiler.clang(), *_toolchain(), *_FLAGS, *_WARNINGS, *flags, *includes]
    made_of = (path, *_overlay_headers(), *depends, torch.parent / "version.py")
    digest = hashlib.sha256("\0".join([_identity(), *command]).encode())
    for file in made_of:
        digest.update(file.read_bytes() + b"\0")
    target = compiler.CACHE / "host" / f"{path.stem}-{digest.hexdigest()[:24]}.o"
    with compiler.made_once(target) as made:
        if made:
            run = subprocess.run([*command, "-c", "-o", str(made), str(path)], capture_output=True, text=True)
            if run.returncode:
                errors = compiler.parse_diagnostics(run.stderr, str(path))
                raise MetalErrors([OverlayError(compiler.shown_place(e.place), e.rule, e.hint) for e in errors])
    return target


@cache
def _toolchain() -> tuple[str, ...]:
    """clang's own headers lie elsewhere in ziglang than clang looks for them."""
    command = compiler.clang()
    library = Path(command[0]).parent / "lib"
    return ("-resource-dir", str(library)) if (library / "include" / "stddef.h").is_file() else ()


@cache
def _identity() -> str:
    digest = hashlib.sha256(subprocess.run([*compiler.clang(), "--version"], capture_output=True, check=True).stdout)
    for path in sorted(path for path in SDK.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _overlay_headers() -> list[Path]:
    return sorted((OVERLAYS[0] / "aten").rglob("*.h"))
