"""What a build needs, looked at before anything is touched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import OverlayError
from ..machine import MEMORY_PER_JOB, available_memory, compile_jobs, cores
from ..trees import Tree, display
from .debian_tree import is_debian
from .machine import Machine

GIB = 1 << 30
DISK = 8  # GiB that a build with the default switches and its ccache take, rounded up
DISK_CUDA = 40
_MODULES = ("numpy", "setuptools", "typing_extensions", "yaml")
_TRUE = ("1", "ON", "YES", "TRUE", "Y")


@dataclass(frozen=True)
class Site:
    """What is checked: a tree, the machine it is built on, and the switches."""

    tree: Tree
    machine: Machine
    python: str
    switches: Mapping[str, str]

    def first_line(self, *command: str) -> str:
        return self.machine.output(list(command)).strip().partition("\n")[0]

    def cmake_lists(self) -> str:
        return (self.tree.root / "CMakeLists.txt").read_text()


def check(site: Site) -> list[OverlayError]:
    """Prints what is there, and returns what stands in the way."""
    problems = []
    for name, look in _CHECKS.items():
        try:
            found = look(site)
        except OverlayError as error:
            problems.append(error)
            found = "see below"
        if found:
            print(f"  {name:<10} {found}")
    return problems


def _compiler(site: Site) -> str:
    compiler = site.switches.get("CXX", "c++")
    standard = re.search(r"set\(CMAKE_CXX_STANDARD\s+(\d+)", site.cmake_lists())
    version = site.first_line(compiler, "--version")
    hint = f"name another one with CXX=, or install it {site.machine.describe()}"
    if not version:
        raise OverlayError(compiler, f"the C++ compiler runs {site.machine.describe()}, and it does not", hint)
    program = "#include <vector>\\nint main() { return std::vector<int>(1)[0]; }\\n"
    option = f"-std=c++{standard[1] if standard else 17}"
    tried = site.machine.output(
        ["sh", "-c", f"printf '{program}' | {compiler} {option} -x c++ - -o /dev/null && echo works"]
    )
    if "works" not in tried:
        raise OverlayError(compiler, f"it compiles and links C++ with {option}, and it does not", hint)
    return version


def _cmake(site: Site) -> str:
    needed = re.search(r"cmake_minimum_required\(VERSION\s+([\d.]+)", site.cmake_lists())
    return _tool(site, "cmake", needed[1] if needed else "")


def _ninja(site: Site) -> str:
    return _tool(site, "ninja", "")


def _tool(site: Site, program: str, needed: str) -> str:
    found = re.search(r"\d+(\.\d+)+", site.first_line(program, "--version"))
    hint = f"install {program} {site.machine.describe()}, for example with pip"
    if not found:
        raise OverlayError(program, "the build runs it, and it is not there", hint)
    if _numbers(found[0]) < _numbers(needed):
        raise OverlayError(f"{program} {found[0]}", f"this PyTorch needs {needed} or later", hint)
    return found[0]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _python(site: Site) -> str:
    version = site.first_line(site.python, "--version")
    if not version:
        raise OverlayError(site.python, f"this Python runs {site.machine.describe()}, and it does not", "set FOR=")
    imports = "; ".join(
        f"importlib.util.find_spec({name!r}) or print({name!r}, end=' ')" for name in _MODULES
    )
    missing = site.machine.output([site.python, "-c", f"import importlib.util; {imports}"]).strip()
    if missing:
        requirements = display(site.tree.root / "requirements.txt")
        raise OverlayError(
            site.python, f"PyTorch's setup.py imports {missing}", f"{site.python} -m pip install -r {requirements}"
        )
    return version


def _ccache(site: Site) -> str:
    return site.first_line("ccache", "--version") or "none: install it, and a second build takes minutes"


def _libraries(site: Site) -> str:
    """Submodules, or Debian's packages in their place."""
    root = site.tree.root
    if is_debian(site.tree):
        suite_hint = "apt-get build-dep pytorch, on Debian 13; elsewhere make chroot, as root"
        if not site.machine.has("dpkg-checkbuilddeps"):
            raise OverlayError(display(root), "Debian's source is built with Debian's libraries", suite_hint)
        checked = site.machine.output(["sh", "-c", "dpkg-checkbuilddeps 2>&1 || true"], root)
        if unmet := re.search(r"Unmet build dependencies: (.*)", checked, re.IGNORECASE):
            raise OverlayError(display(root), f"Debian's libraries are there; missing: {unmet[1]}", suite_hint)
        return "those of Debian"
    modules = root / ".gitmodules"
    if not modules.is_file():
        return ""
    paths = re.findall(r"^\s*path\s*=\s*(\S+)", modules.read_text(), re.MULTILINE)
    empty = [path for path in paths if not any((root / path).glob("*"))]
    if empty and not is_on(site.switches, "USE_SYSTEM_LIBS"):
        raise OverlayError(
            f"{display(root)}: {', '.join(empty[:3])}{' ...' if len(empty) > 3 else ''}",
            f"{len(empty)} of {len(paths)} submodules are not checked out",
            f"git -C {display(root)} submodule update --init --recursive",
        )
    return f"{len(paths)} submodules"


def _cuda(site: Site) -> str:
    if not is_on(site.switches, "USE_CUDA"):
        return ""
    home = site.switches.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = "nvcc" if site.machine.has("nvcc") else f"{home}/bin/nvcc"
    version = re.search(r"release ([\d.]+)", site.machine.output([nvcc, "--version"]))
    if not version:
        raise OverlayError(nvcc, "USE_CUDA=1 needs the CUDA toolkit", "install it and set CUDA_HOME, or leave USE_CUDA")
    compiler = site.switches.get("CXX", "c++")
    tried = site.machine.output(
        ["sh", "-c", f"echo 'int main() {{}}' | {nvcc} -ccbin {compiler} -x cu -c -o /dev/null - && echo works"]
    )
    if "works" not in tried:
        raise OverlayError(
            f"{nvcc} with {compiler}",
            f"CUDA {version[1]} takes this compiler as its host compiler, and it does not",
            "name an older or newer one with CXX=; CUDA's installation guide lists which it takes",
        )
    return f"{version[1]} with {compiler}"


def _disk(site: Site) -> str:
    needed = DISK_CUDA if is_on(site.switches, "USE_CUDA") else DISK
    free = shutil.disk_usage(site.tree.root).free / GIB
    built = (site.tree.root / "build" / "build.ninja").is_file()
    if free < (1 if built else needed):
        raise OverlayError(
            display(site.tree.root), f"a build takes {needed} GiB of disk, and {free:.1f} are free", "free some space"
        )
    return f"{free:.0f} GiB free"


def _memory(site: Site) -> str:
    available = available_memory()
    if available < MEMORY_PER_JOB:
        raise OverlayError(
            "memory",
            f"a compile job takes up to {MEMORY_PER_JOB / GIB} GiB, and {available / GIB:.1f} are available",
            "close other programs",
        )
    return f"{available / GIB:.0f} GiB available, {cores()} cores: MAX_JOBS={compile_jobs()}"


def _system(site: Site) -> str:
    return site.machine.describe()


def is_on(switches: Mapping[str, str], name: str) -> bool:
    return switches.get(name, "OFF").upper() in _TRUE


_CHECKS: dict[str, Callable[[Site], str]] = {
    "where": _system,
    "compiler": _compiler,
    "CMake": _cmake,
    "ninja": _ninja,
    "Python": _python,
    "ccache": _ccache,
    "libraries": _libraries,
    "CUDA": _cuda,
    "disk": _disk,
    "memory": _memory,
}
