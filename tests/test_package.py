"""`make package`: wheels that install and import where nothing of this repository is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import source_mode_helpers as helpers
from overlay import package
from overlay.errors import OverlayError
from overlay.source_mode.switches import overlay_version

CODE = """
import torch, torch_overlay
assert torch_overlay.build_info()["folder"].startswith({site!r})
assert torch_overlay.__version__ == {version!r}
x = torch.arange(3.0)
assert torch.equal(torch.dummy_cube(x), x**3)
"""


@pytest.fixture
def fresh(tmp_path) -> Path:
    """The site-packages of a new environment, which sees this one's torch and nothing else of the repository."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return site


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TORCH"))}
    python = site.parents[2] / "bin" / "python"
    return subprocess.run([python, "-c", code], cwd=site.parents[2], env=environment, capture_output=True, text=True)


def install(site: Path, wheel: Path) -> None:
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], check=True, stdout=subprocess.DEVNULL)


def test_a_wheel_of_wheel_mode(tmp_path, dummy_build, fresh):
    wheel = package.package_wheel_mode(dummy_build.folder, tmp_path / "dist")
    torch = dummy_build.target.version.replace("+", ".")
    version = f"{overlay_version()}+torch.{torch}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"torch_overlay-{version}-py3-none-{platform}.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "torch_overlay/build/libaten_overlay.so" in names and "torch_overlay/build/manifest.json" in names
    assert not [name for name in names if "__pycache__" in name]
    install(fresh, wheel)
    result = run(fresh, CODE.format(site=str(fresh), version=version))
    assert result.returncode == 0, result.stderr


def test_without_the_wheel_there_is_nothing_to_import(fresh):
    assert "No module named 'torch_overlay'" in run(fresh, "import torch; import torch_overlay").stderr


def test_a_wheel_of_a_patched_torch(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", helpers.path_with(tmp_path / "bin"))
    tree = helpers.make_tree(tmp_path / "tree")
    wheel = package.package_torch(helpers.job(tree), tmp_path / "dist")
    assert wheel.name.startswith(f"torch-2.6.0+overlay.{overlay_version()}-") and wheel.parent == tmp_path / "dist"
    assert helpers.calls(tree)[1:] == ["build_ext --inplace", f"bdist_wheel --dist-dir {tmp_path / 'dist'}"]


def test_an_unpatched_tree_is_refused(tmp_path, monkeypatch):
    tree = helpers.make_tree(tmp_path / "tree", patched=False)
    with pytest.raises(OverlayError, match="nothing of the overlay is in this tree"):
        package.package_torch(helpers.job(tree), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()

