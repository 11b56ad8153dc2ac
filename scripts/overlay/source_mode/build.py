"""Building torch in place: configure, ninja, and what setup.py adds to it.

PyTorch's own build folder is used, so `setup.py` and this tool go on from each other's work. An interrupted build goes
on where ninja stopped.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ..errors import OverlayError
from ..machine import compile_jobs
from ..report import print_refusals
from ..state import load_state
from ..transaction import locked
from ..trees import Tree, display
from ..wheel_mode.files import write_if_changed
from . import debian_tree
from .checks import Site, check
from .machine import Machine
from .progress import STATUS, Progress, clock_time
from .switches import GENERATED_SOURCES, ccache_variables, optimization, switches

_CONFIGURATION = "overlay-configuration.json"
_LOG = "overlay-build.log"
# Kernels for the baseline of the processor alone; AVX2 and AVX512 would compile each file of native/cpu twice more.
_BASELINE_KERNELS = [
    f"-D{name}=OFF" for level in ("AVX2", "AVX512") for name in (f"CXX_{level}_FOUND", f"CXX_HAS_{level}_2")
]


@dataclass(frozen=True)
class Build:
    tree: Tree
    machine: Machine
    python: str
    switches: dict[str, str]
    ccache: dict[str, str]
    kernels: str  # "default" or "all"
    optimization: int  # of the generated sources

    @property
    def folder(self) -> Path:
        return self.tree.root / "build"

    @property
    def log(self) -> Path:
        return self.folder / _LOG

    @property
    def environment(self) -> dict[str, str]:
        return {**self.switches, **self.ccache, "MAX_JOBS": str(compile_jobs())}


def make_build(tree: Tree, machine: Machine, python: str) -> Build:
    if tree.kind != "source":
        raise OverlayError(
            tree.describe(),
            "a wheel's tree holds no sources to build",
            "make fetch with SOURCE=git or SOURCE=debian, or use it as it is: make wheel-mode",
        )
    kernels = os.environ.get("KERNELS", "default")
    if kernels not in ("default", "all"):
        raise OverlayError(f"KERNELS={kernels}", "the native/cpu kernels are compiled for `default` or for `all`")
    variables = switches(tree, machine, os.environ), ccache_variables(tree, machine, os.environ)
    return Build(tree, machine, python, *variables, kernels, optimization(os.environ))


def build(job: Build, objects_only: bool = False) -> None:
    print(f"{'build-objects' if objects_only else 'build'}: {job.tree.describe()}", flush=True)
    problems = check(Site(job.tree, job.machine, job.python, job.switches))
    if problems:
        print_refusals(problems[:-1])
        raise problems[-1]
    started = time.monotonic()
    with locked(job.tree.root), _interruptible(job):
        if debian_tree.is_debian(job.tree):
            debian_tree.prepare(job.tree, job.machine)
        job.folder.mkdir(exist_ok=True)
        with job.log.open("a") as log:
            _configure(job, log)
            if objects_only:
                objects = overlay_objects(job)
                _ninja(job, log, objects)
                print(f"build-objects: OK; {len(objects)} objects in {clock_time(time.monotonic() - started)}")
                return
            _ninja(job, log, ["all"])
            # Installs into torch/, and builds torch._C.
            _logged(job, log, [job.python, "setup.py", "build_ext", "--inplace"])
    library = next((job.tree.root / "torch" / "lib").glob("libtorch_cpu.*"))
    print(
        f"build: OK in {clock_time(time.monotonic() - started)}; {library.name} has "
        f"{library.stat().st_size / 1e6:.0f} MB; log: {display(job.log)}"
    )


def build_wheel(job: Build, destination: Path) -> Path:
    """setup.py's own wheel of what is built."""
    with locked(job.tree.root), _interruptible(job), job.log.open("a") as log:
        _logged(job, log, [job.python, "setup.py", "bdist_wheel", "--dist-dir", str(destination)])
    version = job.switches["PYTORCH_BUILD_VERSION"]
    return max(destination.glob(f"torch-{version}-*.whl"), key=lambda path: path.stat().st_mtime)


def _configure(job: Build, log: TextIO) -> None:
    """CMake, where the build folder has none or another configuration: switches, or sources that the overlay adds."""
    names = ("switches", "kernels", "optimization", "python")
    wanted = {**{name: getattr(job, name) for name in names}, "sources": overlay_sources(job)}
    record = job.folder / _CONFIGURATION
    stands = json.loads(record.read_text()) if record.is_file() else {}
    if stands == wanted and (job.folder / "build.ninja").is_file():
        return
    for name in sorted(stands.get("switches", {}).keys() | job.switches.keys()) if stands else ():
        before, after = stands["switches"].get(name), job.switches.get(name)
        if before != after:
            print(f"  {name}: {before} -> {after}")
    print("  configuring, a minute", flush=True)
    record.unlink(missing_ok=True)
    hook = Path(__file__).with_name("generated_sources.cmake").read_text()
    write_if_changed(job.folder / GENERATED_SOURCES, hook.replace("@OPTION@", f"-O{job.optimization}"))
    _logged(job, log, [job.python, "setup.py", "build", "--cmake", "--cmake-only"])
    if job.kernels == "default":
        _logged(job, log, ["cmake", *_BASELINE_KERNELS, str(job.folder)])
    write_if_changed(record, json.dumps(wanted, indent=1) + "\n")


def overlay_sources(job: Build) -> list[str]:
    """The C++ files that the overlay added to the tree."""
    state = load_state(job.tree.root)
    added = [path for path, file in state.files.items() if file.before is None] if state else []
    return sorted(path for path in added if path.endswith((".cpp", ".cu", ".mm")))


def overlay_objects(job: Build) -> list[str]:
    """ninja's names for the objects of the overlay's sources; a source of native/cpu has one for each capability."""
    sources = overlay_sources(job)
    if not sources:
        raise OverlayError(display(job.tree.root), "nothing of the overlay is in this tree", "make apply")
    targets = job.machine.output(["ninja", "-t", "targets", "all"], job.folder).splitlines()
    names = (target.rpartition(": ")[0] for target in targets)
    return [name for name in names if name.endswith(".o") and any(f"/{source}." in name for source in sources)]


def _ninja(job: Build, log: TextIO, targets: list[str]) -> None:
    command = ["ninja", f"-j{compile_jobs()}", *targets]
    _head(log, command)
    progress = Progress(log)
    environment = {**job.environment, "NINJA_STATUS": STATUS}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with _started(job, command, job.folder, environment, **streams) as process:
        progress.follow(process.stdout)
    progress.finish()
    if process.returncode:
        print("".join(progress.messages), end="")
        raise OverlayError(
            ", ".join(progress.failed) or shlex.join(command),
            "compiler and linker accept every source; their messages are above, and in the log",
            f"mend it and run make again, it goes on from here; log: {display(job.log)}",
        )


def _logged(job: Build, log: TextIO, command: list[str]) -> None:
    _head(log, command)
    streams = {"stdout": log, "stderr": subprocess.STDOUT}
    with _started(job, command, job.tree.root, job.environment, **streams) as process:
        status = process.wait()
    if status:
        tail = job.log.read_text(errors="replace").splitlines()[-30:]
        print("\n".join(tail))
        raise OverlayError(
            shlex.join(command), f"it ended with status {status}; its last lines are above", f"log: {display(job.log)}"
        )


def _head(log: TextIO, command: list[str]) -> None:
    log.write(f"\n=== {time.strftime('%Y-%m-%d %H:%M:%S %z')} {shlex.join(command)[:1000]}\n")
    log.flush()


@contextmanager
def _started(job: Build, command: list[str], folder: Path, environment: dict[str, str], **streams) -> Iterator:
    """An interrupt may have reached this process alone: it is handed on, and ninja's own end waited for."""
    with job.machine.start(command, folder, environment, **streams) as process:
        try:
            yield process
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise


@contextmanager
def _interruptible(job: Build) -> Iterator[None]:
    terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise OverlayError(
            display(job.folder), "interrupted; what was compiled is kept", "run the same command, and it goes on"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, terminate)
