"""The patch files: `patches/<path of the upstream file>.yaml`, loaded and checked.

    edits:
    - id: causal_conv1d-entries          # unique over all patch files
      description: What it does and why.
      upstream: not proposed             # or: PR <number> | merged in <version>
      versions: ">=2.6"                  # optional; the releases it is for
      count: 1                           # optional; how many places it must touch (1 for each of its `functions`)
      <operation>: {<its arguments>}     # exactly one; the operations are in edits/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from .errors import OverlayError
from .paths import PATCHES, REPO

_FIELDS = {"id", "description", "upstream", "versions", "count"}
_UPSTREAM = re.compile(r"not proposed|PR \d+|merged in \d+(\.\d+)+")


@dataclass(frozen=True)
class Edit:
    id: str
    description: str
    upstream: str
    versions: SpecifierSet
    count: int
    operation: str
    arguments: dict[str, Any]
    target: str  # path of the upstream file, relative to the tree
    place: str  # "patches/....yaml: id", for messages

    def applies_to(self, version: Version) -> bool:
        return self.versions.contains(version.base_version, prereleases=True)


def load_patches(root: Path = PATCHES) -> list[Edit]:
    """All edits, in the order of their files' paths and then of each file."""
    edits: list[Edit] = []
    seen: dict[str, str] = {}
    for file in sorted(root.rglob("*.yaml")):
        for edit in _load_file(file, root):
            if edit.id in seen:
                rule = f"an edit id is unique; {seen[edit.id]} has it too"
                raise OverlayError(edit.place, rule, "rename one of them")
            seen[edit.id] = edit.place
            edits.append(edit)
    return edits


def _load_file(file: Path, root: Path) -> list[Edit]:
    name = str(file.relative_to(REPO)) if file.is_relative_to(REPO) else str(file)
    try:
        content = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise OverlayError(name, f"a patch file is valid YAML: {error}") from None
    if not isinstance(content, dict) or set(content) != {"edits"} or not isinstance(content["edits"], list):
        raise OverlayError(name, "a patch file holds one key, `edits`, with a list")
    target = str(file.relative_to(root))[: -len(".yaml")]
    return [_load_edit(raw, target, name) for raw in content["edits"]]


def _load_edit(raw: Any, target: str, name: str) -> Edit:
    place = f"{name}: {raw.get('id', '?') if isinstance(raw, dict) else raw}"
    if not isinstance(raw, dict):
        raise OverlayError(place, "an edit is a mapping")
    missing = {"id", "description", "upstream"} - raw.keys()
    if missing:
        names = ", ".join(sorted(missing))
        raise OverlayError(place, f"an edit has `id`, `description` and `upstream`; missing: {names}")
    if not _UPSTREAM.fullmatch(str(raw["upstream"])):
        values = "`not proposed`, `PR <number>` or `merged in <version>`"
        raise OverlayError(place, f"`upstream` is {values}, not `{raw['upstream']}`")
    operations = [key for key in raw if key not in _FIELDS]
    if len(operations) != 1:
        raise OverlayError(place, f"an edit has exactly one operation; found: {', '.join(operations) or 'none'}")
    try:
        versions = SpecifierSet(str(raw.get("versions", "")))
    except InvalidSpecifier:
        rule = f"`versions` is a version specifier such as `>=2.14`, not `{raw['versions']}`"
        raise OverlayError(place, rule) from None
    operation = operations[0]
    arguments = raw[operation]
    if not isinstance(arguments, dict):
        raise OverlayError(place, f"`{operation}` takes a mapping of arguments")
    count = raw.get("count", _places(arguments))
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise OverlayError(place, f"`count` is a whole number from 1, not `{count}`")
    id, description, upstream = (str(raw[field]).strip() for field in ("id", "description", "upstream"))
    return Edit(id, description, upstream, versions, count, operation, arguments, target, place)


def _places(arguments: dict[str, Any]) -> int:
    functions = arguments.get("functions")
    return len(functions) if isinstance(functions, list) and functions else 1
