"""A tree that builds in seconds: PyTorch's layout, and a setup.py that writes a small build.ninja."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from edit_helpers import write
from overlay.paths import REPO
from overlay.source_mode import command
from overlay.source_mode.build import Build
from overlay.state import STATE_FILE, State, record

SETUP = '''\
import os
import sys
from pathlib import Path

with open("calls.txt", "a") as calls:
    print(*sys.argv[1:], file=calls)
if "--cmake-only" in sys.argv:
    lines = [
        "rule make",
        "  command = head -c 3 $in > $out && sleep 0.2 && ! grep BROKEN $in && cat $in > $out",
        "  description = Building $out",
    ]
    objects = []
    for source in sorted(Path("aten").rglob("*.cpp")):
        objects.append(f"caffe2/CMakeFiles/torch_cpu.dir/__/{source}.o")
        lines.append(f"build {objects[-1]}: make ../{source}")
    lines.append("build all: phony " + " ".join(objects))
    Path("build").mkdir(exist_ok=True)
    Path("build/build.ninja").write_text("\\n".join(lines) + "\\n")
elif "build_ext" in sys.argv:
    Path("torch/lib").mkdir(exist_ok=True)
    Path("torch/lib/libtorch_cpu.so").write_text("built as " + os.environ["PYTORCH_BUILD_VERSION"])
elif "bdist_wheel" in sys.argv:
    folder = Path(sys.argv[sys.argv.index("--dist-dir") + 1])
    (folder / f"torch-{os.environ['PYTORCH_BUILD_VERSION']}-cp311-cp311-linux_x86_64.whl").write_text("a wheel")
'''
OURS = ["aten/src/ATen/native/Ours.cpp", "aten/src/ATen/native/cpu/OursKernel.cpp"]
THEIRS = [f"aten/src/ATen/native/Theirs{i}.cpp" for i in range(10)]


def make_tree(root: Path, patched: bool = True) -> Path:
    write(
        root,
        {
            "version.txt": "2.6.0a0\n",
            "CMakeLists.txt": "cmake_minimum_required(VERSION 3.18 FATAL_ERROR)\nset(CMAKE_CXX_STANDARD 17)\n",
            "aten/src/ATen/native/native_functions.yaml": "",
            "torch/__init__.py": "",
            "setup.py": SETUP,
            **{name: f"// {name}\n" for name in THEIRS},
        },
    )
    if patched:
        patch(root, OURS)
    return root


def patch(root: Path, sources: list[str]) -> None:
    """As `make apply` would, for sources that it adds."""
    write(root, {name: f"// {name}\n" for name in sources})
    files = {name: record(None, (root / name).read_bytes()) for name in sources}
    (root / STATE_FILE).write_bytes(State("2.6.0a0", files, {}).dump())


def make_program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def path_with(folder: Path) -> str:
    """PATH, with a CMake that does nothing in front."""
    make_program(folder, "cmake", "echo cmake version 3.31.6")
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def job(tree: Path) -> Build:
    return command.job_of(argparse.Namespace(tree=tree, chroot=None, python=sys.executable))


def objects(tree: Path) -> dict[str, int]:
    """When each object was made."""
    return {str(path.relative_to(tree / "build")): path.stat().st_mtime_ns for path in tree.rglob("*.o")}


def calls(tree: Path) -> list[str]:
    return (tree / "calls.txt").read_text().splitlines()


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """The tool's command line, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "overlay", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(REPO / "scripts"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


