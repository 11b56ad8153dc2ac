"""Our part of native_functions.yaml and derivatives.yaml, out of the patch files."""

from __future__ import annotations

from packaging.version import Version

from ..errors import OverlayError
from ..model import Edit

NATIVE_FUNCTIONS = "aten/src/ATen/native/native_functions.yaml"
DERIVATIVES = "tools/autograd/derivatives.yaml"


def our_entries(edits: list[Edit], target: str, version: Version) -> str:
    """The entries that the edits of one of the two files add for this version, as one YAML list."""
    texts = []
    for edit in edits:
        if edit.target != target or not edit.applies_to(version):
            continue
        if edit.operation != "add_entries":
            raise OverlayError(
                edit.place,
                f"wheel mode builds operators that torch does not have; it cannot do `{edit.operation}`",
            )
        texts.append(edit.arguments["entries"])
    return "\n".join(texts) or "[]\n"
