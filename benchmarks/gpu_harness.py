"""What the GPU benchmarks share: interleaved timing by CUDA graphs, copies of equal bytes, peak memory."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

Call = Callable[[int], object]  # the call on set i of the inputs


def capture(call: Call, sets: int) -> torch.cuda.CUDAGraph:
    for i in range(2):
        call(i % sets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        kept = [call(i) for i in range(sets)]
    graph.kept = kept  # each call has an output of its own
    return graph


def compare(calls: dict[str, Call], sets: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call, per candidate and round."""
    graphs = {}
    for name, call in calls.items():
        try:
            graphs[name] = capture(call, sets)
        except torch.OutOfMemoryError:
            print(f"without {name}: out of memory", file=sys.stderr)
            torch.cuda.empty_cache()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for i in range(rounds + 3):
        events = []
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            events.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in events:
            if i >= 3:
                times[name].append(start.elapsed_time(end) / sets)
    return times


def extra_memory(call: Call) -> float:
    call(0)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call(0)
    torch.cuda.synchronize()
    del result
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def copies(nbytes: int, sets: int) -> dict[str, Call]:
    """What moves nbytes in all, half of them read, half written: the driver's copy, and a kernel's.

    The driver's is far slower for some sizes than for others; the ceiling is the faster of the two.
    """
    source = [torch.randint(-100, 100, (nbytes // 8,), dtype=torch.int32, device="cuda") for _ in range(sets)]
    target = [torch.empty_like(tensor) for tensor in source]
    return {
        "copy": lambda i: target[i].copy_(source[i]),
        "copy kernel": lambda i: torch.bitwise_not(source[i], out=target[i]),
    }
