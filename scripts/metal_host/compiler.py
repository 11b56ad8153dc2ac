"""The compilers: clang for kernels, and the machine's own for the executor that runs them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from overlay.errors import OverlayError
from overlay.paths import BUILD, OVERLAYS, REPO

from .errors import MetalErrors

PACKAGE = Path(__file__).resolve().parent
LIBRARY = PACKAGE / "library"
INCLUDE = PACKAGE / "include"
RUNTIME = PACKAGE / "runtime"
CACHE = BUILD / "metal"

# The library needs C++23 (explicit object parameters); a kernel may use no more than its level has.
_CLANG_FLAGS = (
    "-x", "c++", "-std=c++23", "-target", "x86_64-unknown-linux-gnu", "-march=x86-64-v3", "-nostdinc",
    "-ffp-contract=off", "-Xclang", "-ffloat16-excess-precision=none", "-fno-exceptions", "-fno-rtti", "-fPIC",
    "-fvisibility=hidden", "-Wno-duplicate-decl-specifier", "-ferror-limit=0", "-fno-color-diagnostics",
    "-Werror=return-type", "-Werror=vla-extension", "-Werror=uninitialized", "-Werror=constant-conversion",
    "-Werror=unknown-pragmas", "-Werror=unknown-attributes", "-Werror=ignored-attributes",
)  # fmt: skip
_OPTIMIZE = ("-O2", "-mllvm", "-disable-block-placement")
# Loads and stores, and undefined behaviour, call the executor. c10/metal relies on signed integers that wrap.
_SANITIZE = (
    "-O1", "-mllvm", "-disable-block-placement", "-g1",
    "-fsanitize=kernel-address", "-mllvm", "-asan-instrumentation-with-call-threshold=0",
    "-mllvm", "-asan-stack=0", "-mllvm", "-asan-globals=0", "-mllvm", "-asan-kernel-mem-intrinsic-prefix=1",
    "-fsanitize=undefined", "-fno-sanitize=function,vptr,float-cast-overflow",
    f"-fsanitize-ignorelist={PACKAGE / 'ignorelist.txt'}",
    "-ftrivial-auto-var-init=pattern",
)  # fmt: skip
_RUNTIME_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra")


@dataclass(frozen=True)
class Level:
    """A language level that PyTorch builds its kernels for."""

    name: str
    version: int  # of __METAL_VERSION__
    cplusplus: str
    newer: tuple[str, ...]  # clang's warnings about C++ that is newer than the level's

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(f"-Werror=pre-c++{year}-compat" for year in self.newer)


METAL_3_1 = Level("3.1", 310, "C++14", ("17", "20", "23", "26"))
METAL_4_0 = Level("4.0", 400, "C++17", ("20", "23", "26"))
LEVELS = {level.name: level for level in (METAL_3_1, METAL_4_0)}


@cache
def clang() -> tuple[str, ...]:
    """The command of a clang that knows explicit object parameters: METAL_HOST_CLANG, or ziglang's."""
    if command := os.environ.get("METAL_HOST_CLANG"):
        return tuple(shlex.split(command))
    zig = Path(sysconfig.get_paths()["purelib"]) / "ziglang" / "zig"
    if not zig.is_file():
        raise OverlayError(
            "ziglang", "it is not installed; Metal kernels are compiled with the clang in it", "make lint, or make test"
        )
    return str(zig), "clang"


@cache
def _identity() -> str:
    """What makes compiled kernels stale: the compiler, the library, the flags."""
    digest = hashlib.sha256()
    version = subprocess.run([*clang(), "--version"], capture_output=True, text=True, check=True).stdout
    digest.update(version.encode())
    for folder in (INCLUDE, LIBRARY):
        for path in sorted(folder.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update((PACKAGE / "ignorelist.txt").read_bytes())
    digest.update(repr((_CLANG_FLAGS, _OPTIMIZE, _SANITIZE)).encode())
    return digest.hexdigest()


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join((_identity(), *parts)).encode()).hexdigest()[:24]


@contextmanager
def made_once(path: Path) -> Iterator[Path | None]:
    """A path to make `path` at, which then moves there whole; None if it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            yield None
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            yield made
            made.replace(path)


def torch_include() -> Path:
    """The headers of the torch that runs, among them c10/metal."""
    spec = Path(sysconfig.get_paths()["purelib"]) / "torch" / "include"
    if not (spec / "c10" / "metal").is_dir():
        import torch

        spec = Path(torch.__file__).parent / "include"
    return spec


def include_flags(torch: Path) -> list[str]:
    aten = OVERLAYS[0] / "aten" / "src"
    return [f"-I{aten}", f"-isystem{torch}"]


def preprocess(source: str, name: str, level: Level, torch: Path) -> str:
    command = [
        *clang(), *_CLANG_FLAGS, "-E", "-undef", "-U__cplusplus", "-Wno-builtin-macro-redefined",
        "-D__METAL__=1", f"-D__METAL_VERSION__={level.version}", "-D__HAVE_BFLOAT__=1",
        f"-isystem{INCLUDE}", *include_flags(torch), "-iquote", str(Path(name).parent), "-",
    ]  # fmt: skip
    result = subprocess.run(command, input=f'#line 1 "{name}"\n{source}', capture_output=True, text=True)
    if result.returncode:
        raise MetalErrors(parse_diagnostics(result.stderr, name))
    return result.stdout


def check(text: str, name: str, level: Level) -> list[OverlayError]:
    """What the compiler says against a rewritten source."""
    header = _precompiled_library(())
    command = [*clang(), *_CLANG_FLAGS, *level.flags, "-include-pch", str(header), "-fsyntax-only", "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    return parse_diagnostics(result.stderr, name) if result.returncode else []


def compile_library(text: str, name: str, level: Level, sanitize: bool = False) -> Path:
    """A shared library of the kernels in a rewritten source, which it type-checks on the way."""
    flags = _SANITIZE if sanitize else _OPTIMIZE
    path = CACHE / "kernels" / f"{key_of(text, level.name, repr(flags), str(runtime()))}.so"
    with made_once(path) as made:
        if made:
            kernels = made.with_suffix(".o")
            compile_object(text, name, kernels, flags, level.flags)
            link([kernels, runtime()], made)
    return path


def compile_object(text: str, name: str, path: Path, flags: Sequence[str] = (), warnings: Sequence[str] = ()) -> None:
    header = _precompiled_library(flags)
    command = [*clang(), *_CLANG_FLAGS, *flags, *warnings, "-include-pch", str(header), "-c", "-o", str(path), "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    if result.returncode:
        raise MetalErrors(parse_diagnostics(result.stderr, name))


def link(objects: Sequence[Path], path: Path) -> None:
    _run([*host_compiler(), "-shared", "-o", str(path), *map(str, objects), "-lm"], "linking kernels")


def _precompiled_library(flags: Sequence[str]) -> Path:
    path = CACHE / "library" / f"{key_of(repr(flags), str(LIBRARY))}.pch"  # it names its headers
    with made_once(path) as made:
        if made:
            header = [arg if arg != "c++" else "c++-header" for arg in _CLANG_FLAGS]
            source = LIBRARY / "metal.h"
            # Its headers' content is in its name; when they were last written does not matter.
            options = [
                "-Wno-pragma-system-header-outside-header",
                "-Xclang",
                "-fno-pch-timestamp",
                f"-isystem{INCLUDE}",
            ]
            command = [*clang(), *header, *flags, *options, str(source), "-o", str(made)]
            _run(command, "precompiling the Metal library")
    return path


@cache
def host_compiler() -> tuple[str, ...]:
    command = (
        shlex.split(os.environ.get("CXX", ""))
        or [found for found in ("c++", "g++", "clang++") if shutil.which(found)][:1]
    )
    if not command:
        raise OverlayError("c++", "no C++ compiler found, or CXX is empty", "make doctor")
    return tuple(command)


@cache
def runtime() -> Path:
    """The executor, compiled."""
    sources = sorted(RUNTIME.glob("*.cpp"))
    headers = sorted(RUNTIME.glob("*.h")) + [LIBRARY / "abi.h"]
    version = subprocess.run([*host_compiler(), "--version"], capture_output=True, text=True).stdout
    digest = hashlib.sha256((version + repr(_RUNTIME_FLAGS)).encode())
    for path in (*sources, *headers):
        digest.update(path.read_bytes())
    library = CACHE / "runtime" / digest.hexdigest()[:16] / "libmetal_host.so"
    with made_once(library) as made:
        if made:
            _run(
                [*host_compiler(), *_RUNTIME_FLAGS, *map(str, sources), "-o", str(made)], "compiling the Metal executor"
            )
    return library


def _run(command: Sequence[str], what: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise OverlayError(what, result.stderr.strip(), shlex.join(command))


# ---- Diagnostics ---------------------------------------------------------------------------

_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<kind>fatal error|error|note): (?P<text>.*)$")
_WORDS = (
    ("const __constant", "constant"), ("__constant", "constant"), ("__global", "device"), ("__local", "threadgroup"),
    ("generic address space", "thread memory"),
)  # fmt: skip
_STRUCT_COPY = re.compile(r"no matching constructor for initialization of|no viable overloaded '='")


def parse_diagnostics(output: str, name: str) -> list[OverlayError]:
    """The errors that clang printed, each at the nearest place in the user's source."""
    errors: list[list[tuple[str, str, str]]] = []
    for line in output.splitlines():
        match = _DIAGNOSTIC.match(line)
        if match is None:
            continue
        entry = (match["file"], match["line"], match["text"])
        if match["kind"] != "note":
            errors.append([entry])
        elif errors:
            errors[-1].append(entry)
    # What follows from a signature that fits no template says nothing new.
    result = [_error(entries) for entries in errors if "<overloaded function type>" not in entries[0][2]]
    return result or [OverlayError(name, f"the compiler failed: {output.strip()[-2000:]}")]


def _error(entries: list[tuple[str, str, str]]) -> OverlayError:
    text, hint = _in_metal(entries[0][2]), ""
    level = re.search(r"(.*?) (?:is|are) incompatible with C\+\+ standards before (C\+\+\d\w).*", text)
    if level:
        needs = "Metal 3.1 is C++14" if level[2] == "C++17" else "Metal 4.0 is C++17"
        text = f"{level[1]} needs {level[2].replace('C++2c', 'C++26')}; {needs}"
        hint = "`if IF_CONSTEXPR (...)` of <c10/metal/common.h>" if "constexpr if" in text else ""
    elif text.endswith("[-Werror]") or "[-Werror," in text:
        text = re.sub(r" \[-Werror[^\]]*\]$", "", text)
    if "static assertion failed" in text:
        text = re.sub(r"static assertion failed(?: due to requirement '.*?')?: ?", "", text) or text
    file, line = next(((f, n) for f, n, _ in entries if not _is_ours(f)), entries[0][:2])
    notes = [_in_metal(note) for _, _, note in entries[1:]]
    if _STRUCT_COPY.search(text) and any("address space" in note for note in notes):
        hint = "a struct outside of thread memory is copied here by `Struct value = ...` alone: take that first"
    if "for initialization of 'constant " in text:
        hint = "a constant is given its value by `= Type(...)` here, not `= {...}`"
    if text.startswith("incompatible operand types") and re.search("'(device|constant|threadgroup) ", text):
        hint = "`?:` between address spaces does not work here for bfloat, vectors and structs: `T(value)`, or `if`"
    hint = hint or next((note for note in notes if note.startswith("candidate") and "ignored" in note), "")
    return OverlayError(f"{shown(file)}:{line}", text, hint)


def _in_metal(text: str) -> str:
    for theirs, ours in _WORDS:
        text = text.replace(theirs, ours)
    return text


def _is_ours(file: str) -> bool:
    return file.startswith(str(PACKAGE))


def shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(REPO)) if path.is_relative_to(REPO) else file


def shown_place(place: str) -> str:
    """`file:line`, or a file alone, from the repository's root on."""
    file, _, line = place.rpartition(":")
    return f"{shown(file)}:{line}" if line.isdecimal() else shown(place)
