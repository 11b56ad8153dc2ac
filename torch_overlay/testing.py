"""For tests. It imports torch.testing._internal, which is slow and needs what PyTorch's own tests need."""

from __future__ import annotations

import importlib
import sys

from . import _build

_DEFINITIONS = "torch.testing._internal.opinfo.definitions"
_SUITES = "torch.testing._internal.common_methods_invocations"


def op_db() -> list:
    """The OpInfos of the overlay's operators; PyTorch's own op_db has them too from then on."""
    if _build is None:
        raise RuntimeError("torch was built with the overlay: its own op_db has these OpInfos")
    definitions = importlib.import_module(_DEFINITIONS)
    edits = _build.manifest["python_edits"].get(_DEFINITIONS, [])
    elements = [text for edit in edits if edit.get("to") == "op_db" for text in edit["elements"]]
    ours = eval(f"[{', '.join(elements)}]", vars(definitions))
    if _SUITES in sys.modules:  # it copies the list; maybe before ours were in it
        suites = sys.modules[_SUITES]
        present = {id(op) for op in suites.op_db}
        suites.op_db += [op for op in ours if id(op) not in present]
    return ours
