"""What all benchmarks share: interleaved timing, and peak memory.

Times are compared within one run only: every round times each candidate once, in turn, so that a
slow moment of the machine hits all of them; a ratio is taken per round, and its median and its
20th and 80th percentiles are reported.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Spread:
    """Median and 20th and 80th percentiles."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        cuts = statistics.quantiles(values, n=5, method="inclusive")
        return Spread(statistics.median(values), cuts[0], cuts[-1])

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}..{self.high:{spec}})"


@dataclass(frozen=True)
class Comparison:
    seconds: dict[str, list[float]]  # per candidate, one value a round

    def time(self, name: str) -> Spread:
        """Milliseconds."""
        return Spread.of([1e3 * value for value in self.seconds[name]])

    def speedup(self, name: str, over: str) -> Spread:
        """How many times faster `name` is than `over`."""
        pairs = zip(self.seconds[name], self.seconds[over])
        return Spread.of([other / own for own, other in pairs])


def compare(candidates: dict[str, Callable[[], object]], rounds: int = 15, warmup: int = 2) -> Comparison:
    """Times the candidates in turn, `rounds` times each."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for i in range(warmup + rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            result = run()
            elapsed = time.perf_counter() - start
            del result  # outside the timed region, and before the next candidate allocates
            if i >= warmup:
                seconds[name].append(elapsed)
    return Comparison(seconds)


def extra_memory(run: Callable[[], object]) -> int | None:
    """Bytes by which a call raises the resident memory at its peak, its results included.

    Read from the kernel (Linux only, else None), so that what an allocator does not report counts.
    """
    if platform.system() != "Linux":
        return None
    run()  # code, thread pools and scratch of the first call
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that malloc keeps from earlier calls would hide what this one takes
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # peak := current
    before = _status("VmRSS")
    result = run()
    peak = _status("VmHWM")
    del result
    return peak - before


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def machine() -> str:
    """One line: processor, threads, release."""
    cpu = platform.processor() or platform.machine()
    if platform.system() == "Linux":
        with open("/proc/cpuinfo") as file:
            cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), cpu)
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu} ({capability}), {torch.get_num_threads()} threads, torch {torch.__version__}"
