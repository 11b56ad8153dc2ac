"""Fetching: the real trees of the reference release and of Debian, and what happens when it goes wrong."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from overlay import debian, fetch, trees
from overlay.errors import OverlayError
from overlay.paths import REPO
from packaging.version import Version
from test_trees import SITE, source_tree, write_wheel


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Trees and downloaded wheels below tmp_path, and no torch installed."""
    monkeypatch.setattr(trees, "TREES", tmp_path / "trees")
    monkeypatch.setattr(fetch, "_WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(fetch, "installed_version", lambda: None)
    return tmp_path


def download_by(monkeypatch, script: str) -> None:
    """Replaces pip by a shell script; $1 is the folder to put the wheel into."""
    monkeypatch.setattr(fetch, "download_command", lambda _, __, folder: ["sh", "-ec", script, "sh", str(folder)])


def everything(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*"))


def test_wheel_of_the_reference_release(tree_2_14_1):
    tree = trees.open_tree(tree_2_14_1)
    assert (tree.kind, tree.version.base_version) == ("wheel", "2.14.1")
    for name in (
        trees.NATIVE_FUNCTIONS,
        "aten/src/ATen/native/tags.yaml",
        "aten/src/ATen/templates/RegisterSchema.cpp",
        "tools/autograd/derivatives.yaml",
        "torch/csrc/autograd/function.h",
        "aten/src/ATen/cuda/CUDAContext.h",
        "c10/core/Device.h",
    ):
        assert (tree.root / name).is_file(), name


def test_debian_source(tree_2_6_0):
    tree = trees.open_tree(tree_2_6_0)
    assert (tree.kind, tree.version) == ("source", Version("2.6.0"))
    assert "Debian pytorch (2.6.0" in tree.describe()
    assert (tree.root / "test/test_nn.py").is_file()
    applied = (tree.root / ".pc" / "applied-patches").read_text().splitlines()
    assert applied, "Debian's patches are applied"


def test_the_installed_torch_needs_no_download(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "TREES", tmp_path)
    download_by(monkeypatch, "exit 1")
    root = fetch.fetch_tree(fetch.installed_version())
    assert root == tmp_path / fetch.installed_version()
    assert trees.open_tree(root).origin.startswith("installed in")


def test_a_wheel_is_downloaded_once(folders, monkeypatch, capfd):
    write_wheel(folders / "torch-2.14.1.whl", SITE)
    download_by(monkeypatch, f'mkdir "$1"; cp {folders}/torch-2.14.1.whl "$1"')
    root = fetch.fetch_tree("2.14.1")
    assert root == folders / "trees" / "2.14.1"
    download_by(monkeypatch, "exit 1")
    assert fetch.fetch_tree("2.14.1") == root
    assert "already there" in capfd.readouterr().err
    assert fetch.fetch_tree("2.14.1", platform="macos-arm64").name == "2.14.1-macos-arm64"


def test_a_failing_download_leaves_nothing(folders, monkeypatch):
    download_by(monkeypatch, 'mkdir "$1"; echo half > "$1/torch-2.14.1.whl"; exit 1')
    with pytest.raises(OverlayError, match="pip could not download"):
        fetch.fetch_tree("2.14.1")
    assert everything(folders) == ["macos-arm64", "wheels"]


def test_an_interrupted_download_leaves_nothing_and_goes_on(folders, monkeypatch):
    script = f"""
import sys
from pathlib import Path
from overlay import fetch, trees
trees.TREES, fetch._WHEELS = Path({str(folders)!r}, "trees"), Path({str(folders)!r}, "wheels")
half = "mkdir {{0}}; echo half > {{0}}/torch-2.whl; exec sleep 60"
fetch.download_command = lambda _, __, folder: ["sh", "-c", half.format(folder)]
fetch.fetch_tree("2.14.1", "wheel")
"""
    environment = {**os.environ, "PYTHONPATH": str(REPO / "scripts")}
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, start_new_session=True, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not list(folders.rglob("torch-2.whl")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert everything(folders) == ["macos-arm64", "wheels"]

    write_wheel(folders / "torch-2.14.1.whl", SITE)
    download_by(monkeypatch, f'mkdir "$1"; cp {folders}/torch-2.14.1.whl "$1"')
    assert fetch.fetch_tree("2.14.1").is_dir()


@pytest.mark.parametrize("output", ["torch (2.15.0)\nAvailable versions: 2.15.0, 2.14.1\n", "torch (2.15.0+cpu)\n"])
def test_newest_is_the_first_that_pip_names(monkeypatch, output):
    result = subprocess.CompletedProcess([], 0, output, "")
    monkeypatch.setattr(fetch.subprocess, "run", lambda *_, **__: result)
    assert fetch.newest_version() == "2.15.0"


def test_newest_without_a_network(monkeypatch):
    result = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for torch")
    monkeypatch.setattr(fetch.subprocess, "run", lambda *_, **__: result)
    with pytest.raises(OverlayError, match="VERSION=newest: pip could not tell .* No matching distribution"):
        fetch.newest_version()


def test_git_command(capsys, monkeypatch):
    arguments = ["2.14.1", "--source", "git", "--dry-run"]
    assert command_line(arguments) == 0
    command = capsys.readouterr().out.split()
    assert " ".join(command[:-2]) == ("git clone --depth 1 --branch v2.14.1 --recurse-submodules --shallow-submodules")
    assert command[-2].endswith("/pytorch/pytorch.git") and command[-1].endswith("build/trees/2.14.1-git")


def test_git_clone_of_a_tag(folders, monkeypatch):
    upstream = source_tree(folders / "upstream", "2.14.1")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "all"], ["tag", "v2.14.1"]):
        subprocess.run(["git", "-C", upstream, *command], check=True)
    monkeypatch.setattr(fetch, "REPOSITORY", upstream.as_uri())
    tree = trees.open_tree(fetch.fetch_tree("2.14.1", "git"))
    assert (tree.root.name, tree.origin, str(tree.version)) == ("2.14.1-git", "git checkout", "2.14.1")
    with pytest.raises(OverlayError, match="git clone of v2.14.2"):
        fetch.fetch_tree("2.14.2", "git")
    assert everything(folders / "trees").count("2.14.2-git") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2.14"], "VERSION=2.14: a release is named"),
        (["2.14.1", "--source", "debian"], "versions.toml names no Debian release"),
        (["2.11.0", "--source", "installed"], "SOURCE=installed takes the torch of this interpreter"),
        (["2.14.1", "--source", "git", "--platform", "host"], "PLATFORM=host: it chooses a wheel"),
        (["2.6.0", "--dry-run"], "only wheel and git download by one command"),
    ],
)
def test_refusals(folders, arguments, message):
    with pytest.raises(OverlayError) as error:
        command_line(arguments)
    assert message in str(error.value)


def test_debian_mirrors_of_any_list_format():
    uris = """
'http://mirror.example/debian/dists/bookworm/InRelease' mirror_InRelease 0
'http://mirror.example/debian/dists/bookworm-updates/InRelease' updates_InRelease 0
'http://security.example/debian-security/dists/bookworm-security/InRelease' security_InRelease 0
'https://deb.nodes.example/node_20.x/dists/nodistro/InRelease' nodes_InRelease 0
'mirror+file:/etc/apt/mirrors/debian.list/dists/trixie/InRelease' list_InRelease 0
"""
    found = debian.parse_mirrors(uris, {"bookworm", "trixie"})
    assert found == ["http://mirror.example/debian", "mirror+file:/etc/apt/mirrors/debian.list"]


def unsigned_mirror(root: Path) -> str:
    """A Debian archive that is right in everything but the signature."""
    description = root / "pool" / "pytorch_2.6.0-1.dsc"
    index = root / "dists" / "trixie" / "main" / "source" / "Sources"
    for file in (description, index):
        file.parent.mkdir(parents=True)
    description.write_text("Source: pytorch\n")
    index.write_text(
        "Package: pytorch\nVersion: 2.6.0-1\nDirectory: pool\n"
        f"Checksums-Sha256:\n {sha256(description)} {description.stat().st_size} {description.name}\n"
    )
    (root / "dists" / "trixie" / "Release").write_text(
        "Origin: Debian\nSuite: stable\nCodename: trixie\nComponents: main\nDate: Sat, 09 Aug 2025 09:00:00 UTC\n"
        f"SHA256:\n {sha256(index)} {index.stat().st_size} main/source/Sources\n"
    )
    return f"file:{root}"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_unsigned_archive_is_refused(folders, monkeypatch, capfd):
    mirror = unsigned_mirror(folders / "mirror")
    monkeypatch.setattr(debian, "BUILD", folders / "build")
    monkeypatch.setattr(debian, "mirrors", lambda: [mirror])
    with pytest.raises(OverlayError, match="no configured mirror gave its source package"):
        fetch.fetch_tree("2.6.0")
    assert "is not signed" in capfd.readouterr().err
    assert not (folders / "trees" / "2.6.0").exists()


@pytest.mark.parametrize("tool", ["apt-get", "dpkg-source"])
def test_a_machine_that_is_not_debian(folders, monkeypatch, tool):
    monkeypatch.setattr(debian.shutil, "which", lambda name: None if name == tool else name)
    with pytest.raises(OverlayError, match=f"^{tool}: "):
        fetch.fetch_tree("2.6.0")


def command_line(arguments: list[str]) -> int:
    from argparse import ArgumentParser

    parser = ArgumentParser()
    fetch.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["fetch", *arguments])
    return parsed.run(parsed)
