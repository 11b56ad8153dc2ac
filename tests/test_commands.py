"""The commands end to end, on a small tree and on the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from edit_helpers import NATIVE, snapshot, write
from overlay import __main__
from overlay.model import load_patches
from overlay.paths import OVERLAYS, PATCHES, REPO
from overlay.state import STATE_FILE, load_state
from overlay.wheels import MARKER

NATIVE_FILE = "aten/src/ATen/native/native_functions.yaml"


def run(*arguments: object) -> int:
    return __main__.main([str(argument) for argument in arguments])


def git(tree: Path, *arguments: str, **options) -> str:
    command = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def commit(tree: Path) -> None:
    if not (tree / ".git").exists():
        git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "a")


def test_apply(setting, capfd):
    assert run("apply", setting.tree) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"(1/4) entries: {NATIVE_FILE}:5: to apply",
        "(2/4) later: torch/functional.py: not for this version",
        "(3/4) import: torch/functional.py:1: to apply",
        "(4/4) public: torch/functional.py:4: to apply",
        "apply: OK; 3 edits stand, 5 files written",
    ]
    assert (setting.tree / NATIVE_FILE).read_text() == NATIVE + "\n- func: twice(Tensor self) -> Tensor\n"
    assert (setting.tree / "torch/functional.py").read_text() == (
        'import torch\nfrom ._twice import twice\n\n__all__ = [\n    "add",\n    "twice",\n    "abs",\n]\n')
    assert (setting.tree / "torch/_twice.py").read_bytes() == (setting.overlay / "torch/_twice.py").read_bytes()


def test_apply_twice_is_a_no_op_and_revert_restores_every_byte(setting, capfd):
    before = snapshot(setting.tree)
    run("apply", setting.tree)
    applied = snapshot(setting.tree)
    times = {path: path.stat().st_mtime_ns for path in setting.tree.rglob("*")}
    assert run("apply", setting.tree) == 0 and "nothing to do" in capfd.readouterr().out
    assert snapshot(setting.tree) == applied
    assert {path: path.stat().st_mtime_ns for path in setting.tree.rglob("*")} == times
    assert run("revert", setting.tree) == 0 and snapshot(setting.tree) == before
    assert run("revert", setting.tree) == 0 and "nothing is applied" in capfd.readouterr().out


def test_check_and_diff_and_patch_write_nothing(setting, capfd, tmp_path):
    before = snapshot(setting.tree)
    assert run("check", setting.tree) == 0
    assert "3 to apply, 1 not for this version; overlay files: 3 to apply" in capfd.readouterr().out
    assert run("diff", setting.tree) == 0
    assert run("patch", setting.tree, "--output", tmp_path / "a.patch") == 0
    assert snapshot(setting.tree) == before
    diff = (tmp_path / "a.patch").read_text()
    assert capfd.readouterr().out.startswith(diff)
    run("apply", setting.tree)
    capfd.readouterr()
    assert run("diff", setting.tree) == 0 and capfd.readouterr().out == diff
    assert run("check", setting.tree) == 0
    assert "3 applied, 1 not for this version; overlay files: 3 applied" in capfd.readouterr().out


@pytest.mark.parametrize("native", [NATIVE, NATIVE.rstrip("\n")], ids=["newline", "no newline"])
def test_git_takes_the_patch(setting, native, tmp_path):
    """And comes to the same tree: new files, the executable bit, an empty file, ends without a newline."""
    write(setting.tree, {NATIVE_FILE: native})
    write(setting.overlay, {"torch/empty.py": "", "torch/open_end.py": "x = 1", "torch/a b.py": "x = 1\n"})
    commit(setting.tree)
    assert run("patch", setting.tree, "--output", tmp_path / "a.patch") == 0
    git(setting.tree, "apply", str(tmp_path / "a.patch"))
    patched = snapshot(setting.tree)
    git(setting.tree, "checkout", "-q", ".")
    git(setting.tree, "clean", "-qfd")
    assert run("apply", setting.tree) == 0
    applied = snapshot(setting.tree)
    applied.pop(STATE_FILE)
    assert applied == patched


def test_refusals_are_all_listed_and_nothing_is_written(setting, capfd):
    write(setting.tree, {
        "torch/functional.py": "import torch\nimport torch\n__all__ = []\n",
        "torch/_twice.py": "another\n",
        NATIVE_FILE: NATIVE + "\n- func: twice(Tensor self) -> Tensor\n",
    })
    before = snapshot(setting.tree)
    for command in ("apply", "check"):
        assert run(command, setting.tree) == 1
        output = capfd.readouterr()
        assert "(1/4) entries: aten/src/ATen/native/native_functions.yaml: refused" in output.out
        assert f"error: {NATIVE_FILE}:10 [" in output.err and "already upstream: the entry `twice`" in output.err
        assert "fits 2 places (lines 1, 2)" in output.err and "`__all__` has no `'add'`" in output.err
        assert "error: torch/_twice.py\n  rule: an overlay file goes where no other file stands" in output.err
        assert output.err.count("error: ") == 4
        assert snapshot(setting.tree) == before
    assert run("patch", setting.tree, "--output", setting.tree.parent / "a.patch") == 1
    assert not (setting.tree.parent / "a.patch").exists()


def test_a_file_missing_from_a_source_tree_is_refused(setting, capfd):
    (setting.tree / "torch/functional.py").unlink()
    assert run("apply", setting.tree) == 1
    assert "there is no such file in PyTorch 2.6.0" in capfd.readouterr().err


def test_a_file_missing_from_a_wheel_tree_is_reported(setting, capfd):
    write(setting.tree, {MARKER: '{"version": "2.6.0", "origin": "a test"}'})
    (setting.tree / "torch/functional.py").unlink()
    assert run("apply", setting.tree) == 0
    output = capfd.readouterr().out
    assert "(3/4) import: torch/functional.py: not in this tree" in output and "1 edits stand" in output


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_file_changed_since_is_named(setting, capfd, command):
    run("apply", setting.tree)
    for path in ("torch/functional.py", "torch/_twice.py"):
        (setting.tree / path).write_text("changed\n")
    before = snapshot(setting.tree)
    capfd.readouterr()
    assert run(command, setting.tree) == 1
    error = capfd.readouterr().err
    assert "error: torch/functional.py" in error and "error: torch/_twice.py" in error
    assert error.count("it was changed since the patches were applied") >= 2 and "make rebase" in error
    assert snapshot(setting.tree) == before
    assert run("status", setting.tree) == 0
    assert "changed since: torch/_twice.py" in capfd.readouterr().out


def test_files_put_back_by_hand_are_applied_again(setting):
    run("apply", setting.tree)
    applied = snapshot(setting.tree)
    (setting.tree / NATIVE_FILE).write_text(NATIVE)
    (setting.tree / "torch/_twice.py").unlink()
    assert run("apply", setting.tree) == 0 and snapshot(setting.tree) == applied


def test_changed_patches_move_the_tree_to_the_new_result(setting):
    before = snapshot(setting.tree)
    run("apply", setting.tree)
    setting.edit_patch("torch/functional.py.yaml", "after: add", "after: abs")
    (setting.patches / f"{NATIVE_FILE}.yaml").unlink()
    (setting.overlay / "torch/_twice.py").write_text("def twice(x):\n    return x + x\n")
    (setting.overlay / "aten/src/ATen/native/cpu/kernels/Twice.cpp").unlink()
    assert run("apply", setting.tree) == 0
    moved = snapshot(setting.tree)
    assert (setting.tree / NATIVE_FILE).read_text() == NATIVE
    assert not (setting.tree / "aten/src/ATen/native/cpu").exists()
    run("revert", setting.tree)
    assert snapshot(setting.tree) == before
    run("apply", setting.tree)
    assert snapshot(setting.tree) == moved


def test_an_overlay_file_that_stands_there_already_stays(setting):
    write(setting.tree, {"torch/_twice.py": (setting.overlay / "torch/_twice.py").read_bytes()})
    before = snapshot(setting.tree)
    assert run("apply", setting.tree) == 0 and run("revert", setting.tree) == 0
    assert snapshot(setting.tree) == before


def test_somebody_elses_files_in_our_folders_stay(setting):
    run("apply", setting.tree)
    mine = setting.tree / "aten/src/ATen/native/cpu/kernels/mine.txt"
    mine.write_text("mine\n")
    assert run("revert", setting.tree) == 0
    assert mine.read_text() == "mine\n" and list(mine.parent.iterdir()) == [mine]


def test_a_read_only_file_is_refused(setting, capfd):
    (setting.tree / "torch/functional.py").chmod(0o444)
    before = snapshot(setting.tree)
    assert run("apply", setting.tree) == 1
    error = capfd.readouterr().err
    assert "error: torch/functional.py\n" in error and "read-only" in error and "chmod u+w" in error
    assert snapshot(setting.tree) == before


@pytest.mark.parametrize(("folder", "rule", "count"), [
    ("torch", "its folder is writable", 2),  # for functional.py and _twice.py
    (".", "a tree to change is writable", 1),
])
def test_a_folder_that_cannot_be_written_is_refused(setting, capfd, monkeypatch, folder, rule, count):
    locked, real = setting.tree / folder, os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked and real(path, mode))
    before = snapshot(setting.tree)
    assert run("apply", setting.tree) == 1
    error = capfd.readouterr().err
    assert rule in error and error.count("error: ") == count and snapshot(setting.tree) == before


def test_nothing_is_written_through_a_link_out_of_the_tree(setting, capfd):
    outside = setting.tree.with_name("site-packages")
    shutil.copytree(setting.tree / "torch", outside)
    shutil.rmtree(setting.tree / "torch")
    (setting.tree / "torch").symlink_to(outside)
    before = snapshot(outside)
    assert run("apply", setting.tree) == 1
    assert "not behind a symbolic link" in capfd.readouterr().err and snapshot(outside) == before
    (setting.tree / "torch").unlink()
    (setting.tree / "torch").mkdir()
    for file in outside.iterdir():
        (setting.tree / "torch" / file.name).symlink_to(file)
    assert run("apply", setting.tree) == 1
    assert "not behind a symbolic link" in capfd.readouterr().err and snapshot(outside) == before


def test_uncommitted_changes_in_a_git_tree(setting, capfd):
    commit(setting.tree)
    (setting.tree / "version.txt").write_text("2.6.0a0\n")  # of no concern to any edit
    assert run("apply", setting.tree) == 0 and run("revert", setting.tree) == 0
    assert git(setting.tree, "status", "--porcelain") == " M version.txt\n"
    with (setting.tree / "torch/functional.py").open("a") as file:
        file.write("# mine\n")
    assert run("apply", setting.tree) == 1
    assert "no uncommitted changes" in capfd.readouterr().err


def update(tree: Path) -> None:
    """A newer PyTorch: entries before ours, an overlay folder of its own."""
    write(tree, {NATIVE_FILE: NATIVE.replace("- func: conv", "- func: new(Tensor self) -> Tensor\n\n- func: conv")})


def test_rebase_after_an_update_of_the_files(setting, capfd):
    before = snapshot(setting.tree)
    run("apply", setting.tree)
    update(setting.tree)
    expected = (setting.tree / NATIVE_FILE).read_text()
    assert run("apply", setting.tree) == 1
    capfd.readouterr()
    assert run("rebase", setting.tree) == 0
    output = capfd.readouterr().out
    assert f"moved: entries: {NATIVE_FILE}:5 -> {NATIVE_FILE}:7" in output and "moved: import" not in output
    assert "twice" in (setting.tree / NATIVE_FILE).read_text()
    assert run("apply", setting.tree) == 0 and "nothing to do" in capfd.readouterr().out
    run("revert", setting.tree)
    assert (setting.tree / NATIVE_FILE).read_text() == expected
    write(setting.tree, {NATIVE_FILE: NATIVE})
    assert snapshot(setting.tree) == before


@pytest.mark.parametrize("merged", [False, True])
def test_rebase_in_git(setting, capfd, merged):
    """After a checkout that replaced our files, and after one that merged upstream's change into them."""
    commit(setting.tree)
    run("apply", setting.tree)
    git(setting.tree, "stash", "-q")
    update(setting.tree)
    git(setting.tree, "commit", "-qam", "update")
    if merged:
        git(setting.tree, "stash", "pop", "-q")
        assert "twice" in (setting.tree / NATIVE_FILE).read_text()
    assert run("rebase", setting.tree) == 0
    assert "moved: entries" in capfd.readouterr().out
    assert run("revert", setting.tree) == 0
    assert git(setting.tree, "status", "--porcelain") == ""


def test_rebase_keeps_a_local_change(setting, capfd):
    commit(setting.tree)
    run("apply", setting.tree)
    with (setting.tree / "torch/functional.py").open("a") as file:
        file.write("# mine\n")
    assert run("rebase", setting.tree) == 1
    assert "torch/functional.py" in capfd.readouterr().err
    assert (setting.tree / "torch/functional.py").read_text().endswith("# mine\n")


@pytest.mark.parametrize("under_git", [False, True])
def test_rebase_drops_an_edit_whose_versions_ended(setting, capfd, under_git):
    if under_git:
        commit(setting.tree)
    run("apply", setting.tree)
    setting.edit_patch(f"{NATIVE_FILE}.yaml", "  add_entries", '  versions: "<2.7"\n  add_entries')
    entry = "- func: twice(Tensor self) -> Tensor\n" if under_git else "- func: twice(Tensor self, int n=1) -> Tensor\n"
    merged = f"{NATIVE}\n{entry}"  # in git, to the byte what our edit gave
    write(setting.tree, {"version.txt": "2.7.0\n", NATIVE_FILE: merged})
    if under_git:
        git(setting.tree, "commit", "-qm", "update", "version.txt", NATIVE_FILE)
    assert run("rebase", setting.tree) == 0
    assert "gone: entries" in capfd.readouterr().out
    assert (setting.tree / NATIVE_FILE).read_text() == merged
    assert NATIVE_FILE not in load_state(setting.tree).files
    assert run("revert", setting.tree) == 0 and (setting.tree / NATIVE_FILE).read_text() == merged


def test_rebase_needs_something_applied(setting, capfd):
    assert run("rebase", setting.tree) == 1
    assert "none are applied" in capfd.readouterr().err


def test_status(setting, capfd):
    assert run("status", setting.tree) == 0
    assert capfd.readouterr().out.endswith("nothing is applied\n")
    run("apply", setting.tree)
    (setting.patches / f"{NATIVE_FILE}.yaml").unlink()
    capfd.readouterr()
    assert run("status", setting.tree) == 0
    output = capfd.readouterr().out
    assert "PyTorch 2.6.0, source tree" in output and "no longer wanted: entries" in output
    assert "edits: 2 applied" in output


@pytest.mark.parametrize("content", ["", "{}", '{"format": 9}', "[1]"])
def test_a_damaged_state_file_is_refused(setting, capfd, content):
    write(setting.tree, {STATE_FILE: content})
    for command in ("apply", "revert", "status", "check"):
        assert run(command, setting.tree) == 1
        assert "a state file that this tool wrote" in capfd.readouterr().err


def test_revert_needs_no_patches(setting):
    before = snapshot(setting.tree)
    run("apply", setting.tree)
    shutil.rmtree(setting.patches)
    shutil.rmtree(setting.overlay)
    assert run("revert", setting.tree) == 0 and snapshot(setting.tree) == before


def overlay(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "overlay", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(REPO / "scripts")}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_exit_codes(tmp_path):
    assert overlay("check").returncode == 2
    assert overlay("unknown").returncode == 2
    result = overlay("check", tmp_path)
    assert result.returncode == 1 and result.stderr.startswith("error: ") and "Traceback" not in result.stderr


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0", "2.14.1"])
def test_the_patches_on_a_real_tree(version, request, tmp_path, capfd, monkeypatch):
    """Apply, again, and revert, on the files that the patches touch and all that stands beside them."""
    real = request.getfixturevalue(f"tree_{version.replace('.', '_')}")
    tree = tmp_path / "tree"
    patches, *overlays = (shutil.copytree(root, tmp_path / root.name) for root in (PATCHES, *OVERLAYS))
    monkeypatch.setattr("overlay.commands.PATCHES", patches)  # copies, which no editor changes meanwhile
    monkeypatch.setattr("overlay.commands.OVERLAYS", tuple(overlays))
    edits = load_patches(patches)
    targets = {edit.target for edit in edits} | {"version.txt", "torch/__init__.py", MARKER}
    for path in targets | {file.relative_to(root).as_posix() for root in overlays for file in root.rglob("*")}:
        if (real / path).is_file():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(real / path, tree / path)
    before = snapshot(tree)
    commit(tree)

    assert run("apply", tree) == 0
    output = capfd.readouterr().out
    assert f"({len(edits)}/{len(edits)}) " in output and "refused" not in output
    changed = changed_paths(tree)
    assert changed == load_state(tree).files.keys() | {STATE_FILE}
    assert run("apply", tree) == 0 and "nothing to do" in capfd.readouterr().out
    assert run("patch", tree, "--output", tmp_path / "a.patch") == 0
    assert run("revert", tree) == 0 and snapshot(tree) == before
    git(tree, "apply", str(tmp_path / "a.patch"))
    assert changed_paths(tree) == changed - {STATE_FILE}


def changed_paths(tree: Path) -> set[str]:
    return {entry[3:] for entry in git(tree, "status", "--porcelain", "-uall", "-z").split("\0") if entry}
