"""Objective-C++ host code, compiled on Linux: against PyTorch's headers, and sdk/ in place of Apple's."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from overlay.errors import OverlayError
from overlay.machine import compile_jobs
from overlay.paths import OVERLAYS
from overlay.wheel_mode.target import from_root

from . import compiler
from .errors import MetalErrors
from .registrations import registrations

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
    with ThreadPoolExecutor(compile_jobs()) as pool:  # the compiler is another process
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
    flags: Sequence[str] = ("-O1",),
    depends: Iterable[Path] = (),
) -> Path:
    """An object file of one source. What was compiled before is not compiled again.

    depends: what the source includes beside the overlay's headers
    """
    torch = torch or compiler.torch_include()
    folders = [OVERLAYS[0] / "aten" / "src"]
    if not path.is_relative_to(compiler.PACKAGE):
        folders.append(registrations(from_root(torch.parents[1])).theirs)
    includes = [f"-isystem{folder}" for folder in (SDK, torch, torch / "torch" / "csrc" / "api" / "include")]
    command = [*compiler.clang(), *_toolchain(), *_FLAGS, *_WARNINGS, *flags, *includes]
    digest = hashlib.sha256("\0".join([_identity(), *command]).encode())
    for file in (path, *_included(path, folders), *depends, torch.parent / "version.py"):
        digest.update(file.read_bytes() + b"\0")
    command += [f"-I{folder}" for folder in folders]
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


def _included(path: Path, folders: Sequence[Path]) -> list[Path]:
    """What a source includes of these folders, and what that includes."""
    found: dict[Path, None] = {}
    unread = [path]
    while unread:
        for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', unread.pop().read_text(), re.MULTILINE):
            headers = [folder / name for folder in folders if (folder / name).is_file()]
            unread += [header for header in headers if header not in found]
            found |= dict.fromkeys(headers)
    return sorted(found)
