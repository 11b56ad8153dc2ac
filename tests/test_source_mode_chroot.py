"""The chroot that a release builds in, and what its source package needs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
import source_mode_helpers as helpers
from overlay.errors import OverlayError
from overlay.source_mode import chroot, debian_tree
from overlay.source_mode.machine import Machine
from overlay.trees import open_tree


def as_root(monkeypatch, root: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)


def test_a_machine_without_root_has_no_chroot(tmp_path, monkeypatch):
    as_root(monkeypatch, False)
    with pytest.raises(OverlayError, match="needs root"):
        Machine(tmp_path)
    monkeypatch.setattr(chroot, "CHROOTS", tmp_path)
    with pytest.raises(OverlayError, match="needs root") as error:
        chroot.run(argparse.Namespace(version="2.6.0"))
    assert "sudo" in error.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="entering a chroot needs root")
def test_mounts_end_with_the_command(tmp_path):
    root, shown = tmp_path / "root", tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("seen")
    for folder in ("dev", "proc"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    machine = Machine(root, (Path("/usr"), shown))
    status, output = machine.run(["sh", "-c", "cat file; ls -d /proc/self; test -c /dev/null; echo $SWITCH"], shown,
                                 {"SWITCH": "two words"})  # fmt: skip
    assert (status, output.split("\n")) == (0, ["seen/proc/self", "two words", ""])
    assert machine.run(["sh", "-c", "exit 3"])[0] == 3
    assert str(root) not in Path("/proc/mounts").read_text()
    assert not any((root / "dev").iterdir()) and not any((root / "usr").iterdir())


def test_releases_without_a_debian_release():
    with pytest.raises(OverlayError, match="VERSION=2.14.1"):
        chroot.run(argparse.Namespace(version="2.14.1"))


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    as_root(monkeypatch, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OverlayError, match="debootstrap") as error:
        chroot.make_chroot(chroot._release("2.6.0"), tmp_path / "trixie")
    assert error.value.hint == "apt-get install debootstrap"
    assert not (tmp_path / "trixie").exists()


def test_a_failing_debootstrap_leaves_nothing(tmp_path, monkeypatch):
    as_root(monkeypatch, True)
    helpers.make_program(tmp_path / "bin", "debootstrap", 'mkdir -p "$4"; echo half >"$4/half"; exit 7')
    helpers.make_program(tmp_path / "bin", "unshare", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(chroot.debian, "keyring", lambda: tmp_path)
    monkeypatch.setattr(chroot.debian, "mirrors", lambda: ["http://mirror"])
    with pytest.raises(OverlayError, match="ended with status 7"):
        chroot.make_chroot(chroot._release("2.6.0"), tmp_path / "chroots" / "trixie")
    assert not any((tmp_path / "chroots").iterdir())


def test_removal(tmp_path, monkeypatch, capsys):
    as_root(monkeypatch, True)
    monkeypatch.setattr(chroot, "CHROOTS", tmp_path)
    (tmp_path / "trixie/usr").mkdir(parents=True)
    monkeypatch.setattr(chroot, "_running_in", lambda root: ["42"])
    with pytest.raises(OverlayError, match="nothing runs in it; these do: 42"):
        chroot.remove(argparse.Namespace(version="2.6.0"))
    monkeypatch.setattr(chroot, "_running_in", lambda root: [])
    assert chroot.remove(argparse.Namespace(version="2.6.0")) == 0
    assert not (tmp_path / "trixie").exists()
    assert chroot.remove(argparse.Namespace(version="2.6.0")) == 0 and "not there" in capsys.readouterr().out


def test_processes_are_found_by_their_root(tmp_path):
    assert str(os.getpid()) in chroot._running_in(Path("/"))
    assert chroot._running_in(tmp_path) == []


def test_a_debian_tree_builds_in_its_chroot(tmp_path, monkeypatch):
    as_root(monkeypatch, True)
    monkeypatch.setattr(chroot, "CHROOTS", tmp_path / "chroots")
    root = helpers.make_tree(tmp_path / "tree")
    assert chroot.chroot_of(open_tree(root), None) is None
    (root / "debian").mkdir()
    (root / "debian/rules").touch()
    assert chroot.chroot_of(open_tree(root), None) is None, "none was made"
    (tmp_path / "chroots/trixie").mkdir(parents=True)
    found = chroot.chroot_of(open_tree(root), None)
    assert found == tmp_path / "chroots/trixie"
    machine = chroot.machine_for(open_tree(root), found)
    assert root in machine.folders
    with pytest.raises(OverlayError, match="a chroot was expected"):
        chroot.chroot_of(open_tree(root), tmp_path / "nothing")


@pytest.fixture
def debian(tmp_path, monkeypatch):
    """A tree with Debian's lines, a flatc, and googletest's sources."""
    root = helpers.make_tree(tmp_path / "tree")
    for restored in debian_tree._RESTORED:
        (root / restored.file).parent.mkdir(exist_ok=True)
        (root / restored.file).write_text(f"before\n{restored.debian}\nafter\n")
    serialization = root / "torch/csrc/jit/serialization"
    serialization.mkdir(parents=True)
    (serialization / "mobile_bytecode.fbs").touch()
    (serialization / "mobile_bytecode_generated.h").write_text("of another version")
    helpers.make_program(tmp_path / "bin", "flatc", 'echo generated >"$5/mobile_bytecode_generated.h"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "usr/src/googletest").mkdir(parents=True)
    (tmp_path / "usr/src/googletest/CMakeLists.txt").touch()
    monkeypatch.setattr(Machine, "path", lambda machine, path: tmp_path / path.lstrip("/"))
    return open_tree(root)


def test_preparation(debian):
    debian_tree.prepare(debian, Machine())
    for restored in debian_tree._RESTORED:
        assert (debian.root / restored.file).read_text() == f"before\n{restored.upstream}\nafter\n"
    header = debian.root / "torch/csrc/jit/serialization/mobile_bytecode_generated.h"
    assert header.read_text() == "generated\n"
    assert (debian.root / "third_party/googletest/CMakeLists.txt").exists()


def test_preparing_twice_changes_nothing(debian):
    debian_tree.prepare(debian, Machine())
    before = {path: path.stat().st_mtime_ns for path in debian.root.rglob("*") if "build" not in path.parts}
    debian_tree.prepare(debian, Machine())
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_source_package_is_refused(debian):
    (debian.root / "CMakeLists.txt").write_text("something else")
    with pytest.raises(OverlayError, match="Debian's line stands there once"):
        debian_tree.prepare(debian, Machine())


def test_the_real_tree_has_what_is_restored(tree_2_6_0):
    for restored in debian_tree._RESTORED:
        text = (tree_2_6_0 / restored.file).read_text()
        assert text.count(restored.debian) == 1, restored.file


def test_a_mac_has_no_chroot(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OverlayError, match="needs Linux"):
        chroot.make_chroot(chroot._release("2.6.0"), tmp_path)


def test_a_command_that_is_not_there():
    assert Machine().output(["no-such-program"]) == "" and not Machine().has("no-such-program")
    assert Machine().run(["no-such-program"])[0] == 127
    with pytest.raises(OverlayError, match="ended with status 3"):
        Machine().call(["sh", "-c", "exit 3"], Path("/"), stdout=subprocess.DEVNULL)
