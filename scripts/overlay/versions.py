"""versions.toml, the one list of supported PyTorch releases.

Standard library only: the Makefile and `make doctor` read it before `.venv` exists.

    python -m overlay.versions          prints the default release
    python -m overlay.versions table    prints the README's matrix
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import OverlayError
from .paths import VERSIONS

PARTS = ("cpu", "cuda", "metal")
ORIGINS = ("wheel", "debian", "git")
VERIFIED = ("check", "codegen", "compile", "run", "suites")  # each includes those before it
METAL = ("compiled", "simulated", "run")  # on Linux; on Linux, the operators too; on a Mac

_FIELDS = {"version", "parts", "tree", "debian", "metal", "verified", "default", "reference"}


@dataclass(frozen=True)
class Release:
    version: str
    parts: tuple[str, ...]
    tree: str
    verified: str
    debian: str = ""  # the Debian release whose source package it is
    metal: str = ""  # how far its Metal part was taken, of METAL
    default: bool = False
    reference: bool = False


def load_releases(path: Path = VERSIONS) -> list[Release]:
    import tomllib  # here, so that `make doctor` can tell an older Python what it lacks

    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise OverlayError(path.name, f"it is valid TOML: {error}") from None
    entries = content.get("release")
    if set(content) != {"release"} or not isinstance(entries, list) or not entries:
        raise OverlayError(path.name, "it holds one array of tables, `[[release]]`")
    releases = [_load_release(entry, path.name) for entry in entries]
    versions = [release.version for release in releases]
    for version in versions:
        if versions.count(version) > 1:
            raise OverlayError(f"{path.name}: {version}", "a release is listed once")
    for flag in ("default", "reference"):
        marked = [release.version for release in releases if getattr(release, flag)]
        if len(marked) != 1:
            raise OverlayError(
                path.name, f"exactly one release is `{flag} = true`; found: {', '.join(marked) or 'none'}"
            )
    return releases


def _load_release(entry: dict[str, Any], name: str) -> Release:
    version = entry.get("version")
    place = f"{name}: {version}"
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise OverlayError(place, 'a release has a `version` such as "2.13.0"')
    unknown = entry.keys() - _FIELDS
    if unknown:
        raise OverlayError(place, f"unknown field {', '.join(sorted(unknown))}; known: {', '.join(sorted(_FIELDS))}")
    parts = entry.get("parts")
    if not isinstance(parts, list) or not parts or not set(parts) <= set(PARTS):
        raise OverlayError(place, f"`parts` lists one or more of {', '.join(PARTS)}, not `{parts}`")
    for field, values in (("tree", ORIGINS), ("verified", VERIFIED)):
        if entry.get(field) not in values:
            raise OverlayError(place, f"`{field}` is one of {', '.join(values)}, not `{entry.get(field)}`")
    if (entry["tree"] == "debian") != bool(entry.get("debian")):
        raise OverlayError(place, '`debian` names the Debian release, where `tree` is "debian" and only there')
    if entry.get("metal", METAL[0]) not in METAL or ("metal" in parts) != ("metal" in entry):
        values = f"one of {', '.join(METAL)}, where `parts` lists metal and only there"
        raise OverlayError(place, f"`metal` says how far that part was taken: {values}")
    return Release(**{**entry, "parts": tuple(parts)})


def default_release() -> Release:
    return next(release for release in load_releases() if release.default)


def find_release(version: str) -> Release | None:
    return next((release for release in load_releases() if release.version == version), None)


def markdown_table(releases: list[Release]) -> str:
    """The supported matrix as it stands in the README."""
    rows = ["| PyTorch | CPU | CUDA | Metal | Tree from | Verified up to |", "|---|---|---|---|---|---|"]
    for release in releases:
        said = {"metal": release.metal}
        parts = " | ".join(said.get(part, "yes") if part in release.parts else "–" for part in PARTS)
        origin = f"Debian source ({release.debian})" if release.tree == "debian" else release.tree
        note = " (default)" if release.default else " (reference)" if release.reference else ""
        rows.append(f"| {release.version}{note} | {parts} | {origin} | {release.verified} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    try:
        print(markdown_table(load_releases()) if arguments == ["table"] else default_release().version)
    except OverlayError as error:
        print(error.render(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
