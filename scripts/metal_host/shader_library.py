"""`compile_shader`: what torch.mps.compile_shader is on a Mac, for tensors on the CPU."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import compiler, executor, frontend
from .executor import KernelFunction, Memory, Options

_DEFAULT = Options()
_options: ContextVar[Options] = ContextVar("options", default=_DEFAULT)


@contextmanager
def options(**changes: Any) -> Iterator[None]:
    """Within it, kernels are compiled and run so: `with options(sanitize=True, schedule="reverse"): ...`"""
    if changes.get("schedule", "forward") not in executor.SCHEDULES:
        raise ValueError(
            f"expected schedule to be one of {', '.join(executor.SCHEDULES)}, but got {changes['schedule']}"
        )
    token = _options.set(replace(_options.get(), **changes))
    try:
        yield
    finally:
        _options.reset(token)


# ---- The error buffer ----------------------------------------------------------------------


@dataclass
class _ErrorBuffer:
    """c10/metal/error.h's ErrorMessages: a count, then 30 of file[128], func[128], message[250], line."""

    count = 30
    message = struct.Struct("128s128s250s2xI")
    memory: np.ndarray = field(default_factory=lambda: np.zeros(4 + 30 * 512, dtype=np.uint8))

    def take(self) -> str | None:
        """The first message since it was last asked, as MPSStream reports it."""
        if not self.memory[:4].any():
            return None
        file, function, text, line = self.message.unpack(self.memory[4 : 4 + self.message.size].tobytes())
        self.memory[:] = 0
        function, file, text = (part.split(b"\0")[0].decode(errors="replace") for part in (function, file, text))
        return f"{text}\nException raised from {function} at {file}:{line}"


_error_buffer = _ErrorBuffer()


def synchronize() -> None:
    """Raises what kernels reported, as torch.mps.synchronize() does. Kernels themselves have long finished."""
    if message := _error_buffer.take():
        raise torch.AcceleratorError(message)


# ---- Arguments -----------------------------------------------------------------------------

_CASTS = {
    "fp16": np.float16,
    "bf16": None,  # numpy has none
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
}


def _tensor_memory(tensor: torch.Tensor) -> Memory:
    """From the first element of a tensor on; what its elements span may be touched."""
    if tensor.device.type != "cpu":
        raise RuntimeError(f"expected tensors on the CPU, but got one on {tensor.device}")
    data = tensor.data_ptr()
    if tensor.numel() == 0:
        return Memory(data, data, data)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return Memory(data, data, data + (last + 1) * tensor.element_size())


def _value_bytes(value: Any, cast: str | None) -> bytes:
    """A number, or several, as torch.mps.compile_shader passes them: float32, int64 or bool unless cast."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
    if cast is not None and cast not in _CASTS:
        raise RuntimeError(f"Unsupported cast instruction {cast}")
    if cast == "bf16":
        return torch.tensor(values, dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
    if all(isinstance(v, bool) for v in values):
        default: Any = np.bool_
    elif all(isinstance(v, int) for v in values):
        default = np.int64
    elif all(isinstance(v, int | float) for v in values):
        default = np.float32
    else:
        raise RuntimeError("Unexpected argument types")
    return np.array(values, dtype=_CASTS[cast] if cast else default).tobytes()


def _memory_of(array: np.ndarray) -> Memory:
    data = array.ctypes.data
    return Memory(data, data, data + array.nbytes)


def _three(sizes: Sequence[int]) -> list[int]:
    return [*map(int, sizes), *[1] * (3 - len(sizes))]


def _sizes(name: str, value: int | Sequence[int] | None) -> list[int] | None:
    if value is None:
        return None
    sizes = [value] if isinstance(value, int) else list(value)
    if not 0 < len(sizes) < 4:
        raise RuntimeError(f"expected {name} to have 1 to 3 sizes, but got {sizes}")
    return sizes


class MetalKernel:
    """A kernel that runs when it is called; as torch._C._mps_MetalKernel."""

    def __init__(self, library: ShaderLibrary, name: str):
        self._library = library
        self._name = name

    def __call__(
        self,
        *args: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Sequence[str | None] | dict[int, str] | None = None,
        error_buf_idx: int | None = None,
    ) -> None:
        """Runs the kernel for `threads` threads in groups of `group_size`, which need not divide them.

        args:          tensors and numbers, bound to buffer 0, 1, ...
        threads:       by default the number of elements of the first tensor
        arg_casts:     what a number is passed as instead of float32 or int64
        error_buf_idx: where to bind the buffer that TORCH_REPORT_ERROR writes to
        """
        grid, group = _sizes("threads", threads), _sizes("group_size", group_size)
        memory: dict[int, Memory] = {}
        keep: list[np.ndarray] = []
        for index, arg in enumerate(args):
            if isinstance(arg, torch.Tensor):
                memory[index] = _tensor_memory(arg)
                grid = grid or [arg.numel()]
                continue
            # Uploaded bytes start at an address that suits any type.
            padded = np.zeros(16 * 16, dtype=np.uint8)
            value = np.frombuffer(_value_bytes(arg, _cast_of(arg_casts, index)), dtype=np.uint8)
            start = -padded.ctypes.data % 16
            array = padded[start : start + value.size]
            array[:] = value
            keep.append(padded)
            memory[index] = _memory_of(array)
        if error_buf_idx is not None:
            memory[error_buf_idx] = _memory_of(_error_buffer.memory)
        if grid is None:
            raise RuntimeError("Number of threads is undefined or has wrong dimension")
        function = self._library.function(self._name)
        if group is None:
            group = [min(grid[0], function.max_threads), *[1] * (len(grid) - 1)]
        if len(group) != len(grid):
            raise RuntimeError(f"expected group_size to have as many sizes as threads, but got {group} and {grid}")
        if 0 in grid:
            return
        nothing = Memory(0, 0, 0)
        buffers = [memory.get(index, nothing) for index in range(max(memory, default=-1) + 1)]
        function.run(buffers, _three(grid), _three(group), _options.get())

    @property
    def max_threads_per_threadgroup(self) -> int:
        return self._library.function(self._name).max_threads

    @property
    def thread_execution_width(self) -> int:
        return 32


def _cast_of(casts: str | Sequence[str | None] | dict[int, str] | None, index: int) -> str | None:
    if casts is None or isinstance(casts, str):
        return casts
    if isinstance(casts, dict):
        return casts.get(index)
    raise RuntimeError("Unexpected caster arg type")


class ShaderLibrary:
    """The kernels of one source, as attributes; as torch._C._mps_ShaderLibrary."""

    def __init__(self, source: str, name: str, level: compiler.Level, torch_include: Path | None = None):
        self._name, self._level = name, level
        self._rewritten = frontend.rewrite(source, name, level, torch_include)
        self._names = [entry.host_name for entry in self._rewritten.entries]
        self._compiled: dict[bool, dict[str, KernelFunction]] = {}
        self._compile(_options.get().sanitize)

    def _compile(self, sanitize: bool) -> dict[str, KernelFunction]:
        if sanitize not in self._compiled:
            path = compiler.compile_library(self._rewritten.text, self._name, self._level, sanitize)
            self._compiled[sanitize] = executor.load(path)
        return self._compiled[sanitize]

    def function(self, name: str) -> KernelFunction:
        return self._compile(_options.get().sanitize)[name]

    def __getattr__(self, name: str) -> MetalKernel:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"{self._name} has no kernel `{name}`; it has {', '.join(self._names) or 'none'}")
        return MetalKernel(self, name)

    def __dir__(self) -> list[str]:
        return list(self._names)


def compile_shader(source: str, *, level: str = "3.1") -> ShaderLibrary:
    """As torch.mps.compile_shader, for tensors on the CPU. `level`: the Metal that the source may use."""
    return ShaderLibrary(source, "program_source", compiler.LEVELS[level])


def load_metal(path: Path | str, *, level: str = "3.1") -> ShaderLibrary:
    """The kernels of a .metal file."""
    path = Path(path)
    return ShaderLibrary(path.read_text(), str(path), compiler.LEVELS[level])
