"""`make build` and its kin on a tree that builds in seconds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import pytest
import source_mode_helpers as helpers
from overlay.errors import OverlayError
from overlay.source_mode import build as source_mode
from overlay.source_mode import checks
from overlay.source_mode.progress import Progress
from overlay.source_mode.switches import build_version
from overlay.trees import open_tree
from source_mode_helpers import OURS, THEIRS


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", helpers.path_with(tmp_path / "bin"))
    for name in [*os.environ]:
        if name.startswith(("USE_", "BUILD_", "CMAKE_")) or name in ("CC", "CXX", "KERNELS", "OPT"):
            monkeypatch.delenv(name)
    return helpers.make_tree(tmp_path / "tree")


def object_of(source: str) -> str:
    return f"caffe2/CMakeFiles/torch_cpu.dir/__/{source}.o"


def test_build(tree, capsys):
    source_mode.build(helpers.job(tree))
    assert helpers.objects(tree).keys() == {object_of(source) for source in OURS + THEIRS}
    assert (tree / "torch/lib/libtorch_cpu.so").read_text().startswith("built as 2.6.0+overlay.")
    assert helpers.calls(tree) == ["build --cmake --cmake-only", "build_ext --inplace"]
    printed = capsys.readouterr().out
    assert "MAX_JOBS=" in printed and "[12/12] 0:00:0" in printed and "build: OK" in printed
    assert f"Building {object_of(OURS[0])}" in (tree / "build/overlay-build.log").read_text()


def test_only_what_was_edited_is_built_again(tree):
    source_mode.build(helpers.job(tree))
    before = helpers.objects(tree)
    (tree / OURS[0]).write_text("// edited\n")
    source_mode.build(helpers.job(tree))
    after = helpers.objects(tree)
    assert {name for name in after if after[name] != before[name]} == {object_of(OURS[0])}
    assert helpers.calls(tree).count("build --cmake --cmake-only") == 1


def test_objects_are_those_of_the_overlay(tree):
    source_mode.build(helpers.job(tree), objects_only=True)
    assert helpers.objects(tree).keys() == {object_of(source) for source in OURS}
    assert helpers.calls(tree) == ["build --cmake --cmake-only"]


def test_objects_of_an_unpatched_tree(tmp_path, tree):
    with pytest.raises(OverlayError, match="nothing of the overlay is in this tree") as error:
        source_mode.build(helpers.job(helpers.make_tree(tmp_path / "plain", patched=False)), objects_only=True)
    assert error.value.hint == "make apply"


@pytest.mark.parametrize("everyone", (True, False), ids=("terminal", "kill"))
def test_interrupted_twice_it_goes_on_and_ends_right(tree, everyone):
    """`everyone`: the signal reaches all of them, as Ctrl-C does; else the tool alone."""
    kept = {}
    for _ in range(2):
        process = helpers.start("build", tree)
        wanted = len(helpers.objects(tree)) + random.randint(1, 4)
        deadline = time.monotonic() + 60
        while len(helpers.objects(tree)) < wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        (os.killpg if everyone else os.kill)(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 1
        assert "interrupted; what was compiled is kept" in errors and "next: run the same command" in errors
        assert subprocess.run(["pgrep", "--session", str(process.pid)]).returncode == 1, "something still runs"
        complete = helpers.objects(tree)
        assert len(complete) < len(OURS + THEIRS), "it was interrupted too late"
        assert kept.items() <= complete.items()
        kept = complete
    process = helpers.start("build", tree)
    assert process.wait(60) == 0, process.communicate()
    assert kept.items() <= helpers.objects(tree).items()
    for source in OURS + THEIRS:
        assert (tree / "build" / object_of(source)).read_text() == (tree / source).read_text()


def test_an_error_shows_the_message_and_the_log(tree, capsys):
    (tree / OURS[1]).write_text("BROKEN here\n")
    with pytest.raises(OverlayError, match="compiler and linker accept every source") as error:
        source_mode.build(helpers.job(tree))
    assert error.value.place == object_of(OURS[1]) and "overlay-build.log" in error.value.hint
    assert "BROKEN here" in capsys.readouterr().out
    (tree / OURS[1]).write_text("mended\n")
    source_mode.build(helpers.job(tree))


def test_a_failing_setup_shows_its_last_lines(tree, capsys):
    (tree / "setup.py").write_text("raise SystemExit('no such compiler')\n")
    with pytest.raises(OverlayError, match="ended with status 1"):
        source_mode.build(helpers.job(tree))
    assert "no such compiler" in capsys.readouterr().out


def test_other_switches_configure_again(tree, monkeypatch, capsys):
    source_mode.build(helpers.job(tree))
    monkeypatch.setenv("USE_DISTRIBUTED", "1")
    source_mode.build(helpers.job(tree))
    assert "USE_DISTRIBUTED: OFF -> 1" in capsys.readouterr().out
    assert helpers.calls(tree).count("build --cmake --cmake-only") == 2


def test_another_source_configures_again(tree):
    """CMake looks for sources only when it is run."""
    source_mode.build(helpers.job(tree))
    new = "aten/src/ATen/native/New.cpp"
    helpers.patch(tree, [*OURS, new])
    source_mode.build(helpers.job(tree))
    assert object_of(new) in helpers.objects(tree)


def test_reverted_it_builds_without_them(tree):
    source_mode.build(helpers.job(tree))
    for name in (*OURS, ".aten-overlay.json"):
        (tree / name).unlink()
    source_mode.build(helpers.job(tree))
    assert (tree / "torch/lib/libtorch_cpu.so").read_text() == "built as 2.6.0"


def test_one_at_a_time(tree):
    process = helpers.start("build", tree)
    while not (tree / "build/overlay-build.log").exists():
        time.sleep(0.02)
    with pytest.raises(OverlayError, match="one apply, revert or build"):
        source_mode.build(helpers.job(tree))
    assert process.wait(60) == 0


def test_switches(tree, monkeypatch):
    monkeypatch.setenv("OPT", "3")
    monkeypatch.setenv("USE_CUDA", "1")
    monkeypatch.setenv("CMAKE_PREFIX_PATH", "/opt")
    monkeypatch.setenv("CXX", "clang++")
    switches = helpers.job(tree).switches
    assert switches["CMAKE_CXX_FLAGS_RELEASE"] == "-O3 -DNDEBUG"
    assert (switches["USE_CUDA"], switches["USE_MKLDNN"]) == ("1", "OFF")
    assert (switches["CMAKE_PREFIX_PATH"], switches["CXX"]) == ("/opt", "clang++")
    assert "USE_SYSTEM_LIBS" not in switches and "HOME" not in switches
    monkeypatch.setenv("OPT", "fast")
    with pytest.raises(OverlayError, match="OPT=fast"):
        helpers.job(tree)
    monkeypatch.setenv("OPT", "3")
    monkeypatch.setenv("KERNELS", "avx9")
    with pytest.raises(OverlayError, match="KERNELS=avx9"):
        helpers.job(tree)


def test_the_version_tells_a_patched_torch(tmp_path, tree):
    assert build_version(open_tree(tree)).startswith("2.6.0+overlay.")
    assert build_version(open_tree(helpers.make_tree(tmp_path / "plain", patched=False))) == "2.6.0"


def test_a_wheel_tree_is_not_built(tmp_path):
    root = helpers.make_tree(tmp_path / "wheel", patched=False)
    (root / ".wheel-tree.json").write_text('{"version": "2.14.1", "origin": "a wheel"}')
    with pytest.raises(OverlayError, match="holds no sources to build"):
        helpers.job(root)


class TestChecks:
    """Each names what is wrong before anything is touched."""

    @staticmethod
    def problems(tree) -> str:
        job = helpers.job(tree)
        found = checks.check(checks.Site(job.tree, job.machine, job.python, job.switches))
        with pytest.raises(OverlayError):
            source_mode.build(job)
        assert not (tree / "build").exists() and not (tree / "calls.txt").exists()
        return "\n".join(error.render() for error in found)

    def test_compiler(self, tree, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert "error: no-such-compiler" in self.problems(tree)

    def test_old_compiler(self, tree, tmp_path):
        helpers.make_program(tmp_path / "bin", "c++", '[ "$1" = --version ] && echo c++ 4.8')
        assert "it compiles and links C++ with -std=c++17" in self.problems(tree)

    def test_old_cmake(self, tree, tmp_path):
        helpers.make_program(tmp_path / "bin", "cmake", "echo cmake version 3.5.1")
        assert "this PyTorch needs 3.18 or later" in self.problems(tree)

    def test_submodules(self, tree):
        (tree / ".gitmodules").write_text('[submodule "fmt"]\n\tpath = third_party/fmt\n\turl = ../fmt\n')
        assert "submodule update --init --recursive" in self.problems(tree)

    def test_python_modules(self, tree, monkeypatch):
        monkeypatch.setattr(checks, "_MODULES", ("yaml", "no_such_module"))
        problems = self.problems(tree)
        assert "setup.py imports no_such_module" in problems and "requirements.txt" in problems

    def test_cuda_against_the_compiler(self, tree, tmp_path, monkeypatch):
        monkeypatch.setenv("USE_CUDA", "1")
        script = '[ "$1" = --version ] && echo release 13.0, V13.0.1 && exit; exit 1'
        helpers.make_program(tmp_path / "bin", "nvcc", script)
        assert "CUDA 13.0 takes this compiler as its host compiler" in self.problems(tree)

    def test_disk_and_memory(self, tree, monkeypatch):
        monkeypatch.setattr(checks, "DISK", 1 << 40)
        monkeypatch.setattr(checks, "available_memory", lambda: 1 << 20)
        problems = self.problems(tree)
        assert "GiB of disk" in problems and "a compile job takes up to" in problems

    def test_debian_libraries(self, tree, tmp_path):
        (tree / "debian").mkdir()
        (tree / "debian/rules").touch()
        script = "echo 'dpkg-checkbuilddeps: error: unmet build dependencies: libonnx-dev' >&2; exit 1"
        helpers.make_program(tmp_path / "bin", "dpkg-checkbuilddeps", script)
        assert "missing: libonnx-dev" in self.problems(tree)


class TestProgress:
    class Terminal(list):
        def isatty(self):
            return True

        def write(self, text):
            self.append(text)

        def flush(self):
            pass

    class File(Terminal):
        def isatty(self):
            return False

    LINES = [f"[{i}/60] Building CXX object a/b{i}.o\n" for i in range(1, 61)]

    def follow(self, output, lines=LINES):
        times = iter(range(1000))
        progress = Progress(log := self.File(), output, clock=lambda: next(times))
        progress.follow(lines)
        progress.finish()
        assert log == lines, "the log has all of it"
        return progress

    def test_a_terminal_has_one_line(self):
        output = self.Terminal()
        self.follow(output)
        assert len(output) == 61 and all(line.startswith("\r\033[K") for line in output[:-1]) and output[-1] == "\n"
        assert output[29].startswith("\r\033[K[30/60] 0:00:30 elapsed, about 0:00:30 to go  b30.o")

    def test_elsewhere_it_is_a_line_now_and_then(self):
        output = self.File()
        self.follow(output)
        assert output == [
            "[1/60] 0:00:01 elapsed\n",
            "[31/60] 0:00:31 elapsed, about 0:00:29 to go\n",
            "[60/60] 0:01:00 elapsed, about 0:00:00 to go\n",
        ]

    def test_messages_are_those_of_what_failed(self):
        failure = ["FAILED: [code=1] x.o \n", "c++ x.cpp\n", "x.cpp:1: error\n"]
        lines = ["[1/9] one\n", "a warning\n", *failure, "[2/9] two\n"]
        progress = self.follow(self.File(), lines)
        assert progress.failed == ["x.o"] and progress.messages == ["c++ x.cpp\n", "x.cpp:1: error\n"]
