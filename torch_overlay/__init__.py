"""The operators of aten-overlay beside an installed PyTorch.

    import torch, torch_overlay
    torch.nn.functional.causal_conv1d(...)

The import loads the library that `make wheel-mode` built for this torch and gives every name the place it has in a
PyTorch that was built with the overlay. In such a PyTorch it does nothing. No file of the installed torch is changed.
"""

from typing import Any

from . import _runtime
from ._version import __version__ as __version__

_build = _runtime.load()


def build_info() -> dict[str, Any]:
    """What is in use: `mode` is "wheel", or "source" for a torch that was built with the overlay."""
    if _build is None:
        return {"mode": "source"}
    return {"mode": "wheel", "folder": str(_build.folder), **_build.manifest}
