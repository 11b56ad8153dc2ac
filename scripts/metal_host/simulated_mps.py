"""A simulated `mps` device beside a CPU build of torch: the overlay's .mm and .metal, run on Linux.

    python -m metal_host.simulated_mps          # builds it, after `make wheel-mode`

    import metal_host.simulated_mps as mps      # before torch
    mps.load()
    torch.ones(3, device="mps")

Host code cannot read a tensor's memory there: that faults. Kernels run when the host waits for them. What the overlay
has no kernels for runs on the CPU, and is counted.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from overlay.errors import OverlayError
from overlay.machine import compile_jobs
from overlay.paths import OVERLAYS
from overlay.wheel_mode.target import Target, from_python
from overlay.wheel_mode.toolchain import LINK_FLAGS, find_toolchain

from . import checks, compiler, frontend, host_code
from .registrations import FOLDER, registrations

SOURCES = compiler.PACKAGE / "mps"
# Host code with checks of its own memory and arithmetic. The runtime of g++ serves clang's objects too, except for one
# check, which looks at what precedes a function.
_SANITIZE = ("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-sanitize=vptr")
_SANITIZE_CLANG = (*_SANITIZE, "-fno-sanitize=function")
_SANITIZERS = ("libasan.so", "libubsan.so")
_STUB = SOURCES / "dispatch_stub.cpp"


@dataclass(frozen=True)
class Built:
    dispatch_stub: Path  # to be loaded before torch
    device: Path
    operators: Path


@cache
def build(sanitize_host: bool = False) -> Built:
    """Brings it up to date."""
    target = from_python(sys.executable)
    operators = _operators_library()
    generated = registrations(target)
    headers = sorted(SOURCES.glob("*.h"))
    toolchain = find_toolchain(target)
    includes = [*generated.include, OVERLAYS[0] / "aten" / "src"]
    flags = [*toolchain.flags, *(f"-I{folder}" for folder in includes), f"-isystem{target.include}"]
    sanitize = _SANITIZE if sanitize_host else ()

    def compile_one(path: Path) -> Path:
        if path == generated.source:
            texts = [part.read_text() for part in generated.parts]
            return _compile(toolchain.compiler, path.read_text(), path, [*flags, "-O1", "-w"], *texts)
        if path.suffix == ".mm":
            return _compile_host(path, sanitize_host, headers if path.parent == SOURCES else ())
        more = sanitize if path != _STUB else ()
        return _compile(toolchain.compiler, path.read_text(), path, [*flags, "-O2", *more])

    sources = [_STUB, generated.source, *host_code.host_files([*OVERLAYS, SOURCES])]
    sources += [path for path in sorted(SOURCES.glob("*.cpp")) if path != _STUB]
    with ThreadPoolExecutor(compile_jobs()) as pool:  # the compilers are other processes
        stub, *objects = pool.map(compile_one, sources)
    return Built(
        _link(toolchain.compiler, "libmetal_host_dispatch_stub.so", [stub], []),
        _link(
            toolchain.compiler,
            "libmetal_host_mps.so",
            objects,
            [operators, *_torch_libraries(target), compiler.runtime()],
            sanitize,
        ),
        operators,
    )


def _compile_host(path: Path, sanitize: bool, depends: Sequence[Path] = ()) -> Path:
    return host_code.compile_object(path, flags=("-O1", *(_SANITIZE_CLANG if sanitize else ())), depends=depends)


def build_host_library(*paths: Path) -> Path:
    """Some .mm as a library of its own, whose registrations take the place of those before."""
    target = from_python(sys.executable)
    sanitize_host = _loaded.sanitize_host
    libraries = [build(sanitize_host).device, _operators_library(), *_torch_libraries(target)]
    flags = _SANITIZE if sanitize_host else ()
    objects = [_compile_host(path, sanitize_host) for path in paths]
    return _link(find_toolchain(target).compiler, f"lib{paths[0].stem}.so", objects, libraries, flags)


def _torch_libraries(target: Target) -> list[Path]:
    return [target.root / "torch" / "lib" / name for name in ("libtorch_cpu.so", "libc10.so")]


def _operators_library() -> Path:
    """In a copy of the build that `make wheel-mode` made, which may make another while this one is in use."""
    from torch_overlay._builds import find_build

    build = find_build()
    with open(build.folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # not while it is at work
        parts = [build.folder / "manifest.json", build.library, *sorted((build.folder / "python").rglob("*.py"))]
        digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in parts)).hexdigest()
        folder = FOLDER / "operators" / digest[:24]
        with compiler.made_once(folder) as made:
            if made:
                for path in parts:
                    copy = made / path.relative_to(build.folder)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, copy)
    return folder / build.library.name


def _compile(cxx: str, text: str, path: Path, flags: Sequence[str], *depends: str) -> Path:
    headers = (header.read_text() for header in sorted(SOURCES.glob("*.h")))
    digest = hashlib.sha256("\0".join([cxx, text, *flags, *headers, *depends]).encode()).hexdigest()
    target = FOLDER / "objects" / f"{path.stem}-{digest[:24]}.o"
    with compiler.made_once(target) as made:
        if made:
            command = [*cxx.split(), *flags, f"-I{path.parent}", "-x", "c++", "-c", "-o", str(made), "-"]
            _run(command, f"compiling {compiler.shown(str(path))}", text)
    return target


def _link(
    cxx: str, name: str, objects: Sequence[Path], libraries: Sequence[Path], flags: Sequence[str] = ()
) -> Path:
    parts = [*flags, *(str(path) for path in (*objects, *libraries))]
    stamps = [f"{path}:{path.stat().st_mtime_ns}" for path in libraries]
    digest = hashlib.sha256("\0".join([cxx, *parts, *stamps]).encode()).hexdigest()
    target = FOLDER / f"{digest[:24]}" / name
    with compiler.made_once(target) as made:
        if made:
            _run([*cxx.split(), *LINK_FLAGS, "-o", str(made), *parts, "-ldl"], f"linking {name}")
    return target


def _run(command: Sequence[str], what: str, text: str | None = None) -> None:
    run = subprocess.run(command, input=text, capture_output=True, text=True)
    if run.returncode:
        raise OverlayError(what, run.stderr.strip()[-4000:])


# ---- In use --------------------------------------------------------------------------------


@dataclass
class _Loaded:
    sanitize_host: bool = False


_loaded = _Loaded()


def load(*, sanitize: bool = False, sanitize_host: bool = False) -> None:
    """Makes `mps` a device of this process.

    sanitize:      kernels' loads and stores are checked
    sanitize_host: so is host code, in a process that has the environment of `host_sanitizers()`; not both at once,
                   since the two sanitizers call functions of the same names
    """
    if sys.platform != "linux":
        raise OverlayError(sys.platform, "the mps device is simulated on Linux alone", "make test-mps TREE=...")
    if "torch" in sys.modules:
        raise OverlayError("torch", "the simulated device is loaded before torch", "import it first")
    built = _build_apart(sanitize_host)
    _loaded.sanitize_host = sanitize_host
    os.environ.pop("LD_PRELOAD", None)  # it is not for the compilers that this process runs
    os.environ["TORCH_OVERLAY_BUILD"] = str(built.operators.parent)  # also of the processes that this one runs
    ctypes.CDLL(str(built.dispatch_stub), mode=ctypes.RTLD_GLOBAL)
    import torch

    import torch_overlay  # noqa: F401  its library has the stubs that host code registers with

    torch.ops.load_library(built.device)
    torch._C._has_mps = True
    for path in checks.metal_files(OVERLAYS):
        load_kernels(path, sanitize=sanitize)


def host_sanitizers() -> dict[str, str]:
    """What the environment of a process has that loads with `sanitize_host`."""
    compiler_command = find_toolchain(from_python(sys.executable)).compiler.split()
    libraries = [
        subprocess.run([*compiler_command, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in _SANITIZERS
    ]
    options = "detect_leaks=0:protect_shadow_gap=0:handle_segv=0"  # a host that reads device memory gets its SIGSEGV
    return {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": options, "UBSAN_OPTIONS": "print_stacktrace=1"}


def _build_apart(sanitize_host: bool) -> Built:
    """In another process, since finding the operators' library imports torch."""
    command = [sys.executable, "-m", "metal_host.simulated_mps", *(["--sanitize-host"] if sanitize_host else [])]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if run.returncode:
        raise OverlayError("the simulated mps device", "it could not be built; the reason is above")
    return Built(*map(Path, run.stdout.split("\n")[:3]))


def load_kernels(
    path: Path, source: str | None = None, *, sanitize: bool = False, torch_include: Path | None = None
) -> None:
    """The kernels of a .metal file, in place of those of the same names.

    source:        instead of what the file has
    torch_include: the headers of another torch
    """
    import torch

    level = compiler.METAL_3_1
    rewritten = frontend.rewrite(source or path.read_text(), str(path), level, torch_include)
    torch.ops.metal_host.load_kernels(str(compiler.compile_library(rewritten.text, str(path), level, sanitize)))


@dataclass
class Counts:
    """What ran within `with counting() as counts:`, by name."""

    kernels: dict[str, int]
    fallbacks: dict[str, int]


def forget(overload: str) -> None:
    """An overload (`take`, `put_`) goes without its kernel: it falls back, as one that was never registered."""
    import torch

    torch.ops.metal_host.forget(overload)


@contextmanager
def counting() -> Iterator[Counts]:
    import torch

    def now() -> tuple[dict[str, int], dict[str, int]]:
        torch.mps.synchronize()
        return torch.ops.metal_host.dispatches(), torch.ops.metal_host.fallbacks()

    def since(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
        return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}

    counts = Counts({}, {})
    kernels, fallbacks = now()
    yield counts
    after = now()
    counts.kernels, counts.fallbacks = since(kernels, after[0]), since(fallbacks, after[1])


def main() -> int:
    try:
        built = build(sanitize_host="--sanitize-host" in sys.argv[1:])
    except OverlayError as error:
        print(error.render(), file=sys.stderr)
        return 1
    print(built.dispatch_stub, built.device, built.operators, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
