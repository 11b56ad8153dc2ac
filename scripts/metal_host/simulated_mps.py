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
import hashlib
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
_STUB = SOURCES / "dispatch_stub.cpp"


@dataclass(frozen=True)
class Built:
    dispatch_stub: Path  # to be loaded before torch
    device: Path


@cache
def build() -> Built:
    """Brings it up to date."""
    target = from_python(sys.executable)
    operators = _operators_library()
    generated = registrations(target)
    headers = sorted(SOURCES.glob("*.h"))
    toolchain = find_toolchain(target)
    includes = [*generated.include, OVERLAYS[0] / "aten" / "src"]
    flags = [*toolchain.flags, *(f"-I{folder}" for folder in includes), f"-isystem{target.include}"]

    def compile_one(path: Path) -> Path:
        if path == generated.source:
            texts = [part.read_text() for part in generated.parts]
            return _compile(toolchain.compiler, path.read_text(), path, [*flags, "-O1", "-w"], *texts)
        if path.suffix == ".mm":
            return host_code.compile_object(path, depends=headers if path.parent == SOURCES else ())
        return _compile(toolchain.compiler, path.read_text(), path, [*flags, "-O2"])

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
        ),
    )


def build_host_library(path: Path) -> Path:
    """A .mm as a library of its own, whose registrations take the place of those before."""
    target = from_python(sys.executable)
    libraries = [build().device, _operators_library(), *_torch_libraries(target)]
    return _link(find_toolchain(target).compiler, f"lib{path.stem}.so", [host_code.compile_object(path)], libraries)


def _torch_libraries(target: Target) -> list[Path]:
    return [target.root / "torch" / "lib" / name for name in ("libtorch_cpu.so", "libc10.so")]


def _operators_library() -> Path:
    from torch_overlay._builds import find_build

    return find_build().library


def _compile(cxx: str, text: str, path: Path, flags: Sequence[str], *depends: str) -> Path:
    headers = (header.read_text() for header in sorted(SOURCES.glob("*.h")))
    digest = hashlib.sha256("\0".join([cxx, text, *flags, *headers, *depends]).encode()).hexdigest()
    target = FOLDER / "objects" / f"{path.stem}-{digest[:24]}.o"
    with compiler.made_once(target) as made:
        if made:
            command = [*cxx.split(), *flags, f"-I{path.parent}", "-x", "c++", "-c", "-o", str(made), "-"]
            _run(command, f"compiling {compiler.shown(str(path))}", text)
    return target


def _link(cxx: str, name: str, objects: Sequence[Path], libraries: Sequence[Path]) -> Path:
    parts = [str(path) for path in (*objects, *libraries)]
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


def load(*, sanitize: bool = False) -> None:
    """Makes `mps` a device of this process. `sanitize`: kernels' loads and stores are checked."""
    if sys.platform != "linux":
        raise OverlayError(sys.platform, "the mps device is simulated on Linux alone", "make test-mps TREE=...")
    if "torch" in sys.modules:
        raise OverlayError("torch", "the simulated device is loaded before torch", "import it first")
    built = _build_apart()
    ctypes.CDLL(str(built.dispatch_stub), mode=ctypes.RTLD_GLOBAL)
    import torch

    import torch_overlay  # noqa: F401  its library has the stubs that host code registers with

    torch.ops.load_library(built.device)
    torch._C._has_mps = True
    for path in checks.metal_files(OVERLAYS):
        load_kernels(path, sanitize=sanitize)


def _build_apart() -> Built:
    """In another process, since finding the operators' library imports torch."""
    run = subprocess.run([sys.executable, "-m", "metal_host.simulated_mps"], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise OverlayError("the simulated mps device", "it could not be built; the reason is above")
    return Built(*map(Path, run.stdout.split("\n")[:2]))


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
        built = build()
    except OverlayError as error:
        print(error.render(), file=sys.stderr)
        return 1
    print(built.dispatch_stub, built.device, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
