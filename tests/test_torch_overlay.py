"""`import torch_overlay`: which build it takes, and the names it gives."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from overlay.errors import OverlayError
from overlay.model import load_patches
from overlay.paths import REPO
from overlay.wheel_mode.manifest import extended_packages, python_edits
from packaging.version import Version
from wheel_mode_helpers import DUMMY_PATCHES, check_python, run_python

IMPORT = "import torch, torch_overlay"
VERSION = Version(torch.__version__)


def fake_build(folder: Path, **changes) -> Path:
    """A build whose library cannot be loaded: a refusal must come before."""
    manifest = {
        "torch": {"version": torch.__version__, "git_version": torch.version.git_version, "cuda": None},
        "library": "not a library",
        "operators": ["dummy_scale"],
        "bindings": {"module": {}, "method": []},
        "packages": [],
        "python_edits": {},
    }
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))
    return folder


# Which build


def test_there_is_no_build():
    run = run_python(IMPORT)
    assert f"no build for this torch {torch.__version__} (git {torch.version.git_version[:8]}).\n" in run.stderr
    assert f"next: make -C {REPO} wheel-mode" in run.stderr


@pytest.mark.parametrize("version, git_version", (("2.11.0", None), (torch.__version__, "0" * 40)))
def test_a_build_for_another_torch_is_refused(tmp_path, version, git_version):
    other = {"version": version, "git_version": git_version or torch.version.git_version, "cuda": None}
    run = run_python(IMPORT, fake_build(tmp_path / "build", torch=other))
    assert f"only for torch {version} (git {other['git_version'][:8]})" in run.stderr
    assert "wheel-mode" in run.stderr and "not a library" not in run.stderr


@pytest.fixture
def package(tmp_path):
    """torch_overlay in a repository of its own."""
    shutil.copytree(REPO / "torch_overlay", tmp_path / "torch_overlay", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def info(package: Path, **environment) -> subprocess.CompletedProcess:
    code = "import torch, torch_overlay; print(torch_overlay.build_info()['folder'])"
    return subprocess.run([sys.executable, "-c", code], cwd=package, env=environment, capture_output=True, text=True)


def test_builds_side_by_side(package, dummy_build):
    builds = package / "build" / "wheel-mode"
    shutil.copytree(dummy_build.folder, builds / "ours", ignore=shutil.ignore_patterns("objects", "target", ".lock"))
    fake_build(builds / "newer", torch={"version": "2.11.0", "git_version": "0" * 40, "cuda": None})
    run = info(package)
    assert run.stdout.strip() == str(builds / "ours"), run.stderr


def test_the_build_in_an_installed_package(package, dummy_build):
    inside = package / "torch_overlay" / "build"
    shutil.copytree(dummy_build.folder, inside, ignore=shutil.ignore_patterns("objects", "target", ".lock"))
    run = info(package)
    assert run.stdout.strip() == str(inside), run.stderr
    (inside / "manifest.json").unlink()
    assert "install the torch_overlay that was built for this torch" in info(package).stderr


def test_a_torch_that_was_built_with_the_overlay(tmp_path):
    check_python(
        """
import torch
library = torch.library.Library("aten", "FRAGMENT")
library.define("causal_conv1d(Tensor input) -> Tensor")
import torch_overlay
assert torch_overlay.build_info() == {"mode": "source"}
assert not hasattr(torch._C._nn, "dummy_scale")
""",
        fake_build(tmp_path / "build"),
    )


def test_operators_of_another_library(tmp_path):
    code = """
import torch
library = torch.library.Library("aten", "FRAGMENT")
library.define("dummy_scale(Tensor input) -> Tensor")
import torch_overlay
"""
    assert "another library has defined dummy_scale" in run_python(code, fake_build(tmp_path / "build")).stderr


# Which names


def test_operator_names_are_those_of_a_build(dummy_build):
    """By PyTorch's rules: python_module says where, `_backward` and what is generated get no binding."""
    [entries] = [edit.arguments["entries"] for edit in load_patches(DUMMY_PATCHES) if edit.id == "dummy-entries"]
    expected = set()
    for entry in yaml.safe_load(entries):
        name = entry["func"].partition("(")[0].partition(".")[0]
        if name.endswith("_backward"):
            continue
        if module := entry.get("python_module"):
            expected.add(f"torch._C._{module}.{name}")
            continue
        variants = entry.get("variants", "function")
        expected |= {f"torch.{name}"} if "function" in variants else set()
        expected |= {f"torch.Tensor.{name}"} if "method" in variants else set()
    assert {"torch._C._nn.dummy_scale", "torch.dummy_cube", "torch.Tensor.dummy_cube_"} <= expected
    check_python(
        f"""
import torch
before = {{owner: set(dir(eval(owner))) for owner in ("torch", "torch.Tensor", "torch._C._nn")}}
import torch_overlay
after = {{f"{{owner}}.{{name}}" for owner in before for name in set(dir(eval(owner))) - before[owner]}}
assert sorted(after) == {sorted(expected)!r}, after
assert "dummy_cube" in torch.__all__ and "dummy_scale" not in torch.__all__
""",
        dummy_build.folder,
    )


def test_public_names(dummy_build):
    check_python(
        f"""
import copy, io, pickle, sys, torch, torch_overlay
assert torch.nn.functional.dummy_scale.__module__ == "torch.nn._dummy"
assert torch.nn.Dummy is torch.nn.modules.Dummy and "Dummy" in torch.nn.modules.__all__
assert torch.nn.Dummy.__module__ == "torch.nn.modules.dummy"
assert b"torch.nn.modules.dummy" in pickle.dumps(torch.nn.Dummy())
assert type(pickle.loads(pickle.dumps(torch.nn.Dummy()))) is torch.nn.Dummy
for module in (torch.nn._dummy, torch.nn.modules.dummy):
    assert module.__file__.startswith({str(dummy_build.folder)!r})
import torch.nn.modules.dummy
""",
        dummy_build.folder,
    )


def test_torch_function_overrides(dummy_build):
    check_python(
        """
import torch
before = torch.overrides.get_overridable_functions()  # caches it
import torch_overlay
F = torch.nn.functional
assert F.dummy_scale in torch.overrides.get_testing_overrides()
assert F.dummy_scale in torch.overrides.get_overridable_functions()[F]
assert torch.overrides.resolve_name(F.dummy_scale) == "torch.nn.functional.dummy_scale"

class Logging(torch.Tensor):
    calls = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})

x = torch.ones(3).as_subclass(Logging)
F.dummy_scale(x)
assert F.dummy_scale in Logging.calls
assert type(x.dummy_cube()) is Logging
""",
        dummy_build.folder,
    )


def test_slow_modules_are_changed_when_they_are_imported(dummy_build):
    check_python(
        """
import sys, torch, torch_overlay
assert "torch._dynamo.trace_rules" not in sys.modules
assert "torch.testing._internal.opinfo" not in sys.modules
import torch._dynamo.trace_rules as rules
assert rules.torch_c_binding_in_graph_functions["torch._C._nn.dummy_scale"] is rules.TorchInGraphFunctionVariable
assert torch.ops.aten.dummy_scale in rules.get_torch_obj_rule_map()
""",
        dummy_build.folder,
    )


@pytest.mark.parametrize(
    "first",
    (
        "import torch.testing._internal.common_methods_invocations, torch_overlay",
        "import torch_overlay, torch.testing._internal.common_methods_invocations",
        "import torch_overlay",
    ),
)
def test_op_db(dummy_build, first):
    check_python(
        f"""
import torch
{first}
from torch_overlay import testing
testing.op_db()
from torch.testing._internal.common_methods_invocations import op_db
[dummy] = testing.op_db()
assert dummy.name == "nn.functional.dummy_scale" and sum(op is dummy for op in op_db) == 1
[sample] = dummy.sample_inputs("cpu", torch.float)
assert torch.equal(dummy(sample.input), sample.input)
""",
        dummy_build.folder,
    )


def test_build_info(dummy_build):
    check_python(
        f"""
import torch, torch_overlay
info = torch_overlay.build_info()
assert info["mode"] == "wheel" and info["folder"] == {str(dummy_build.folder)!r}
assert info["torch"]["version"] == torch.__version__ and "dummy_scale" in info["operators"]
assert torch_overlay.__version__
""",
        dummy_build.folder,
    )


def test_importing_in_several_threads(dummy_build):
    check_python(
        """
import threading, torch
results = []
def work():
    import torch_overlay
    results.append(torch.nn.Dummy()(torch.ones(3)))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(results) == 8 and torch.nn.modules.__all__.count("Dummy") == 1
""",
        dummy_build.folder,
    )


def test_an_edit_that_cannot_be_replayed(tmp_path, dummy_build):
    folder = tmp_path / "build"
    shutil.copytree(dummy_build.folder, folder, ignore=shutil.ignore_patterns("objects", "target", ".lock"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["python_edits"]["torch.nn.functional"][0]["statement"] = "from torch.nn import nothing_like_it"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "cannot replay an edit of torch.nn.functional" in run_python(IMPORT, folder).stderr


# The manifest


def test_python_edits_come_from_the_patch_files():
    edits = python_edits(load_patches(DUMMY_PATCHES), VERSION)
    assert list(edits) == [
        "torch._dynamo.trace_rules",
        "torch.nn.functional",
        "torch.nn.modules",
        "torch.overrides",
        "torch.testing._internal.opinfo.definitions",
    ]
    assert edits["torch.nn.modules"][1] == {"operation": "add_to_all", "names": ["Dummy"], "after": "Dropout3d"}


def test_an_edit_that_no_import_can_replay_is_refused_at_build_time():
    edit = next(edit for edit in load_patches(DUMMY_PATCHES) if edit.target == "torch/overrides.py")
    other = type(edit)(**{**edit.__dict__, "operation": "add_argument"})
    with pytest.raises(OverlayError, match="cannot replay `add_argument`"):
        python_edits([other], VERSION)


def test_extended_packages():
    files = ["torch/nn/_a.py", "torch/nn/modules/b.py", "torch/new/__init__.py", "torch/new/c.py", "torch/new/sub/d.py"]
    assert extended_packages(files) == ["torch", "torch.nn", "torch.nn.modules"]


def test_the_projects_own_edits_can_be_replayed():
    edits = python_edits(load_patches(), VERSION)
    assert any(edit["operation"] == "add_to_all" for edit in edits["torch.nn.modules"])
