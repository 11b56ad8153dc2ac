"""Fetches PyTorch's source package of a Debian release, with Debian's patches applied.

The mirror, proxies and credentials are those of the machine's own APT configuration. APT works on a
private state below build/, so nothing of the system changes and no root is needed, and it checks every
file against the signature of the Debian archive.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .errors import OverlayError
from .paths import BUILD
from .trees import new_folder

_KEYRINGS = [Path("/usr/share/keyrings") / f"debian-archive-keyring.{suffix}" for suffix in ("gpg", "pgp")]
_SUITES = {"oldoldstable", "oldstable", "stable", "testing", "unstable", "sid", "bookworm", "trixie", "forky"}
_OS_RELEASE = Path("/etc/os-release")


def fetch_source(version: str, suite: str, destination: Path) -> None:
    _require_tools()
    archive_keyring = keyring()
    for mirror in mirrors():
        description = _download(version, suite, mirror, archive_keyring)
        if description:
            with new_folder(destination) as tree:
                _run(["dpkg-source", "--extract", str(description), str(tree)], cwd=description.parent)
            return
    raise OverlayError(
        f"PyTorch {version} in Debian {suite}",
        "no configured mirror gave its source package; see above",
        "check the network and the mirror in APT's configuration, then run it again: it resumes",
    )


def _require_tools() -> None:
    if not shutil.which("apt-get"):
        raise OverlayError(
            "apt-get",
            "Debian's source package is fetched by APT, which this machine lacks",
            "use a Debian machine or container, or SOURCE=git",
        )
    if not shutil.which("dpkg-source"):
        raise OverlayError(
            "dpkg-source", "it unpacks the source package and is not installed", "apt-get install dpkg-dev"
        )


def keyring() -> Path:
    found = next((path for path in _KEYRINGS if path.is_file()), None)
    if found is None:
        raise OverlayError(
            "the Debian archive keyring",
            "it verifies Debian's packages and is not installed",
            "apt-get install debian-archive-keyring",
        )
    return found


def mirrors() -> list[str]:
    """The Debian mirrors that APT is configured with, whatever the format of its lists."""
    output = subprocess.run(
        ["apt-get", "update", "--print-uris"], capture_output=True, text=True, env=_environment()
    ).stdout
    found = parse_mirrors(output, _SUITES | _own_suite())
    if not found:
        raise OverlayError(
            "APT's configuration",
            "it names no Debian mirror to take the source package from",
            "use a Debian machine or container, or SOURCE=git",
        )
    return found


def parse_mirrors(uris: str, suites: set[str]) -> list[str]:
    """The mirrors in what `apt-get update --print-uris` prints: '<mirror>/dists/<suite>/InRelease' lines."""
    found = re.findall(r"^'(\S+?)/dists/([^/\s]+)/InRelease'", uris, re.MULTILINE)
    return list(dict.fromkeys(mirror for mirror, suite in found if suite in suites))


def _own_suite() -> set[str]:
    text = _OS_RELEASE.read_text() if _OS_RELEASE.is_file() else ""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {values["VERSION_CODENAME"]} if values.get("ID") == "debian" and "VERSION_CODENAME" in values else set()


def _download(version: str, suite: str, mirror: str, keyring: Path) -> Path | None:
    """The downloaded .dsc file, or None where this mirror does not give it."""
    print(
        f"Debian {suite}: package lists (about 11 MB) and PyTorch's source (about 27 MB) from {mirror}", file=sys.stderr
    )
    config = _private_apt(suite, mirror, keyring)
    sources = BUILD / "sources" / suite
    sources.mkdir(parents=True, exist_ok=True)
    try:
        _run(["apt-get", "-c", str(config), "-o", "APT::Update::Error-Mode=any", "update"])
        package = f"pytorch={_package_version(config, version, suite)}"
        _run(["apt-get", "-c", str(config), "source", "--download-only", "--only-source", package], cwd=sources)
    except OverlayError as error:
        print(error.render(), file=sys.stderr)
        return None
    return max(sources.glob(f"pytorch_{version}*.dsc"), key=lambda path: path.stat().st_mtime)


def _private_apt(suite: str, mirror: str, keyring: Path) -> Path:
    root = BUILD / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "no-parts"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "sources.list").write_text(f"deb-src [signed-by={keyring}] {mirror} {suite} main\n")
    config = root / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "{root}/sources.list";\n'
        f'Dir::Etc::sourceparts "{root}/no-parts";\n'
        f'Dir::State::lists "{root}/lists";\n'
        f'Dir::Cache "{root}/cache";\n'
        'APT::Sandbox::User "root";\n'  # the download user may not be able to reach this folder
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n"
    )
    return config


def _package_version(config: Path, version: str, suite: str) -> str:
    output = subprocess.run(
        ["apt-cache", "-c", str(config), "showsrc", "pytorch"], capture_output=True, text=True, env=_environment()
    ).stdout
    versions = re.findall(r"^Version: (\S+)$", output, re.MULTILINE)
    for found in versions:
        if re.split(r"[+~-]", found)[0] == version:
            return found
    raise OverlayError(
        f"Debian {suite}",
        f"it has PyTorch {', '.join(versions) or 'in no version'}, not {version}",
        "`debian` in versions.toml names the Debian release",
    )


def _run(command: list[str], cwd: Path | None = None) -> None:
    status = subprocess.run(command, cwd=cwd, stdout=sys.stderr, env=_environment()).returncode
    if status:
        raise OverlayError(
            " ".join(command[:1] + command[-2:]), f"it failed with status {status}; its messages are above"
        )


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}
