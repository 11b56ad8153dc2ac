"""Our part of native_functions.yaml and derivatives.yaml, out of the patch files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from packaging.version import Version

from ..edits import apply_edits
from ..errors import OverlayError
from ..model import Edit

NATIVE_FUNCTIONS = "aten/src/ATen/native/native_functions.yaml"
DERIVATIVES = "tools/autograd/derivatives.yaml"

_DEVICES = ("CUDA", "MPS")
_DISPATCH_OPERATIONS = ("add_dispatch", "move_dispatch", "set_dispatch")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is 10 times faster

Entry = dict[str, Any]


def our_entries(edits: list[Edit], target: str, version: Version) -> str:
    """The entries that the edits of one of the two files add for this version, as one YAML list.

    An operator of PyTorch that only gains a device keeps the wheel's registration: a kernel of ours for it registers
    itself, as host code of CUDA does, or waits for a build that has the device.
    """
    texts = []
    for edit in edits:
        if edit.target != target or not edit.applies_to(version) or device_of(edit):
            continue
        if edit.operation != "add_entries":
            raise OverlayError(
                edit.place,
                f"wheel mode builds operators that torch does not have; it cannot do `{edit.operation}`",
            )
        texts.append(edit.arguments["entries"])
    return "\n".join(texts) or "[]\n"


def device_of(edit: Edit) -> str | None:
    """The device that an edit gives to operators which PyTorch has."""
    key = edit.arguments.get("key")
    is_dispatch = edit.target == NATIVE_FUNCTIONS and edit.operation in _DISPATCH_OPERATIONS
    return key if is_dispatch and key in _DEVICES else None


def entries_with_device(native_functions: bytes, edits: list[Edit], version: Version, device: str) -> str:
    """The operators of PyTorch whose kernels for a device are the overlay's, as a YAML list.

    They are those that an edit gives the device, and those whose kernel an edit takes out of PyTorch's sources because
    ours has its name. All overloads come along, the device left out of those whose kernel stays PyTorch's.
    """
    edits = [edit for edit in edits if edit.applies_to(version)]
    ours = [edit for edit in edits if device_of(edit) == device]
    patched, outcomes = apply_edits(NATIVE_FUNCTIONS, native_functions, ours)
    for outcome in outcomes:
        if outcome.error:
            raise outcome.error
    named = {name for edit in ours for name in edit.arguments["functions"]}
    replaced = set(_replaced_kernels(edits))
    entries = {_name(entry): entry for entry in yaml.load(patched, _LOADER)}
    taken = {name for name, entry in entries.items() if name in named or _kernel(entry, device) in replaced}
    operators = {_operator(name) for name in taken}
    groups = [entry for name, entry in entries.items() if _operator(name) in operators]
    for entry in groups:
        if _name(entry) not in taken:
            _drop(entry, device)
    return yaml.safe_dump(groups, sort_keys=False, width=10**6) if groups else "[]\n"


def _replaced_kernels(edits: list[Edit]) -> Iterator[str]:
    for edit in edits:
        if edit.operation == "remove_definition" and edit.target.startswith("aten/src/ATen/native/"):
            # at::native::name, or TORCH_IMPL_FUNC(name)
            yield edit.arguments["definition"].rpartition("(")[2].rpartition("::")[2].rstrip(") ")


def _name(entry: Entry) -> str:
    return entry["func"].partition("(")[0].strip()


def _operator(name: str) -> str:
    """Without the overload, and without the underscore of an in-place variant."""
    base = name.partition(".")[0]
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


def _keys(line: str) -> list[str]:
    return [key.strip() for key in line.split(",")]


def _kernel(entry: Entry, device: str) -> str | None:
    dispatch = entry.get("dispatch", {})
    return next((kernel for line, kernel in dispatch.items() if device in _keys(line)), None)


def _drop(entry: Entry, device: str) -> None:
    dispatch = entry.get("dispatch", {})
    rest = {", ".join(key for key in _keys(line) if key != device): kernel for line, kernel in dispatch.items()}
    rest.pop("", None)
    if dispatch:
        entry["dispatch"] = rest
