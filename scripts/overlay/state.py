"""What the tool did to a tree, in one file at the tree's root.

It is the journal as well: it is written before the first file is touched, with `complete` false, and holds for every
touched file the hash before, every hash the tool may have left there, and the original. So whatever happens in
between, each file is either as upstream has it or as the tool made it, and `apply` and `revert` can go on from there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import OverlayError

STATE_FILE = ".aten-overlay.json"
_FORMAT = 1


@dataclass(frozen=True)
class FileRecord:
    """A touched file. `before` and `original` are None where the tool added the file."""

    before: str | None
    after: tuple[str, ...]  # more than one only in a journal
    original: str | None  # base64 of the zlib-compressed bytes

    def is_ours(self, sha256: str | None) -> bool:
        return sha256 == self.before or sha256 in self.after

    def original_data(self) -> bytes | None:
        return None if self.original is None else zlib.decompress(base64.b64decode(self.original))


@dataclass(frozen=True)
class EditRecord:
    fingerprint: str  # of the edit as it was applied
    file: str
    lines: tuple[int, ...]  # in the file as upstream has it


@dataclass(frozen=True)
class State:
    version: str
    files: dict[str, FileRecord]
    edits: dict[str, EditRecord]
    folders: tuple[str, ...] = ()  # folders the tool made, outermost first
    complete: bool = True
    format: int = field(default=_FORMAT)

    def dump(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def record(original: bytes | None, *after: bytes | None) -> FileRecord:
    hashes = tuple(digest(data) for data in after if data is not None)
    if original is None:
        return FileRecord(None, hashes, None)
    return FileRecord(digest(original), hashes, base64.b64encode(zlib.compress(original)).decode())


def load_state(root: Path) -> State | None:
    """What stands in the tree, or None where nothing was applied."""
    try:
        content = json.loads((root / STATE_FILE).read_bytes())
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}")
        files = {path: FileRecord(item["before"], tuple(item["after"]), item["original"])
                 for path, item in content["files"].items()}
        edits = {id: EditRecord(item["fingerprint"], item["file"], tuple(item["lines"]))
                 for id, item in content["edits"].items()}
        return State(content["version"], files, edits, tuple(content["folders"]), content["complete"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise OverlayError(str(root / STATE_FILE), f"it is a state file that this tool wrote: {error!r}",
                           "use the tool that applied the patches, or restore the tree from its source") from None


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
