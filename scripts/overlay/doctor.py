"""`make doctor`: what this machine has, what is needed, and the command that mends the difference.

Standard library only, and syntax that an older Python reads, so that it runs before anything is set up.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .errors import OverlayError
from .machine import MEMORY_PER_JOB, available_memory, compile_jobs, cores
from .paths import REPO

PYTHON = (3, 11)
GIB = 1 << 30
DISK_BLOCKER, DISK_WANTED = 2, 8  # GiB: .venv and wheel mode; with the trees and wheels of every release

OK, WARNING, BLOCKER = "ok", "warning", "BLOCKER"


@dataclass
class Check:
    name: str
    found: str
    needed: str
    state: str
    fix: str = ""


def checks(venv: Path) -> list[Check]:
    rows = [_python(), _venv_module(), _python_headers(), _compiler()]
    torch = _torch_build(venv)
    gpu = _metal() if sys.platform == "darwin" else _cuda(torch)
    return rows + [_torch(venv, torch), gpu, _ninja(venv), _ccache(), _git(), _debian(), _disk(), _memory()]


def _python() -> Check:
    needed = ".".join(map(str, PYTHON))
    state = OK if sys.version_info >= PYTHON else BLOCKER
    return Check("Python", platform.python_version(), f">= {needed}", state, f"make PYTHON=/path/to/python{needed} ...")


def _venv_module() -> Check:
    found = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
    return Check(
        "venv",
        "yes" if found else "no",
        "Python's venv and ensurepip",
        OK if found else BLOCKER,
        _install("python3-venv", "python"),
    )


def _python_headers() -> Check:
    found = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
    return Check(
        "Python headers",
        "yes" if found else "no",
        "for torch.compile on the CPU",
        OK if found else WARNING,
        _install("python3-dev", "python"),
    )


def _compiler() -> Check:
    command = os.environ.get("CXX", "c++")
    needed, fix = (
        "C++20 (gcc >= 11 or clang >= 14), or CXX=",
        "xcode-select --install" if sys.platform == "darwin" else "apt-get install g++",
    )
    version = _first_line([*command.split(), "--version"])
    if not version:
        return Check("C++ compiler", f"{command}: none", needed, BLOCKER, fix)
    program = "#include <concepts>\nint main() { return std::same_as<int, int> ? 0 : 1; }\n"
    compile_it = [*command.split(), "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    works = subprocess.run(compile_it, input=program.encode(), capture_output=True).returncode == 0
    return Check("C++ compiler", version, needed, OK if works else BLOCKER, fix)


def _torch_build(venv: Path) -> dict[str, str] | None:
    """The constants of torch/version.py in a virtual environment."""
    for file in venv.glob("lib/python*/site-packages/torch/version.py"):
        return dict(re.findall(r"^(__version__|cuda)\b[^=]*= '([^']*)'", file.read_text(), re.MULTILINE))
    return None


def _torch(venv: Path, torch: dict[str, str] | None) -> Check:
    try:
        from .versions import load_releases

        supported = [release.version for release in load_releases()]
    except (ImportError, OverlayError) as error:
        return Check("torch", "?", "a release of versions.toml", WARNING, f"versions.toml could not be read: {error}")
    if torch is None:
        return Check("torch", f"none in {venv.name}", "made by the first target that needs it", OK)
    known = torch["__version__"].partition("+")[0] in supported
    return Check(
        "torch",
        f"{torch['__version__']} in {venv.name}",
        " or ".join(supported),
        OK if known else WARNING,
        f"TORCH=<one of them>: make demo TORCH={supported[0]}",
    )


def _cuda(torch: dict[str, str] | None) -> Check:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = str(Path(home, "bin", "nvcc")) if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    match = re.search(r"release (\d+)\.(\d+)", _output([nvcc, "--version"]))
    found = f"nvcc {match[1]}.{match[2]}" if match else "no nvcc"
    wanted = (torch or {}).get("cuda")
    if not wanted:
        return Check(
            "CUDA",
            found,
            "none: this torch is built without CUDA" if torch else "torch's CUDA, for CUDA parts only",
            OK,
        )
    same = match is not None and match[1] == wanted.partition(".")[0]
    return Check(
        "CUDA",
        found,
        f"{wanted}, for CUDA parts only",
        OK if same else WARNING,
        f"install the CUDA {wanted} toolkit and set CUDA_HOME to it",
    )


def _metal() -> Check:
    """What host code and kernels take on a Mac, as Apple documents it: nobody has run this on one yet."""
    if not _first_line(["xcrun", "--sdk", "macosx", "--show-sdk-path"]):
        return Check("Metal", "no macOS SDK", "Apple's, for host code (unverified)", WARNING, "xcode-select --install")
    compiler = bool(_first_line(["xcrun", "--sdk", "macosx", "--find", "metal"]))
    return Check(
        "Metal",
        "macOS SDK, metal" if compiler else "macOS SDK, no metal",
        "metal, for a source build; wheel mode has kernels compiled as they run (unverified)",
        OK if compiler else WARNING,
        "install Xcode, then: xcodebuild -downloadComponent MetalToolchain",
    )


def _ninja(venv: Path) -> Check:
    path = venv / "bin" / "ninja"
    version = _first_line([str(path) if path.is_file() else "ninja", "--version"])
    return Check("ninja", version or "none", "any; comes with .venv", OK)


def _ccache() -> Check:
    version = _first_line(["ccache", "--version"])
    return Check(
        "ccache",
        version or "none",
        "optional: repeated builds take seconds",
        OK if version else WARNING,
        _install("ccache"),
    )


def _git() -> Check:
    version = _first_line(["git", "--version"])
    return Check(
        "git",
        version or "none",
        "for SOURCE=git, and to take the output of `patch`",
        OK if version else WARNING,
        _install("git"),
    )


def _debian() -> Check:
    missing = [name for name in ("apt-get", "dpkg-source") if not shutil.which(name)]
    return Check(
        "Debian source",
        f"no {', '.join(missing)}" if missing else "apt-get, dpkg-source",
        "for `fetch VERSION=2.6.0` only",
        WARNING if missing else OK,
        "on a Debian machine: apt-get install dpkg-dev",
    )


def _disk() -> Check:
    free = shutil.disk_usage(REPO).free / GIB
    state = BLOCKER if free < DISK_BLOCKER else WARNING if free < DISK_WANTED else OK
    return Check(
        "disk",
        f"{free:.0f} GiB free",
        f"{DISK_BLOCKER} GiB; {DISK_WANTED} GiB for every tree",
        state,
        "make clean, or free some space",
    )


def _memory() -> Check:
    available, per_job = available_memory(), MEMORY_PER_JOB / GIB
    return Check(
        "memory",
        f"{available / GIB:.0f} GiB available, {cores()} cores",
        f"{per_job} GiB per compile job: MAX_JOBS={compile_jobs()}",
        OK if available >= MEMORY_PER_JOB else WARNING,
        "close other programs, and build with MAX_JOBS=1",
    )


def _install(package: str, homebrew: str | None = None) -> str:
    return f"brew install {homebrew or package}" if sys.platform == "darwin" else f"apt-get install {package}"


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""


def _first_line(command: list[str]) -> str:
    return _output(command).strip().partition("\n")[0]


def render(rows: list[Check]) -> str:
    """A table to read, or to paste into a report."""
    titles = Check("", "found", "needed", "")
    widths = [
        max(len(getattr(row, field)) for row in [titles, *rows]) for field in ("state", "name", "found", "needed")
    ]
    lines = []
    for row in [titles, *rows]:
        cells = (row.state, row.name, row.found, row.needed)
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
    lines += [f"fix {row.name}: {row.fix}" for row in rows if row.state != OK]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    rows = checks(REPO / (arguments[0] if arguments else ".venv"))
    commit = _first_line(["git", "-C", str(REPO), "describe", "--always", "--dirty"]) or "unknown"
    print(f"aten-overlay {commit} on {platform.platform()}\n")
    print(render(rows))
    blockers = sum(row.state == BLOCKER for row in rows)
    print(f"\ndoctor: {f'{blockers} to mend first' if blockers else 'OK'}")
    return 1 if blockers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
