"""Loading a build into the running torch."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ._builds import Build, find_build
from ._replay import replay

# Every torch that was built with the overlay has this operator.
_MARKER = "causal_conv1d"


def load() -> Build | None:
    """None if torch has the operators already."""
    if _is_defined(_MARKER):
        return None
    build = find_build()
    if present := [name for name in build.manifest["operators"] if _is_defined(name)]:
        raise ImportError(f"torch_overlay cannot be loaded: another library has defined {', '.join(present)}")
    torch.ops.load_library(build.library)
    _bind(build.manifest["bindings"])
    replay(build.manifest["packages"], build.manifest["python_edits"], build.folder / "python")
    return build


def _is_defined(operator: str) -> bool:
    return torch._C._dispatch_has_kernel(f"aten::{operator}")


def _bind(bindings: dict[str, Any]) -> None:
    """The names that PyTorch's build generates Python bindings for."""
    for module_name, names in bindings["module"].items():
        module = importlib.import_module(module_name)
        for name in names:
            setattr(module, name, getattr(torch.ops.aten, name))
        if hasattr(module, "__all__"):
            module.__all__ += [name for name in names if not name.startswith("_")]
    for name in bindings["method"]:
        setattr(torch.Tensor, name, _method(name))


def _method(name: str) -> Any:
    operator = getattr(torch.ops.aten, name)

    def method(self, *args, **kwargs):
        return operator(self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    return method
