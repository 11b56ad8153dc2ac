"""build.ninja, and running it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import OverlayError
from ..machine import compile_jobs
from .cuda import CudaToolchain
from .files import write_if_changed
from .toolchain import Toolchain


@dataclass(frozen=True)
class Compile:
    source: Path
    object: str  # relative to the build folder
    flags: tuple[str, ...]
    rule: str = "compile"  # or "nvcc"


def write_ninja(
    folder: Path,
    toolchain: Toolchain,
    cuda: CudaToolchain | None,
    includes: Iterable[str],
    compiles: list[Compile],
    library: str,
    link_with: Iterable[Path],
    link_flags: Iterable[str] = (),
) -> None:
    """`library` is the default target; `objects` is everything but the link."""
    flags = shlex.join([*toolchain.flags, *includes])
    lines = [
        "ninja_required_version = 1.5",
        f"launcher = {toolchain.launcher}",
        f"cxx = {_escape(toolchain.compiler)}",
        f"flags = {_escape(flags)}",
        "rule compile",
        "  command = $launcher $cxx $flags $extra -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compile $out",
        *_nvcc_rule(toolchain, cuda),
        "rule link",
        f"  command = $cxx {shlex.join([*toolchain.link_flags, *link_flags])} -o $out $in $libraries",
        "  description = link $out",
    ]
    for compile in compiles:
        lines += [
            f"build {_path(compile.object)}: {compile.rule} {_path(str(compile.source))}",
            f"  extra = {_escape(shlex.join(compile.flags))}",
        ]
    objects = " ".join(_path(compile.object) for compile in compiles)
    libraries = [str(path) for path in link_with]
    lines += [
        f"build objects: phony {objects}",
        f"build {library}: link {objects} | {' '.join(map(_path, libraries))}",
        f"  libraries = {_escape(shlex.join(libraries))}",
        f"default {library}",
    ]
    write_if_changed(folder / "build.ninja", "\n".join(lines) + "\n")


def _nvcc_rule(toolchain: Toolchain, cuda: CudaToolchain | None) -> list[str]:
    if cuda is None:
        return []
    # What nvcc hands to the host's compiler is one of its words.
    compiler = shlex.join([str(cuda.compiler), f"-ccbin={shlex.split(toolchain.compiler)[0]}"])
    return [
        f"nvcc = {_escape(compiler)}",
        "rule nvcc",
        "  command = $launcher $nvcc $extra -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compile $out",
    ]


def has_work(folder: Path, target: str) -> bool:
    dry_run = [_find_ninja(), "-C", str(folder), "-n", target]
    return "no work to do" not in subprocess.run(dry_run, capture_output=True, text=True).stdout


def run_ninja(folder: Path, target: str) -> None:
    """Its output goes to the terminal as it comes; the compiler's message stays the last thing on it."""
    ninja = _find_ninja()
    command = [ninja, "-C", str(folder), f"-j{compile_jobs()}", target]
    environment = {"NINJA_STATUS": "[%f/%t, %es] ", **os.environ}
    failed = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            failed += re.findall(r"^FAILED: (?:\[.*?\] )?(\S+)", line)
    if process.returncode != 0:
        raise OverlayError(
            ", ".join(failed) or str(folder / "build.ninja"),
            "compiler and linker accept every source; their message is above",
            f"mend it and run make wheel-mode again, or only this: {shlex.join([ninja, '-C', str(folder), *failed])}",
        )


def write_compile_commands(folder: Path) -> None:
    """compile_commands.json, for editors."""
    command = [_find_ninja(), "-C", str(folder), "-t", "compdb", "compile", "nvcc"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    write_if_changed(folder / "compile_commands.json", run.stdout)


def _find_ninja() -> str:
    beside = Path(sys.executable).parent  # the one from pip; a virtual environment need not be on PATH
    ninja = shutil.which("ninja", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if ninja is None:
        raise OverlayError("ninja", "wheel mode builds with ninja, and it is not there", "pip install ninja")
    return ninja


def _escape(text: str) -> str:
    return text.replace("$", "$$")


def _path(text: str) -> str:
    return re.sub(r"([$ :])", r"$\1", text)
