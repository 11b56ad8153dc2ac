"""The executor, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import compiler

SCHEDULES = {"forward": 0, "reverse": 1, "simdgroup": 2, "simdgroup-reverse": 3}
BUFFER, THREADGROUP_MEMORY, POSITION = range(3)


class _Argument(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint),
        ("index", ctypes.c_uint),
        ("size", ctypes.c_uint),
        ("alignment", ctypes.c_uint),
        ("is_reference", ctypes.c_ubyte),
        ("is_constant", ctypes.c_ubyte),
    ]


class _Kernel(ctypes.Structure):
    pass


_Kernel._fields_ = [
    ("name", ctypes.c_char_p),
    ("run", ctypes.c_void_p),
    ("arguments", ctypes.POINTER(_Argument)),
    ("argument_count", ctypes.c_uint),
    ("max_total_threads", ctypes.c_uint),
    ("next", ctypes.POINTER(_Kernel)),
]


class _Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("begin", ctypes.c_void_p), ("end", ctypes.c_void_p)]


class _Dispatch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.POINTER(_Kernel)),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_uint32),
        ("threadgroup_lengths", ctypes.POINTER(ctypes.c_uint32)),
        ("threadgroup_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("schedule", ctypes.c_int32),
        ("host_threads", ctypes.c_uint32),
        ("keep_denormals", ctypes.c_uint8),
    ]


class Counters(ctypes.Structure):
    """How much ran since the start of the process."""

    _fields_ = [
        ("dispatches", ctypes.c_uint64),
        ("groups", ctypes.c_uint64),
        ("barriers", ctypes.c_uint64),
        ("simd_operations", ctypes.c_uint64),
    ]


@cache
def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiler.runtime()), mode=ctypes.RTLD_GLOBAL)
    library.metal_host_run.argtypes = [ctypes.POINTER(_Dispatch), ctypes.c_char_p, ctypes.c_size_t]
    library.metal_host_kernels.argtypes = [ctypes.c_void_p]
    library.metal_host_kernels.restype = ctypes.POINTER(_Kernel)
    library.metal_host_read_counters.argtypes = [ctypes.POINTER(Counters)]
    return library


def read_counters() -> Counters:
    counters = Counters()
    _runtime().metal_host_read_counters(counters)
    return counters


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory bound from `data` on, of which [begin, end) may be touched."""

    data: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Options:
    """How kernels run. What is right gives the same results under all of these."""

    sanitize: bool = False  # check every load and store, and for undefined behaviour
    schedule: str = "forward"  # one of SCHEDULES
    host_threads: int = 1
    keep_denormals: bool = False  # PyTorch has Metal compiled with float denormals as zero


class KernelFunction:
    """A compiled kernel."""

    def __init__(self, kernel: ctypes._Pointer):
        self._kernel = kernel
        contents = kernel.contents
        self.name: str = contents.name.decode()
        self.max_threads: int = contents.max_total_threads
        self.arguments = [contents.arguments[i] for i in range(contents.argument_count)]

    def run(
        self,
        buffers: Sequence[Memory],
        grid: Sequence[int],
        group: Sequence[int],
        options: Options,
        threadgroup_lengths: Sequence[int] = (),
    ) -> None:
        dispatch = _Dispatch(
            self._kernel,
            (_Buffer * len(buffers))(*(_Buffer(m.data, m.begin, m.end) for m in buffers)),
            len(buffers),
            (ctypes.c_uint32 * len(threadgroup_lengths))(*threadgroup_lengths),
            len(threadgroup_lengths),
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*group),
            SCHEDULES[options.schedule],
            options.host_threads,
            options.keep_denormals,
        )
        message = ctypes.create_string_buffer(1024)
        if _runtime().metal_host_run(dispatch, message, len(message)):
            raise RuntimeError(message.value.decode(errors="replace"))


def load(path: Path) -> dict[str, KernelFunction]:
    """The kernels of a compiled library, by name."""
    runtime = _runtime()
    library = ctypes.CDLL(str(path))
    kernels = {}
    pointer = runtime.metal_host_kernels(library._handle)
    while pointer:
        kernel = KernelFunction(pointer)
        kernels[kernel.name] = kernel
        pointer = pointer.contents.next
    return kernels
