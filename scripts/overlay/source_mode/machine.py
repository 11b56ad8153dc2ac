"""Where the commands of a build run: this system, or a chroot on it.

A chroot's mounts live in a mount namespace of the command that needs them, so they end with it, whatever ends it, and
no other process sees them: removing the folder can remove nothing else.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OverlayError
from ..trees import display

# sh -ec _ENTER sh <root> <folder>... -- <command>...
_ENTER = """
root=$1; shift
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
exec chroot "$root" "$@"
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED = ("TERM", "OMP_NUM_THREADS", "http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Machine:
    chroot: Path | None = None
    folders: tuple[Path, ...] = ()  # what of this system a chroot shows, at the same path

    def __post_init__(self) -> None:
        if self.chroot and os.geteuid() != 0:
            raise OverlayError(display(self.chroot), "entering a chroot needs root", "run it as root, or with sudo")

    def describe(self) -> str:
        return f"in the chroot {display(self.chroot)}" if self.chroot else "on this system"

    def path(self, path: str) -> Path:
        """A path of the machine, as this system sees it."""
        return Path(f"{self.chroot or ''}{path}")

    def start(
        self, command: list[str], folder: Path, environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen:
        if self.chroot is None:
            # What pip installed beside this Python counts: ninja, and CMake perhaps.
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            variables = {**os.environ, "PATH": path, **(environment or {})}
            return subprocess.Popen(command, cwd=folder, env=variables, **options)
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        variables = {"PATH": _PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **passed, **(environment or {})}
        enter = ["unshare", "--mount", "--", "sh", "-ec", _ENTER, "sh", str(self.chroot), *map(str, self.folders), "--"]
        words = ["env", "-i", "-C", str(folder), *(f"{name}={value}" for name, value in variables.items()), *command]
        return subprocess.Popen([*enter, *words], **options)

    def run(
        self, command: list[str], folder: Path = Path("/"), environment: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Its status, 127 where it is not there, and all that it printed."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        try:
            with self.start(command, folder, environment, **streams) as process:
                output, _ = process.communicate()
        except OSError as error:
            return 127, str(error)
        return process.returncode, output

    def output(self, command: list[str], folder: Path = Path("/")) -> str:
        """What it prints, or "" where it fails."""
        status, output = self.run(command, folder)
        return "" if status else output

    def call(self, command: list[str], folder: Path, environment: dict[str, str] | None = None, **options: Any) -> None:
        """Runs it to its end, with its messages where ours go."""
        with self.start(command, folder, environment, **options) as process:
            status = process.wait()
        if status:
            raise OverlayError(
                shlex.join(command), f"it succeeds {self.describe()}; it ended with status {status}, see above"
            )

    def has(self, program: str) -> bool:
        return bool(self.output(["sh", "-c", f"command -v {shlex.quote(program)}"]))
