"""nvcc, for a torch that was built with CUDA: which one, and for which architectures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..errors import OverlayError
from .target import Target

# What the kernels are for: 8.0 and later, tuned on 9.0, whose wgmma needs 9.0a. Others get there through 8.0's PTX.
DEFAULT_ARCHITECTURES = "8.0+PTX 9.0a"

_USUAL_HOME = Path("/usr/local/cuda")
_PARTS = ("bin/nvcc", "include/cuda_runtime_api.h")

_NO_CMAKE_CONFIGURE_FILE = "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"  # for the headers of a torch without CUDA
_RELEASE = re.compile(r"release (\d+)\.")
_FLAGS = (
    "-O3 --expt-relaxed-constexpr -D__CUDA_NO_HALF_OPERATORS__ -D__CUDA_NO_HALF_CONVERSIONS__ "
    "-D__CUDA_NO_HALF2_OPERATORS__ -D__CUDA_NO_BFLOAT16_CONVERSIONS__ -DAT_PER_OPERATOR_HEADERS -DNDEBUG "
    # PyTorch's own headers: annotations of defaulted functions, and unreachable code.
    "-diag-suppress 20012,20014,20208,177 -Xcompiler -fPIC,-fvisibility-inlines-hidden"
).split()


@dataclass(frozen=True)
class CudaToolchain:
    home: Path
    identity: str  # nvcc's version line
    architectures: str  # as in TORCH_CUDA_ARCH_LIST
    flags: tuple[str, ...]

    @property
    def compiler(self) -> Path:
        return self.home / _PARTS[0]

    @property
    def runtime(self) -> Path:
        """Linked by its name; at run time it is the one that torch has loaded."""
        for path in self.home.glob("lib*/libcudart.so"):
            return path
        raise OverlayError(str(self.home), "linking takes libcudart.so, which this toolkit lacks", "CUDA_HOME=another")

    @property
    def host_flags(self) -> tuple[str, ...]:
        """For host code that a C++ compiler compiles."""
        defines = [flag for flag in self.flags if flag == _NO_CMAKE_CONFIGURE_FILE]
        return "-isystem", str(self.home / "include"), *defines

    def key(self) -> tuple[str, ...]:
        """What makes two builds incompatible."""
        return self.identity, *self.flags


def find_cuda(target: Target) -> CudaToolchain | None:
    """None, and a line that says why, where this torch has CUDA and the machine has no nvcc for it."""
    if target.cuda is None:
        return None
    home = _home()
    if home is None:
        print(f"  without CUDA: no nvcc found for the CUDA {target.cuda} of this torch; CUDA_HOME= names its toolkit")
        return None
    identity = _identity(home)
    release = _RELEASE.search(identity)
    if release is None or release[1] != target.cuda.partition(".")[0]:
        raise OverlayError(
            str(home),
            f"this torch was built with CUDA {target.cuda}; nvcc is {identity}",
            f"name a toolkit of CUDA {target.cuda.partition('.')[0]} in CUDA_HOME, or none: CUDA_HOME=none",
        )
    return cuda_toolchain(home, target)


def cuda_toolchain(home: Path, target: Target) -> CudaToolchain:
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST") or DEFAULT_ARCHITECTURES
    identity = _identity(home)
    flags = [f"-std={target.cxx_standard}", *_FLAGS, *architecture_flags(architectures)]
    if int(_RELEASE.search(identity)[1]) >= 13:
        flags.append("-split-compile=0")  # the kernels of a source are many, and are compiled side by side
    if not (target.include / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h").exists():
        flags.append(_NO_CMAKE_CONFIGURE_FILE)
    return CudaToolchain(home, identity, architectures, tuple(flags))


def architecture_flags(architectures: str) -> list[str]:
    """nvcc's flags for a TORCH_CUDA_ARCH_LIST such as "8.0 9.0a+PTX"."""
    flags = []
    for name in re.split(r"[\s;]+", architectures.strip()):
        match = re.fullmatch(r"(\d+)\.(\d[af]?)(\+PTX)?", name)
        if match is None or int(match[1]) < 8:
            raise OverlayError(
                f"TORCH_CUDA_ARCH_LIST={architectures}",
                f"it lists compute capabilities of 8.0 and later, with +PTX or without; {name!r} is none",
                f'TORCH_CUDA_ARCH_LIST="{DEFAULT_ARCHITECTURES}"',
            )
        number = match[1] + match[2]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[3]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def _home() -> Path | None:
    """CUDA_HOME or CUDA_PATH alone if set, else that of the nvcc on PATH, else the usual place."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    on_path = shutil.which("nvcc")
    homes = [Path(named)] if named else [*([Path(on_path).resolve().parents[1]] if on_path else ()), _USUAL_HOME]
    return next((home for home in homes if all((home / part).is_file() for part in _PARTS)), None)


def _identity(home: Path) -> str:
    output = subprocess.run([home / _PARTS[0], "--version"], capture_output=True, text=True, check=True).stdout
    return next(line for line in output.splitlines() if "release" in line)
