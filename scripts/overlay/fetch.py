"""`fetch`: brings the PyTorch tree of a release to build/trees/, whole or not at all.

Progress goes to stderr; the one line on stdout is the folder's path.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from . import debian, wheels
from .errors import OverlayError
from .paths import BUILD
from .trees import display, new_folder, open_tree, tree_path
from .versions import find_release

REPOSITORY = "https://github.com/pytorch/pytorch.git"
SOURCES = ("installed", "wheel", "debian", "git")
# The macOS wheel is the smallest, and holds the Python, YAML and headers of every platform.
PLATFORMS = {"macos-arm64": "about 130 MB", "host": "100 MB to 900 MB, with CUDA most"}
_WHEELS = BUILD / "wheels"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("fetch", help="fetch the PyTorch tree of a release", description=__doc__)
    parser.add_argument("version", help="a release such as 2.14.1, or `newest`")
    parser.add_argument(
        "--source",
        choices=SOURCES,
        help="default: the torch of this interpreter if it is that release, else `tree` in versions.toml",
    )
    parser.add_argument("--platform", choices=tuple(PLATFORMS), help="whose wheel (default: macos-arm64, the smallest)")
    parser.add_argument(
        "--site",
        action="store_true",
        help="unpack this machine's wheel as it would be installed, to compile and link against",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the command that downloads")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    version = newest_version() if arguments.version == "newest" else arguments.version
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise OverlayError(f"VERSION={version}", "a release is named as in versions.toml, such as 2.14.1")
    if arguments.dry_run:
        source = arguments.source or default_source(version)
        commands = {
            "git": clone_command(version, tree_path(version, "git")),
            "wheel": download_command(version, arguments.platform or "macos-arm64", _WHEELS),
        }
        if source not in commands:
            raise OverlayError(f"--dry-run with {source}", "only wheel and git download by one command")
        print(" ".join(commands[source]))
    elif arguments.site:
        print(fetch_site(version))
    else:
        print(fetch_tree(version, arguments.source, arguments.platform))
    return 0


def default_source(version: str) -> str:
    release = find_release(version)
    if installed_version() == version:
        return "installed"
    return release.tree if release else "wheel"


def installed_version() -> str | None:
    try:
        return importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def fetch_tree(version: str, source: str | None = None, platform: str | None = None) -> Path:
    if platform and source not in (None, "wheel"):
        raise OverlayError(f"PLATFORM={platform}", f"it chooses a wheel, and SOURCE={source} takes none")
    # What differs from the release's own source has its own folder.
    destination = tree_path(version, platform or ("" if source in (None, default_source(version)) else source))
    if destination.exists():
        print(f"already there: {open_tree(destination).describe()}", file=sys.stderr)
        return destination
    if find_release(version) is None:
        print(f"note: {version} is not in versions.toml, so nothing is promised for it", file=sys.stderr)
    source = source or ("wheel" if platform else default_source(version))
    if source == "installed":
        wheels.build_tree(_installed(version), destination)
    elif source == "wheel":
        wheels.build_tree(download_wheel(version, platform or "macos-arm64"), destination)
    elif source == "debian":
        release = find_release(version)
        if release is None or not release.debian:
            raise OverlayError(
                f"VERSION={version} SOURCE=debian",
                "versions.toml names no Debian release for it",
                "SOURCE=git has every release",
            )
        debian.fetch_source(version, release.debian, destination)
    else:
        _clone(version, destination)
    print(open_tree(destination).describe(), file=sys.stderr)
    return destination


def fetch_site(version: str) -> Path:
    """This machine's wheel, unpacked as in site-packages, without installing it."""
    destination = tree_path(version, "site")
    if not destination.exists():
        wheels.unpack_site(download_wheel(version, "host"), destination)
    return destination


def download_wheel(version: str, platform: str) -> Path:
    """The wheel file of a release. pip picks and verifies it; a file that is in the cache is complete."""
    cache = _WHEELS / platform / version
    if not cache.exists():
        print(f"torch {version}, {platform} wheel: {PLATFORMS[platform]}", file=sys.stderr)
        with new_folder(cache) as folder:
            if subprocess.run(download_command(version, platform, folder), stdout=sys.stderr).returncode:
                raise OverlayError(
                    f"torch {version} ({platform})",
                    "pip could not download its wheel; its messages are above",
                    "check the version and the network, then run it again",
                )
    return next(cache.glob("torch-*.whl"))


def download_command(version: str, platform: str, destination: Path) -> list[str]:
    # pip takes a platform as the newest one allowed
    options = ["--platform", "macosx_26_0_arm64"] if platform == "macos-arm64" else []
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        *options,
        "--dest",
        str(destination),
        f"torch=={version}",
    ]


def newest_version() -> str:
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    output = subprocess.run(command, capture_output=True, text=True)
    match = re.match(r"torch \((\d+\.\d+\.\d+)", output.stdout)
    if not match:
        raise OverlayError(
            "VERSION=newest",
            f"pip could not tell the newest release: {output.stderr.strip()}",
            "name a release, such as VERSION=2.14.1",
        )
    return match[1]


def clone_command(version: str, destination: Path) -> list[str]:
    return [
        "git",
        "clone",
        "--depth",
        "1",
        "--branch",
        f"v{version}",
        "--recurse-submodules",
        "--shallow-submodules",
        REPOSITORY,
        str(destination),
    ]


def _clone(version: str, destination: Path) -> None:
    print(f"git clone of PyTorch v{version} with its submodules: about 3 GB, 5 to 30 minutes", file=sys.stderr)
    with new_folder(destination) as tree:
        if subprocess.run(clone_command(version, tree), stdout=sys.stderr).returncode:
            raise OverlayError(
                f"git clone of v{version}",
                "it failed; its messages are above",
                f"check the network and that the tag exists, then run it again ({display(destination)} is not there)",
            )


def _installed(version: str) -> Path:
    found = installed_version()
    if found != version:
        raise OverlayError(
            f"{sys.executable}: torch {found or 'none'}",
            f"SOURCE=installed takes the torch of this interpreter, and {version} was asked for",
            f"make fetch VERSION={version} SOURCE=wheel, or TORCH={version}",
        )
    return wheels.installed_site(sys.executable)
