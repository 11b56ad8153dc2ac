"""torch.backends.cudnn.conv_transpose1d_kernel: what computes a 1-D transposed convolution on CUDA."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Optional

import torch


def get_kernel() -> str:
    with torch._C._DisableTorchDispatch():  # a mode sees tensors, not settings
        return torch.ops.aten_overlay.conv_transpose1d_kernel()


def set_kernel(kernel: str) -> None:
    if not isinstance(kernel, str):
        raise ValueError(
            'torch.backends.cudnn.conv_transpose1d_kernel must be "auto", "cudnn" or "native", '
            f"got {kernel!r}"
        )
    with torch._C._DisableTorchDispatch():
        torch.ops.aten_overlay.set_conv_transpose1d_kernel(kernel)


def with_kernel(flags: Callable) -> Callable:
    """Lets torch.backends.cudnn.flags take a ``conv_transpose1d_kernel``, which it leaves as it is without one."""

    @contextmanager
    @wraps(flags)
    def flags_with_kernel(
        *args: Any, conv_transpose1d_kernel: Optional[str] = None, **kwargs: Any
    ) -> Generator[None, None, None]:
        before = get_kernel()
        with flags(*args, **kwargs):
            if conv_transpose1d_kernel is not None:
                set_kernel(conv_transpose1d_kernel)
            try:
                yield
            finally:
                set_kernel(before)

    return flags_with_kernel


def native_counts() -> dict[str, int]:
    """How often each pass was computed by a native kernel in this process."""
    passes = ("forward", "grad_input", "grad_weight", "grad_bias")
    with torch._C._DisableTorchDispatch():
        return dict(zip(passes, torch.ops.aten_overlay.conv_transpose1d_counts()))
