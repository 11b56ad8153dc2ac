"""The switches of a build: what PyTorch's setup.py reads from the environment.

Small defaults, for a torch to test the operators with on one machine. Every one of them, and every other that setup.py
knows, can be set in the environment or on make's command line (`make build USE_CUDA=1`); docs/source_mode.md has the
list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import OverlayError
from ..paths import BUILD, REPO
from ..state import load_state
from ..trees import Tree
from .debian_tree import is_debian
from .machine import Machine

GENERATED_SOURCES = "overlay-generated-sources.cmake"
_OFF = (
    "BUILD_TEST",
    "USE_CUDA",
    "USE_DISTRIBUTED",
    "USE_FBGEMM",
    "USE_GFLAGS",
    "USE_GLOG",
    "USE_ITT",
    "USE_KINETO",
    "USE_MKLDNN",
    "USE_NNPACK",
    "USE_PYTORCH_QNNPACK",
    "USE_QNNPACK",
    "USE_ROCM",
    "USE_VULKAN",
    "USE_XNNPACK",
)
_DEBIAN = {
    "CC": "clang-19",
    "CXX": "clang++-19",
    "BLAS": "Generic",
    "GENERIC_BLAS_LIBRARIES": "blas",
    "ONNX_NAMESPACE": "onnx",
    "USE_SYSTEM_LIBS": "ON",
}
# Whatever else setup.py hands to CMake, or reads for itself.
_KNOWN_PREFIXES = ("BUILD_", "USE_", "CMAKE_", "PYTORCH_BUILD_", "TORCH_CUDA_", "CUDA_", "CUDNN_", "NCCL_")
_KNOWN = ("ATEN_THREADING", "BLAS", "CC", "CXX", "DEBUG", "LDFLAGS", "WERROR")


def switches(tree: Tree, machine: Machine, environment: Mapping[str, str]) -> dict[str, str]:
    """What the environment sets, over our defaults."""
    flags = ["-g0", *(["-fuse-ld=mold"] if machine.has("mold") else []), "-w"]
    optimize = f"-O{max(1, optimization(environment))} -DNDEBUG"
    defaults = {
        **dict.fromkeys(_OFF, "OFF"),
        **(_DEBIAN if is_debian(tree) else {}),
        "CFLAGS": " ".join(flags),
        # Debian's protobuf and others are included from /usr.
        "CXXFLAGS": " ".join([*flags, *(["-I/usr"] if is_debian(tree) else [])]),
        "CMAKE_C_FLAGS_RELEASE": optimize,
        "CMAKE_CXX_FLAGS_RELEASE": optimize,
        "CMAKE_PROJECT_Torch_INCLUDE": str(tree.root / "build" / GENERATED_SOURCES),
        "PYTORCH_BUILD_VERSION": build_version(tree),
        "PYTORCH_BUILD_NUMBER": "1",
    }
    if machine.has("ccache"):
        defaults |= dict.fromkeys(("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER"), "ccache")
    known = {*defaults, *_KNOWN}
    given = {
        name: value for name, value in environment.items() if name in known or name.startswith(_KNOWN_PREFIXES)
    }
    return dict(sorted({**defaults, **given}.items()))


def optimization(environment: Mapping[str, str]) -> int:
    """OPT, for what PyTorch does not compile with -O levels of its own."""
    given = environment.get("OPT", "0")
    if given not in ("0", "1", "2", "3"):
        raise OverlayError(f"OPT={given}", "a compiler's -O level is 0, 1, 2 or 3", "make build OPT=2")
    return int(given)


def build_version(tree: Tree) -> str:
    """A local version label tells a patched torch from any other."""
    return tree.version.base_version + (f"+overlay.{overlay_version()}" if load_state(tree.root) else "")


def overlay_version() -> str:
    """Read, not imported: the import would load a torch."""
    return re.search(r'"(.+)"', (REPO / "torch_overlay" / "_version.py").read_text())[1]


def ccache_variables(tree: Tree, machine: Machine, environment: Mapping[str, str]) -> dict[str, str]:
    """A cached object serves the same source in any folder."""
    defaults = {"CCACHE_BASEDIR": str(tree.root), "CCACHE_NOHASHDIR": "1"}
    if machine.chroot:
        defaults |= {"CCACHE_DIR": str(ccache_folder(environment)), "CCACHE_MAXSIZE": "10G"}
    return defaults | {name: value for name, value in environment.items() if name.startswith("CCACHE_")}


def ccache_folder(environment: Mapping[str, str]) -> Path:
    """Where builds in a chroot keep their cache, which outlives the chroot."""
    return Path(environment.get("CCACHE_DIR", BUILD / "ccache")).absolute()
