"""Recognising trees, and building wheel trees from small and real wheels."""

from __future__ import annotations

import errno
import json
import sys
import zipfile
from pathlib import Path

import pytest
from overlay import trees, wheels
from overlay.errors import OverlayError
from packaging.version import Version

VERSION_PY = """from typing import Optional
__version__ = '2.14.1+cu130'
cuda: Optional[str] = '13.0'
git_version = 'abc'
hip: Optional[str] = None
"""
SITE = {
    "torch/__init__.py": "",
    "torch/version.py": VERSION_PY,
    "torch/nn/functional.py": "def relu(): ...\n",
    "torch/nn/functional.pyi": "",
    "torch/_C.cpython-311-x86_64-linux-gnu.so": "binary",
    "torch/__pycache__/version.cpython-311.pyc": "binary",
    "torch/lib/libtorch_cpu.so": "binary",
    "torch/bin/protoc": "binary",
    "torch/include/ATen/ATen.h": "// ATen",
    "torch/include/ATen/ops/add.h": "// generated",
    "torch/include/c10/core/Device.h": "// c10",
    "torch/include/torch/csrc/autograd/function.h": "// csrc",
    "torch/include/pybind11/pybind11.h": "// third party",
    "torchgen/gen.py": "",
    "torchgen/packaged/ATen/native/native_functions.yaml": "- func: relu(Tensor self) -> Tensor\n",
    "torchgen/packaged/ATen/templates/Functions.h": "",
    "torchgen/packaged/autograd/derivatives.yaml": "",
    "functorch/__init__.py": "",
}
TREE = {
    "torch/__init__.py",
    "torch/version.py",
    "torch/nn/functional.py",
    "torch/nn/functional.pyi",
    "torch/csrc/autograd/function.h",
    "aten/src/ATen/ATen.h",
    "aten/src/ATen/native/native_functions.yaml",
    "aten/src/ATen/templates/Functions.h",
    "c10/core/Device.h",
    "tools/autograd/derivatives.yaml",
    "torchgen/gen.py",
    "functorch/__init__.py",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def write_wheel(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def source_tree(root: Path, version: str = "2.15.0a0") -> Path:
    return write(root, {"version.txt": version + "\n", trees.NATIVE_FUNCTIONS: "", "torch/__init__.py": ""})


@pytest.mark.parametrize("text", ["2.6.0", "2.6.0+dfsg", "2.15.0a0", "2.14.1rc2"])
def test_source_tree(tmp_path, text):
    tree = trees.open_tree(source_tree(tmp_path, text))
    assert (tree.kind, tree.version, tree.root) == ("source", Version(text), tmp_path)
    assert text in tree.describe() and str(tmp_path) in tree.describe()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"README.md": ""}, "no PyTorch tree: version.txt, aten/src/ATen/native/native_functions.yaml, torch/"),
        ({"version.txt": "1", "torch/__init__.py": ""}, "native_functions.yaml not found"),
        ({"torch/version.py": "", "torch/__init__.py": ""}, "an installed torch, whose files are never changed"),
        ({"version.txt": "main", trees.NATIVE_FUNCTIONS: "", "torch/__init__.py": ""}, "not `main`"),
    ],
)
def test_what_is_no_tree(tmp_path, files, message):
    with pytest.raises(OverlayError) as error:
        trees.open_tree(write(tmp_path, files))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("2.14.1", "make fetch VERSION=2.14.1"),
        ("2.6.0-git", "make fetch VERSION=2.6.0 SOURCE=git"),
        ("2.14.1-host", "make fetch VERSION=2.14.1 PLATFORM=host"),
    ],
)
def test_a_missing_tree_says_how_to_fetch_it(tmp_path, monkeypatch, name, command):
    monkeypatch.setattr(trees, "TREES", tmp_path)
    with pytest.raises(OverlayError) as error:
        trees.open_tree(tmp_path / name)
    assert error.value.hint == command


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken")])
def test_new_folder_leaves_nothing_behind(tmp_path, error):
    with pytest.raises(type(error)), trees.new_folder(tmp_path / "2.0.0") as folder:
        folder.mkdir()
        raise error
    assert list(tmp_path.iterdir()) == []


def test_new_folder_without_space(tmp_path):
    with pytest.raises(OverlayError, match="No space left"), trees.new_folder(tmp_path / "2.0.0") as folder:
        folder.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_installed_and_packed_give_the_same_tree(tmp_path):
    installed = wheels.build_tree(write(tmp_path / "site", SITE), tmp_path / "installed")
    packed = wheels.build_tree(write_wheel(tmp_path / "torch-2.14.1-py3.whl", SITE), tmp_path / "packed")
    for tree in (installed, packed):
        assert content(tree.root).keys() == TREE | {trees.MARKER}
        assert (tree.kind, tree.version) == ("wheel", Version("2.14.1+cu130"))
    files = [content(tree.root) for tree in (installed, packed)]
    markers = [json.loads(file.pop(trees.MARKER)) for file in files]
    assert files[0] == files[1]
    assert markers[1] == {
        "version": "2.14.1+cu130",
        "git_version": "abc",
        "cuda": "13.0",
        "origin": "torch-2.14.1-py3.whl",
        "parts": ["aten", "c10", "functorch", "tools", "torch", "torchgen"],
    }
    assert files[0]["aten/src/ATen/ATen.h"] == b"// ATen"


def test_site_holds_what_compiling_and_linking_take(tmp_path):
    wheels.unpack_site(write_wheel(tmp_path / "torch.whl", SITE), tmp_path / "site")
    names = content(tmp_path / "site").keys()
    assert {"torch/lib/libtorch_cpu.so", "torch/include/ATen/ops/add.h", "torchgen/gen.py"} <= names
    assert "torch/bin/protoc" not in names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"torchgen/packaged/ATen/native/native_functions.yaml": None},
            "has no aten/src/ATen/native/native_functions.yaml",
        ),
        ({"torch/version.py": None}, "this holds no torch"),
        ({"torch/version.py": "__version__ = '2.14.1'\n"}, "it does not say cuda, git_version"),
        ({"torch/../../outside.py": ""}, "a wheel's file stays inside it"),
    ],
)
def test_wheels_that_are_refused(tmp_path, change, message):
    files = {name: text for name, text in {**SITE, **change}.items() if text is not None}
    with pytest.raises(OverlayError) as error:
        wheels.build_tree(write_wheel(tmp_path / "torch.whl", files), tmp_path / "trees" / "tree")
    assert message in str(error.value)
    assert [path.name for path in tmp_path.rglob("*")] in (
        ["torch.whl"],
        ["torch.whl", "trees"],
        ["trees", "torch.whl"],
    )


def test_a_broken_wheel_file(tmp_path):
    (tmp_path / "torch.whl").write_bytes(b"PK but no archive")
    with pytest.raises(OverlayError, match="no wheel file"):
        wheels.build_tree(tmp_path / "torch.whl", tmp_path / "tree")


def test_the_torch_of_an_interpreter(tmp_path):
    site = wheels.installed_site(sys.executable)
    tree = wheels.build_tree(site, tmp_path / "tree")
    build = wheels.read_build(wheels.open_site(site))
    assert tree.version == Version(build.version)
    for place, name in {
        "torch/nn/functional.py": "torch/nn/functional.py",
        trees.NATIVE_FUNCTIONS: "torchgen/packaged/ATen/native/native_functions.yaml",
        "tools/autograd/derivatives.yaml": "torchgen/packaged/autograd/derivatives.yaml",
        "aten/src/ATen/native/DispatchStub.h": "torch/include/ATen/native/DispatchStub.h",
    }.items():
        assert (tree.root / place).read_bytes() == (site / name).read_bytes()


def test_an_interpreter_without_torch(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # -S: no site-packages
    bare.chmod(0o755)
    with pytest.raises(OverlayError, match="this interpreter has no torch"):
        wheels.installed_site(str(bare))
    with pytest.raises(OverlayError, match="no working Python"):
        wheels.installed_site(str(tmp_path / "nothing"))
