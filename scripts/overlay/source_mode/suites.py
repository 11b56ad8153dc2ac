"""`test-nn`, `test-ops`, `test-mps`: PyTorch's own suites on the built tree, against what an unpatched one gives."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import time
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from ..errors import OverlayError
from ..model import load_patches
from ..paths import OVERLAYS
from ..state import load_state
from ..trees import display
from .build import Build
from .checks import is_on
from .command import add_tree, job_of
from .progress import clock_time
from .results import Baseline, Results, compare, load_baseline, new_failures, read_outcomes, save_baseline


@dataclass(frozen=True)
class Run:
    """A test file, below test/. `only`: limited to the overlay's operators, or to these tests."""

    file: str
    only: str | None = None


OURS = "the overlay's operators"
PLUGIN = Path(__file__).with_name("pytest_outcomes.py")
NO_TESTS = 5  # pytest's status where none is left

_SUITES = {
    "test-nn": [Run("test_nn.py")],
    "test-ops": [
        Run("test_ops.py", OURS),
        Run("test_ops_gradients.py", OURS),
        Run("test_ops_fwd_gradients.py", OURS),
        Run("test_ops_jit.py", OURS),
        Run("test_meta.py", OURS),
        Run("test_decomp.py", f"{OURS} or HasDecompTest"),
        Run("functorch/test_vmap.py", OURS),
        Run("functorch/test_ops.py", OURS),
        # What PyTorch asks of every operator and public name.
        Run("test_schema_check.py", OURS),
        Run("test_public_bindings.py"),
        Run("test_overrides.py"),
    ],
    "test-mps": [Run("test_mps.py")],
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    for name, text in (
        ("test-nn", "PyTorch's test_nn.py on the built tree"),
        ("test-ops", "the suites over all operators, limited to the overlay's, and the overlay's own tests"),
        ("test-mps", "PyTorch's test_mps.py, on a Mac"),
    ):
        parser = subparsers.add_parser(name, help=text, description=text)
        add_tree(parser)
        parser.add_argument("--record", action="store_true", help="keep the results of an unpatched tree as a baseline")
        parser.add_argument("--files", nargs="*", help="only these of its files, such as test_ops.py")
        parser.set_defaults(run=run, suite=name)


def run(arguments: argparse.Namespace) -> int:
    if arguments.suite == "test-mps" and sys.platform != "darwin":
        raise OverlayError(
            "test-mps",
            f"Metal is there on a Mac alone, and this is {sys.platform}",
            "run it on a Mac; here the Metal kernels run simulated: make test-mps-sim",
        )
    job = job_of(arguments)
    runs = _SUITES[arguments.suite] + (_in_tree() if arguments.suite == "test-ops" else [])
    if arguments.files:
        unknown = set(arguments.files) - {run.file for run in runs}
        if unknown:
            raise OverlayError(
                ", ".join(sorted(unknown)), f"{arguments.suite} has {', '.join(run.file for run in runs)}"
            )
        runs = [run for run in runs if run.file in arguments.files]
    return _record(job, runs) if arguments.record else _compare(job, arguments.suite, runs)


def _compare(job: Build, suite: str, runs: list[Run]) -> int:
    _require_build(job)
    baseline = load_baseline(str(job.tree.version))
    print(f"{suite}: {job.tree.describe()}, {job.machine.describe()}")
    if baseline:
        print(f"compared with {_describe(baseline)}")
    worse = 0
    for each in runs:
        if reason := _not_run(job, each):
            print(f"  {each.file}: not run, {reason}")
            continue
        started = time.monotonic()
        results = _run(job, each)
        before = baseline.files.get(each.file) if baseline else None
        lines = compare(results, before)
        worse += new_failures(lines)
        note = "" if before or each.only == OURS else "; no baseline, every failure is listed"
        print(f"  {each.file}: {results.describe()} in {clock_time(time.monotonic() - started)}{note}")
        print("".join(f"    {line}\n" for line in lines), end="", flush=True)
    print(f"{suite}: {f'{worse} worse than unpatched' if worse else 'OK, nothing is worse than unpatched'}")
    return 1 if worse else 0


def _record(job: Build, runs: list[Run]) -> int:
    _require_build(job)
    if load_state(job.tree.root):
        raise OverlayError(
            display(job.tree.root), "a baseline is recorded from an unpatched tree", "make revert, then make build"
        )
    version = str(job.tree.version)
    known = load_baseline(version)
    baseline = Baseline(version, date.today().isoformat(), job.tree.origin, job.switches, known.files if known else {})
    for each in runs:
        if each.only == OURS or _not_run(job, each):
            continue  # there is nothing of ours in an unpatched tree
        results = _run(job, replace(each, only=each.only and each.only.rpartition(" or ")[2]))
        baseline.files[each.file] = results
        print(f"  {each.file}: {results.describe()}", flush=True)
        path = save_baseline(baseline)
    print(f"recorded: {display(path)}")
    return 0


def _not_run(job: Build, each: Run) -> str:
    if not (job.tree.root / "test" / each.file).is_file():
        return "it is not in this tree"
    if each.file.startswith("distributed/") and not is_on(job.switches, "USE_DISTRIBUTED"):
        return "it needs a build with USE_DISTRIBUTED=1"
    return ""


def _run(job: Build, each: Run) -> Results:
    """A file that crashes half way, or has no test for us, is no result. One that was interrupted goes on."""
    folder = job.folder / "overlay-results"
    folder.mkdir(exist_ok=True)
    name = each.file.removesuffix(".py").replace("/", ".")
    outcomes, log = folder / f"{name}.outcomes", folder / f"{name}.log"
    command = [job.python, "-m", "pytest", "-q", "-p", PLUGIN.stem, f"test/{each.file}"]
    if each.only:
        command += ["-k", each.only.replace(OURS, " or ".join(operators()))]
    known = _begin(outcomes, f"{command} {_age(job, each)}")
    if known:
        print(f"  {each.file}: goes on after {known} tests", flush=True)
    shutil.copyfile(PLUGIN, folder / PLUGIN.name)
    environment = {"PYTHONPATH": f"{job.tree.root}:{folder}", "OVERLAY_OUTCOMES": str(outcomes), **job.ccache}
    with log.open("a" if known else "w") as output, job.machine.start(
        command, job.tree.root, environment, stdout=output, stderr=output
    ) as process:
        status = process.wait()
    if status not in (0, 1) and not (status == NO_TESTS and known):
        print("\n".join(log.read_text(errors="replace").splitlines()[-20:]))
        raise OverlayError(
            shlex.join(command), f"pytest runs it to its end; it ended with status {status}", f"log: {display(log)}"
        )
    outcomes.with_suffix(".run").unlink()
    return read_outcomes(outcomes)


def _begin(outcomes: Path, run: str) -> int:
    """How many tests of an interrupted run of the same are known. Its note goes when a run has ended."""
    note = outcomes.with_suffix(".run")
    if note.is_file() and note.read_text() == run and outcomes.is_file():
        kept = [line for line in outcomes.read_text().splitlines(keepends=True) if line.endswith("\n")]
    else:
        kept = []
    outcomes.write_text("".join(kept))  # without the half line of a run that was killed
    note.write_text(run)
    return len(kept)


def _age(job: Build, each: Run) -> list[int]:
    """Of what was built and of the tests: with others, all tests run again."""
    root = job.tree.root
    files = [root / "torch/version.py", *(root / "torch/lib").glob("libtorch_*"), root / "test" / each.file]
    return [path.stat().st_mtime_ns for path in sorted(files) if path.is_file()]


def operators() -> list[str]:
    """The names that stand for the overlay's operators in the names of tests, without those that contain another."""
    names = []
    for edit in load_patches():
        if edit.operation == "add_entries" and edit.target.endswith("native_functions.yaml"):
            lines = edit.arguments["entries"].splitlines()
            names += [line.split("func:")[1].split("(")[0].strip() for line in lines if "func:" in line]
    names = sorted({name.partition(".")[0].strip("_") for name in names}, key=len)
    return sorted(name for i, name in enumerate(names) if not any(other in name for other in names[:i]))


def _in_tree() -> list[Run]:
    tests = [(root / "test", path) for root in OVERLAYS for path in (root / "test").rglob("test_*.py")]
    return sorted((Run(path.relative_to(root).as_posix()) for root, path in tests), key=lambda run: run.file)


def _require_build(job: Build) -> None:
    # From another folder: a torch that is installed would be found as well.
    code = "import torch; print(torch.__file__)"
    status, output = job.machine.run([job.python, "-c", code], environment={"PYTHONPATH": str(job.tree.root)})
    lines = output.strip().splitlines()
    if status or lines[-1:] != [f"{job.tree.root}/torch/__init__.py"]:
        raise OverlayError(
            display(job.tree.root),
            f"its torch is built and imports; it answers: {lines[-1] if lines else 'nothing'}",
            f"make build TREE={display(job.tree.root)}",
        )


def _describe(baseline: Baseline) -> str:
    return f"the unpatched {baseline.version} ({baseline.build}), recorded on {baseline.date} with the same suites"
