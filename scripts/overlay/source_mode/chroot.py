"""`chroot`: a Debian system with what PyTorch's build and suites need, in a folder, for machines that are not Debian.

It appears whole or not at all. Nothing of this system changes; `chroot-remove` removes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .. import debian, fetch
from ..errors import OverlayError
from ..paths import BUILD, REPO
from ..trees import Tree, display, new_folder, open_tree, tree_path
from ..versions import Release, find_release
from .debian_tree import is_debian, prepare
from .machine import Machine
from .switches import ccache_folder

CHROOTS = BUILD / "chroots"  # chroots/<Debian release>

_TOOLS = ("ca-certificates", "ccache", "clang-19", "git", "mold", "python3-pip", "python3-venv", "python3-wheel")
_FOR_SUITES = tuple(
    f"python3-{name}"
    for name in (
        "expecttest",
        "filelock",
        "fsspec",
        "hypothesis",
        "jinja2",
        "networkx",
        "psutil",
        "pytest",
        "requests",
        "scipy",
        "sympy",
        "typing-extensions",
    )
)
_SOURCES = "/etc/apt/sources.list"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    for name, command, text in (
        ("chroot", run, "make the Debian system that a release's source package is built in"),
        ("chroot-shell", shell, "a shell in it"),
        ("chroot-remove", remove, "remove it"),
    ):
        parser = subparsers.add_parser(name, help=text, description=__doc__)
        parser.add_argument("version", help="a release that Debian has, such as 2.6.0")
        parser.set_defaults(run=command)


def run(arguments: argparse.Namespace) -> int:
    release = _release(arguments.version)
    destination = CHROOTS / release.debian
    if destination.exists():
        print(f"chroot: {display(destination)} is there")
    else:
        make_chroot(release, destination)
    tree = open_tree(fetch.fetch_tree(release.version, "debian"))
    prepare(tree, machine_for(tree, destination))
    print(f"chroot: OK; next: make apply VERSION={release.version}, make build VERSION={release.version}")
    return 0


def shell(arguments: argparse.Namespace) -> int:
    release = _release(arguments.version)
    root = CHROOTS / release.debian
    if not root.is_dir():
        raise OverlayError(display(root), "there is no chroot", f"make chroot VERSION={release.version}")
    tree = open_tree(tree_path(release.version))
    environment = {"PYTHONPATH": str(tree.root)}
    return machine_for(tree, root).start(["bash"], tree.root, environment).wait()


def remove(arguments: argparse.Namespace) -> int:
    root = CHROOTS / _release(arguments.version).debian
    if not root.exists():
        print(f"chroot-remove: {display(root)} is not there")
        return 0
    _require_root(root)
    if running := _running_in(root):
        raise OverlayError(display(root), f"nothing runs in it; these do: {', '.join(running)}", "end them first")
    shutil.rmtree(root)
    print(f"chroot-remove: OK; the trees and {display(ccache_folder(os.environ))} stay")
    return 0


def make_chroot(release: Release, destination: Path) -> None:
    _require_root(destination)
    for program, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if not shutil.which(program):
            raise OverlayError(program, "a chroot is made with it, and it is not there", f"apt-get install {package}")
    if subprocess.run(["unshare", "--mount", "true"]).returncode:
        raise OverlayError(
            "unshare --mount", "a chroot takes a mount namespace, and this system allows none", "leave the container"
        )
    keyring, mirror = debian.keyring(), debian.mirrors()[0]
    print(f"chroot: Debian {release.debian} from {mirror} in {display(destination)}: 3 GB, a few minutes", flush=True)
    with new_folder(destination) as root:
        _call(["debootstrap", "--variant=minbase", f"--keyring={keyring}", release.debian, str(root), mirror])
        (root / _SOURCES.lstrip("/")).write_text(
            "".join(f"{kind} {mirror} {release.debian} main\n" for kind in ("deb", "deb-src"))
        )
        (root / "etc/apt/apt.conf.d/90overlay").write_text(_proxies())
        no_services = root / "usr/sbin/policy-rc.d"
        no_services.write_text("#!/bin/sh\nexit 101\n")
        no_services.chmod(0o755)
        machine = Machine(root)
        install = ["apt-get", "--yes", "--no-install-recommends"]
        for command in (
            ["apt-get", "update"],
            [*install, "build-dep", "pytorch"],
            [*install, "install", *_TOOLS, *_FOR_SUITES],
            ["apt-get", "clean"],
        ):
            machine.call(command, Path("/"), {"DEBIAN_FRONTEND": "noninteractive"})


def machine_for(tree: Tree, root: Path | None) -> Machine:
    """`root`: a chroot, None for this system."""
    if root is None:
        return Machine()
    cache = ccache_folder(os.environ)
    cache.mkdir(parents=True, exist_ok=True)
    return Machine(root, (REPO, tree.root, cache))


def chroot_of(tree: Tree, named: Path | None) -> Path | None:
    """The one that is named, else that of the tree's Debian release where there is one."""
    if named:
        if not (named / "usr").is_dir():
            raise OverlayError(display(named), "a chroot was expected", "make chroot")
        return named.resolve()
    release = find_release(tree.version.base_version)
    if not (is_debian(tree) and release and release.debian):
        return None
    root = CHROOTS / release.debian
    return root if root.is_dir() else None


def _release(version: str) -> Release:
    release = find_release(version)
    if release is None or not release.debian:
        raise OverlayError(
            f"VERSION={version}", "a chroot is made for a release that versions.toml names a Debian release for"
        )
    return release


def _require_root(place: Path) -> None:
    if sys.platform != "linux":
        raise OverlayError(display(place), "a chroot of Debian needs Linux", "use a container or a virtual machine")
    if os.geteuid() != 0:
        raise OverlayError(display(place), "making, entering and removing a chroot needs root", "run it with sudo")


def _proxies() -> str:
    """This system's proxies of APT, as APT reads them."""
    words = ["apt-config", "dump", "--no-empty", "Acquire::http::Proxy", "Acquire::https::Proxy"]
    return subprocess.run(words, capture_output=True, text=True).stdout


def _running_in(root: Path) -> list[str]:
    """The processes whose root folder lies in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = (process / "root").resolve().is_relative_to(root)
        except OSError:  # it has ended
            continue
        if inside:
            found.append(process.name)
    return sorted(found, key=int)


def _call(command: list[str]) -> None:
    Machine().call(command, Path("/"))
