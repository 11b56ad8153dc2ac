"""How the benchmarks and `make demo` measure: in one process, alternating, so that only ratios are compared."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # before torch: its profiler prints to stderr otherwise

import torch  # noqa: E402, F401
from torch.profiler import ProfilerActivity, profile  # noqa: E402


@dataclass(frozen=True)
class Spread:
    median: float
    low: float  # the 20th percentile
    high: float  # the 80th

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        fifths = statistics.quantiles(values, n=5, method="inclusive")
        return cls(statistics.median(values), fifths[0], fifths[-1])


@dataclass(frozen=True)
class Comparison:
    ours: Spread  # seconds
    peer: Spread  # seconds
    ratio: Spread  # how many times faster ours is, round by round


def compare(ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> Comparison:
    """Times both in alternating rounds, after one call each to warm up. For the CPU: nothing is synchronised."""
    ours(), peer()
    seconds = [(_seconds(ours), _seconds(peer)) for _ in range(rounds)]
    return Comparison(
        Spread.of([a for a, _ in seconds]),
        Spread.of([b for _, b in seconds]),
        Spread.of([b / a for a, b in seconds]),
    )


def peak_bytes(function: Callable[[], object]) -> int:
    """The most memory PyTorch's CPU allocator held during the call beyond what it held before, results included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()  # noqa: F841  alive until the profiler stops
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
