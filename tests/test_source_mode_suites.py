"""`make test-nn` and its kin: which tests run, and what of their results is reported."""

from __future__ import annotations

import argparse
import sys

import pytest
import source_mode_helpers as helpers
from overlay.errors import OverlayError
from overlay.paths import REPO
from overlay.source_mode import results, suites
from overlay.source_mode.results import Baseline, Results, compare, new_failures

TEST_NN = """\
import unittest


class TestNN(unittest.TestCase):
    def test_good(self):
        pass

    def test_flaky_tolerance(self):
        {tolerance}

    def test_patched(self):
        {patched}

    @unittest.skip("not here")
    def test_skipped(self):
        pass

    @unittest.expectedFailure
    def test_known(self):
        {known}
"""
GOOD, BAD = "pass", "self.fail('bad')"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "BASELINES", tmp_path / "baselines")
    monkeypatch.setattr(suites, "load_baseline", lambda version: results.load_baseline(version, results.BASELINES))
    monkeypatch.setattr(suites, "save_baseline", lambda baseline: results.save_baseline(baseline, results.BASELINES))
    return helpers.make_tree(tmp_path / "tree", patched=False)


def write_test(tree, tolerance=BAD, patched=GOOD, known=BAD, name="test_nn.py"):
    (tree / "test").mkdir(exist_ok=True)
    (tree / "build").mkdir(exist_ok=True)
    (tree / "test" / name).write_text(TEST_NN.format(tolerance=tolerance, patched=patched, known=known))


def run(tree, suite="test-nn", record=False, files=None):
    named = argparse.Namespace(
        tree=tree, chroot=None, python=sys.executable, suite=suite, record=record, files=files
    )
    return suites.run(named)


def patch(tree):
    """As `make apply` would, for what the suites look at."""
    return helpers.make_tree(tree)


def test_only_differences_from_the_baseline_are_reported(tree, capsys):
    write_test(tree)
    assert run(tree, record=True) == 0
    patch(tree)
    assert run(tree) == 0
    printed = capsys.readouterr().out
    assert "test_nn.py: 2 passed, 1 failed, 1 expected failures, 1 skipped" in printed
    assert "test-nn: OK, nothing is worse than unpatched" in printed and "test_flaky_tolerance" not in printed
    write_test(tree, tolerance=GOOD, patched=BAD, known=GOOD)
    assert run(tree) == 1
    printed = capsys.readouterr().out
    assert "    new failure: TestNN.test_patched\n" in printed
    assert "    unexpected success: TestNN.test_known\n" in printed
    assert "    fixed: TestNN.test_flaky_tolerance\n" in printed
    assert "test-nn: 2 worse than unpatched" in printed


def test_without_a_baseline_every_failure_counts(tree, capsys):
    write_test(tree)
    assert run(patch(tree)) == 1
    printed = capsys.readouterr().out
    assert "; no baseline, every failure is listed" in printed and "new failure: TestNN.test_flaky_tolerance" in printed


def test_a_baseline_is_of_an_unpatched_tree(tree):
    write_test(tree)
    with pytest.raises(OverlayError, match="recorded from an unpatched tree"):
        run(patch(tree), record=True)


def test_suites_over_all_operators_run_for_ours_alone(tree, capsys):
    write_test(tree, name="test_ops.py")
    text = (tree / "test/test_ops.py").read_text().replace("test_patched", "test_out_nn_functional_causal_conv1d_cpu")
    (tree / "test/test_ops.py").write_text(text)
    assert run(tree, "test-ops", files=["test_ops.py"]) == 0
    assert "test_ops.py: 1 passed in" in capsys.readouterr().out


def test_a_file_that_ends_early_is_no_result(tree):
    write_test(tree)
    (tree / "test/test_nn.py").write_text("import os; os._exit(9)")
    with pytest.raises(OverlayError, match="it ended with status 9"):
        run(tree)
    (tree / "test/test_ops.py").write_text("def test_add(): pass")
    with pytest.raises(OverlayError, match="it ended with status 5"):  # it has no test of ours
        run(tree, "test-ops", files=["test_ops.py"])


def test_an_interrupted_file_goes_on(tree, capsys):
    write_test(tree, tolerance=GOOD, patched="__import__('os').path.exists('stop') and __import__('os')._exit(9)")
    patch(tree)
    (tree / "stop").touch()
    with pytest.raises(OverlayError, match="it ended with status 9"):
        run(tree)
    outcomes = tree / "build/overlay-results/test_nn.outcomes"
    done = outcomes.read_text()
    assert "::test_flaky_tolerance" in done and "::test_patched" not in done
    outcomes.write_text(done + '["test/test_nn.py::TestNN::test_pat')  # and it was killed while it wrote
    (tree / "stop").unlink()
    assert run(tree) == 0
    printed = capsys.readouterr().out
    assert f"test_nn.py: goes on after {done.count('::test_')} tests" in printed
    assert "test_nn.py: 3 passed, 1 expected failures, 1 skipped" in printed
    assert len(outcomes.read_text().splitlines()) == 5  # none ran twice
    assert run(tree) == 0 and "goes on" not in capsys.readouterr().out  # it had ended


def test_another_build_begins_anew(tree, capsys):
    write_test(tree)
    (tree / "test/test_nn.py").write_text("import os, torch\ndef test_a(): pass\ndef test_b(): os._exit(9)\n")
    patch(tree)
    with pytest.raises(OverlayError, match="it ended with status 9"):
        run(tree)
    (tree / "test/test_nn.py").write_text("def test_a(): assert 0\ndef test_b(): pass\n")
    assert run(tree) == 1
    printed = capsys.readouterr().out
    assert "goes on" not in printed and "new failure: test_nn.test_a\n" in printed


def test_a_tree_that_is_not_built(tree):
    write_test(tree)
    (tree / "torch/__init__.py").write_text("import torch._C")
    with pytest.raises(OverlayError, match="its torch is built and imports") as error:
        run(tree)
    assert error.value.hint == f"make build TREE={tree}"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac runs them")
def test_metal_elsewhere_says_why_not(tree):
    with pytest.raises(OverlayError, match="Metal is there on a Mac alone") as error:
        run(tree, "test-mps")
    assert "simulated" in error.value.hint


def test_every_test_of_ours_is_in_a_suite():
    folder = REPO / "test_overlay" / "test"
    ours = {path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py")}
    assert ours == {run.file for run in suites._in_tree()} and len(ours) > 1


def test_files_that_cannot_run_say_why(tree, capsys):
    write_test(tree)
    ours = "distributed/test_causal_conv1d_sequence_parallel.py"
    (tree / "test/distributed").mkdir()
    (tree / "test" / ours).write_text("raise ImportError")
    assert run(tree, "test-ops", files=["test_meta.py", ours]) == 0
    printed = capsys.readouterr().out
    assert "test_meta.py: not run, it is not in this tree" in printed
    assert f"{ours}: not run, it needs a build with USE_DISTRIBUTED=1" in printed


def test_operators_are_named_once():
    assert suites.operators() == ["causal_conv1d"]


def test_a_baseline_is_read_as_it_was_written(tmp_path):
    files = {"test_nn.py": Results(3, 2, ("A.test_a",), ("A.test_b",))}
    baseline = Baseline("2.6.0", "2026-11-30", "Debian", {"USE_CUDA": "OFF"}, files)
    results.save_baseline(baseline, tmp_path)
    assert results.load_baseline("2.6.0", tmp_path) == baseline
    assert results.load_baseline("2.14.1", tmp_path) is None


def test_comparison():
    before = Results(failed=("A.a", "A.b"), expected=("A.x", "A.y"))
    now = Results(failed=("A.b", "A.c", "A.x"))
    lines = compare(now, before)
    assert lines == [
        "new failure: A.c",
        "unexpected success: A.x",
        "fixed: A.a",
        "no longer fails as expected: A.y",
    ]
    assert new_failures(lines) == 2
