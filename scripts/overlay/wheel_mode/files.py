"""Writing what is generated, so that an unchanged file keeps its time and ninja stays quiet."""

from __future__ import annotations

import os
from pathlib import Path


def write_if_changed(path: Path, text: str) -> None:
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


def sync_folder(folder: Path, files: dict[str, str]) -> None:
    """Makes `folder` hold exactly `files` (relative path to text)."""
    for name, text in files.items():
        write_if_changed(folder / name, text)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in files:
            path.unlink()
