"""Metal kernels without a Mac: type-checked by clang with real address spaces, and run on the CPU.

    lib = metal_host.compile_shader(source)          # on a Mac: torch.mps.compile_shader(source)
    lib.kernel(input, output, threads=[n], group_size=[256])

docs/metal.md says how to write, run and debug kernels with it, and what it cannot show.
"""

from __future__ import annotations

from typing import Any

_LAZY = ("compile_shader", "load_metal", "options", "synchronize")  # these need torch; type-checking does not


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from . import shader_library

        return getattr(shader_library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
