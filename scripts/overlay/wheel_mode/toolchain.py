"""The compiler, its flags, and the key that names a build."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

from ..errors import OverlayError
from .target import Target

# Per machine: defines for every source, and for native/cpu the flags of each CPU_CAPABILITY, as PyTorch sets them.
_X86_64 = (
    ("-DHAVE_AVX2_CPU_DEFINITION", "-DHAVE_AVX512_CPU_DEFINITION"),
    {
        "AVX512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma",
        "AVX2": "-mavx2 -mfma -mf16c",
        "DEFAULT": "",
    },
)
_AARCH64 = ((), {"DEFAULT": ""})
_MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}
_MAC = "arm64"  # as Apple's compiler calls the machine that others call aarch64

_DEFINES = "-fPIC -DNDEBUG -DAT_PER_OPERATOR_HEADERS".split()
_COMMON = "-fvisibility-inlines-hidden -fno-math-errno -fno-trapping-math".split()
_WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unknown-pragmas", "-Wno-psabi", "-Werror=return-type")

# The library uses the torch that is loaded already, so it has no path to one. What torch itself needs (CUDA, for
# example) need not be on the machine that builds.
LINK_FLAGS = ("-shared", "-Wl,--no-undefined", "-Wl,--allow-shlib-undefined", "-Wl,--as-needed")
_MAC_LINK_FLAGS = ("-dynamiclib", "-undefined", "dynamic_lookup", "-Wl,-rpath,@loader_path/target/torch/lib")


@dataclass(frozen=True)
class Toolchain:
    compiler: str  # shell words, e.g. "g++"
    identity: str  # its version line
    machine: str  # "x86_64"
    launcher: str  # "ccache", or empty
    flags: tuple[str, ...]  # for every source
    capabilities: dict[str, str]  # CPU_CAPABILITY to its flags

    generated_flags = ("-O1", "-w")
    overlay_flags = ("-O3", *_WARNINGS)

    @property
    def is_mac(self) -> bool:
        return self.machine == _MAC

    @property
    def link_flags(self) -> tuple[str, ...]:
        return _MAC_LINK_FLAGS if self.is_mac else LINK_FLAGS

    def key(self, target: Target, *devices: str) -> str:
        """Whatever makes two builds incompatible; `devices`: what the same is of other compilers."""
        parts = [
            target.version, target.git_version, str(target.cuda), self.compiler, self.identity, self.machine,
            *self.flags, *self.generated_flags, *self.overlay_flags, *self.link_flags,
            *(f"{name}:{flags}" for name, flags in self.capabilities.items()), *devices,
        ]  # fmt: skip
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"torch-{target.version}-{target.git_version[:8]}-{self.machine}-{digest[:8]}"


def find_toolchain(target: Target) -> Toolchain:
    compiler = os.environ.get("CXX") or "c++"
    identity = _ask(compiler, "--version").splitlines()[0]
    machine = _ask(compiler, "-dumpmachine").strip().partition("-")[0]
    if machine not in _MACHINES:
        raise OverlayError(compiler, f"wheel mode builds for {' and '.join(_MACHINES)}, not for {machine}")
    defines, capabilities = _MACHINES[machine]
    launcher = "ccache" if shutil.which("ccache") and "ccache" not in compiler else ""
    openmp = ("-Xpreprocessor", "-fopenmp") if machine == _MAC else ("-fopenmp",)
    flags = (f"-std={target.cxx_standard}", *_DEFINES, *openmp, *_COMMON, *defines)
    return Toolchain(compiler, identity, machine, launcher, flags, capabilities)


def _ask(compiler: str, option: str) -> str:
    try:
        return subprocess.run([*shlex.split(compiler), option], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise OverlayError(
            compiler, f"a C++ compiler was expected: {error}", "install g++, or name one with CXX="
        ) from None
