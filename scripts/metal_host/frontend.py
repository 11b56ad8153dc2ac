"""A Metal source, checked and made ready to compile."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from overlay.errors import OverlayError

from . import compiler
from .compiler import Level
from .errors import MetalErrors
from .kernels import Rewritten
from .rewrite import Rewriter

# What these ask for is so anyway; any other `#pragma METAL` is refused.
_FLOATING_PRAGMA = re.compile(
    r"^[ \t]*#[ \t]*pragma METAL fp (?:math_mode\(safe\)|contract\(off\))[ \t]*$", re.MULTILINE
)


def is_shared_header(file: str) -> bool:
    """Whether the host includes it too."""
    return file.endswith(".h") and "/native/mps/kernels/" in file


def rewrite(source: str, name: str, level: Level, torch: Path | None = None) -> Rewritten:
    """The source as C++; raises MetalErrors for what it may not have."""
    return rewrite_preprocessed(compiler.preprocess(source, name, level, torch or compiler.torch_include()), name)


def rewrite_preprocessed(text: str, name: str) -> Rewritten:
    rewriter = Rewriter(_FLOATING_PRAGMA.sub("", text), name, is_shared_header)
    result = rewriter.run()
    errors = [*rewriter.errors, *_twice(result)]
    if errors:
        raise MetalErrors([OverlayError(compiler.shown_place(error.place), error.rule, error.hint) for error in errors])
    return result


def type_check(source: str, name: str, level: Level, torch: Path | None = None) -> Rewritten:
    """The same, and checked by the compiler."""
    result = rewrite(source, name, level, torch)
    if errors := compiler.check(result.text, name, level):
        raise MetalErrors(errors)
    return result


def _twice(result: Rewritten) -> list[OverlayError]:
    counts = Counter(entry.host_name for entry in result.entries)
    first = {entry.host_name: entry for entry in reversed(result.entries)}
    return [
        OverlayError(
            entry.place, f'host_name "{entry.host_name}" is used twice', f"first at {first[entry.host_name].place}"
        )
        for entry in result.entries
        if counts[entry.host_name] > 1 and entry is not first[entry.host_name]
    ]
