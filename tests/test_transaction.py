"""Writing to a tree: whatever fails, and whenever, the tree is as it was or `apply` and `revert` go on from there.

The faults are injected at every system call that writes, one run each, in a child process.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from edit_helpers import Setting, snapshot
from overlay import __main__, transaction
from overlay.state import load_state

STRIDE = 11  # 1 passes as well, in minutes
CALLS = ("open", "write", "fsync", "fchmod", "fchown", "replace", "unlink", "mkdir", "rmdir")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def run(*arguments: object) -> int:
    return __main__.main([str(argument) for argument in arguments])


def in_child(action: Callable[[], int], log: Path) -> tuple[int, str]:
    """Exit code and error output of `action` in a forked process; minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stdout = open(os.devnull, "w")
            sys.stderr = open(log, "w")
            code = action()
        except BaseException as error:  # nothing may come out of main()
            print("Traceback", repr(error), file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), log.read_text()


def with_fault(number: int, fault: Callable[[], None], *, after: bool = False, lasting: bool = False):
    """Patches the system calls so that the one of that number, or each from it on, has the fault."""
    count = 0

    def wrap(real):
        def call(*arguments, **keywords):
            nonlocal count
            count += 1
            due = count == number or (lasting and count > number)
            if due and not after:
                fault()
            result = real(*arguments, **keywords)
            if due and after:
                fault()
            return result

        return call

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))
    return lambda: count


def raising(number: int) -> Callable[[], None]:
    def fault() -> None:
        raise OSError(number, os.strerror(number), "some/file")

    return fault


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(params=["apply", "apply again", "revert"])
def scene(request: pytest.FixtureRequest, setting: Setting):
    """A command about to run, the tree before it, and the trees that `apply` and `revert` should come to."""
    original = snapshot(setting.tree)
    if request.param != "apply":
        assert run("apply", setting.tree) == 0
    if request.param == "apply again":
        setting.edit_patch("torch/functional.py.yaml", "[twice]", "[twice, thrice]")
        setting.edit_patch("aten/src/ATen/native/native_functions.yaml.yaml", "after: conv", "after: add")
        (setting.overlay / "torch/_twice.py").rename(setting.overlay / "torch/_thrice.py")
    before = snapshot(setting.tree)
    pristine = setting.tree.with_name("pristine")
    shutil.copytree(setting.tree, pristine)
    assert run("apply", setting.tree) == 0
    applied = snapshot(setting.tree)

    def reset() -> None:
        shutil.rmtree(setting.tree)
        shutil.copytree(pristine, setting.tree)

    reset()
    return setting, request.param.split()[0], before, applied, original, reset


def writes(scene, log: Path) -> int:
    """The number of system calls the command makes."""
    setting, command, *_, reset = scene

    def count() -> int:
        calls = with_fault(0, lambda: None)
        assert run(command, setting.tree) == 0
        log.with_suffix(".count").write_text(str(calls()))
        return 0

    assert in_child(count, log)[0] == 0
    reset()
    return int(log.with_suffix(".count").read_text())


def assert_recovers(scene) -> None:
    """From wherever a command was left, `revert` and `apply` both reach their ends."""
    setting, _, before, applied, original, _ = scene
    left = setting.tree.with_name("left")
    shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(setting.tree, left)
    assert run("revert", setting.tree) == 0
    assert snapshot(setting.tree) == original
    shutil.rmtree(setting.tree)
    left.rename(setting.tree)
    assert run("apply", setting.tree) == 0
    assert snapshot(setting.tree) == applied


def test_no_space_at_any_call(scene, tmp_path):
    setting, command, before, *_ = scene
    for call in range(1, writes(scene, tmp_path / "log") + 1):
        def action(call=call) -> int:
            with_fault(call, raising(errno.ENOSPC))
            return run(command, setting.tree)

        code, output = in_child(action, tmp_path / "log")
        assert (code, snapshot(setting.tree) == before) == (1, True), (call, output)
        assert os.strerror(errno.ENOSPC) in output and "Traceback" not in output
        assert output.count("error:") == 1 and "  rule: " in output


def test_read_only_from_any_call_on(scene, tmp_path):
    setting, command, before, *_, reset = scene
    for call in range(1, writes(scene, tmp_path / "log") + 1):
        def action(call=call) -> int:
            with_fault(call, raising(errno.EROFS), lasting=True)
            return run(command, setting.tree)

        code, output = in_child(action, tmp_path / "log")
        assert code == 1 and output.count("error:") == 1 and "Traceback" not in output, (call, output)
        if snapshot(setting.tree) != before:
            assert "`make revert`" in output, (call, output)
            assert_recovers(scene)
            reset()


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "again and again"])
def test_interrupt_after_any_call(scene, lasting, tmp_path):
    setting, command, before, *_ = scene
    for call in range(1, writes(scene, tmp_path / "log") + 1):
        def action(call=call) -> int:
            with_fault(call, interrupt, after=True, lasting=lasting)
            return run(command, setting.tree)

        code, output = in_child(action, tmp_path / "log")
        assert code == 1 and "interrupted; " in output and "Traceback" not in output, (call, output)
        assert snapshot(setting.tree) == before, (call, output)


def test_kill_before_any_call(scene, tmp_path):
    setting, command, before, *_, reset = scene
    for call in range(1, writes(scene, tmp_path / "log") + 1):
        def action(call=call) -> int:
            with_fault(call, kill)
            return run(command, setting.tree)

        code, _ = in_child(action, tmp_path / "log")
        assert code == -signal.SIGKILL
        assert_recovers(scene)
        reset()


def test_interrupt_between_lines(scene, tmp_path):
    """SIGINT arrives between two lines of the transaction, at every 11th of those that it runs."""
    setting, command, before, *_, reset = scene
    call, reached = 0, True
    while reached:
        call += STRIDE

        def action(call=call) -> int:
            count = 0

            def trace(frame, event, argument):
                nonlocal count
                if frame.f_code.co_filename != transaction.__file__:
                    return None
                if event == "line":
                    count += 1
                    if count == call:
                        interrupt()
                return trace

            sys.settrace(trace)
            code = run(command, setting.tree)
            sys.settrace(None)
            return code if count >= call else 99

        code, output = in_child(action, tmp_path / "log")
        reached = code != 99
        if reached:
            assert code in (0, 1) and "Traceback" not in output, (call, output)
            if snapshot(setting.tree) != before:
                assert_recovers(scene)
        reset()
    assert call > 100


def test_status_tells_of_an_interrupted_apply(setting, tmp_path, capfd):
    def action() -> int:
        with_fault(40, kill)
        return run("apply", setting.tree)

    assert in_child(action, tmp_path / "log")[0] == -signal.SIGKILL
    assert not load_state(setting.tree).complete
    assert run("status", setting.tree) == 0
    assert "interrupted half way" in capfd.readouterr().out


def test_one_apply_at_a_time(setting, tmp_path, capfd):
    with transaction.locked(setting.tree):
        before = snapshot(setting.tree)
        assert run("apply", setting.tree) == 1
    assert "one apply, revert or build runs at a time" in capfd.readouterr().err
    assert snapshot(setting.tree) == before
    assert run("apply", setting.tree) == 0


def test_an_editor_saving_a_file_meanwhile_is_noticed(setting, capfd, monkeypatch):
    target = setting.tree / "torch/functional.py"
    real = transaction._stage

    def stage_and_save(root, path, data, mode):
        real(root, path, data, mode)
        target.write_text("import torch\n\n__all__ = []\n")

    monkeypatch.setattr(transaction, "_stage", stage_and_save)
    before = snapshot(setting.tree)
    assert run("apply", setting.tree) == 1
    assert "torch/functional.py" in capfd.readouterr().err
    monkeypatch.undo()
    after = snapshot(setting.tree)
    assert after.pop("torch/functional.py")[0] == b"import torch\n\n__all__ = []\n"  # the editor's, not ours
    before.pop("torch/functional.py")
    assert after == before


@pytest.mark.parametrize("under_git", [False, True])
def test_nothing_else_changes(setting, capfd, monkeypatch, under_git):
    if under_git:
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
            git = ["git", "-C", str(setting.tree), "-c", "user.name=a", "-c", "user.email=a"]
            subprocess.run([*git, *command], check=True)
    other = setting.tree / ("torch/__init__.py" if not under_git else "version.txt")
    real = transaction._put

    def put_and_touch(root, path, data):
        real(root, path, data)
        other.write_text("2.6.0\n# more\n")

    before = snapshot(setting.tree)
    monkeypatch.setattr(transaction, "_put", put_and_touch)
    assert run("apply", setting.tree) == 1
    error = capfd.readouterr().err
    assert str(other.relative_to(setting.tree)) in error and "exactly the planned files change" in error
    monkeypatch.undo()
    other.write_bytes(before[str(other.relative_to(setting.tree))][0])
    assert snapshot(setting.tree) == before


def test_times_and_modes(setting):
    functional, untouched = setting.tree / "torch/functional.py", setting.tree / "aten/src/ATen/native/Add.cpp"
    functional.chmod(0o640)
    for path in setting.tree.rglob("*"):
        os.utime(path, (0, 1_000_000_000))
    start = time.time() - 1
    assert run("apply", setting.tree) == 0
    assert functional.stat().st_mtime > start and functional.stat().st_mode & 0o777 == 0o640
    assert untouched.stat().st_mtime == 1_000_000_000
    assert (setting.tree / "test/run_twice.sh").stat().st_mode & 0o777 == 0o755
    # An apply that only changes one file leaves the times of the others.
    setting.edit_patch("torch/functional.py.yaml", "[twice]", "[twice, thrice]")
    native = setting.tree / "aten/src/ATen/native/native_functions.yaml"
    for path in (functional, native):
        os.utime(path, (0, 1_000_000_000))
    assert run("apply", setting.tree) == 0
    assert functional.stat().st_mtime > start and native.stat().st_mtime == 1_000_000_000
    assert run("revert", setting.tree) == 0
    assert native.stat().st_mtime > start and functional.stat().st_mode & 0o777 == 0o640
    assert untouched.stat().st_mtime == 1_000_000_000


def test_owner_is_kept(setting):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    functional = setting.tree / "torch/functional.py"
    os.chown(functional, 1234, 1234)
    assert run("apply", setting.tree) == 0
    assert functional.stat().st_uid == 1234
