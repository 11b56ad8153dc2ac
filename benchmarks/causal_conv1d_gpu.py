"""causal_conv1d on a GPU, against a copy that moves the same bytes, and against its peers.

    make bench OP=causal_conv1d DEVICE=cuda

Each candidate is captured in a CUDA graph of several calls that rotate over inputs and outputs, so that the
second-level cache is cold; every round replays each graph once, in turn, and ratios are taken within a round.
Bytes are the least that must move: input and output (forward), input, grad_output and grad_input (backward).
With --peers, other implementations are timed too: of causal_conv1d and fla, those that can be imported. The results go
to a CSV file, and from there into a figure: causal_conv1d_figure.py.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_harness import Call, compare, copies, extra_memory
from harness import Spread
from torch._functorch import config as functorch_config

import torch_overlay  # noqa: F401

B, D, W = 8, 5120, 4
COLD = 1 << 30  # bytes that a graph's calls go through, at least: many times the cache
FIELDS = ("case", "dtype", "layout", "B", "D", "T", "who", "ms", "ms_p20", "ms_p80", "GB/s", "of_copy", "extra_MiB")


class Bench:
    def __init__(self, rounds: int, writer) -> None:
        self.rounds = rounds
        self.writer = writer

    def report(self, case: str, x: torch.Tensor, layout: str, nbytes: int, calls: dict[str, Call], sets: int) -> None:
        """`calls` has the copies of equal bytes too."""
        times = compare(calls, sets, self.rounds)
        ceiling = min((times[name] for name in ("copy", "copy kernel")), key=statistics.median)
        for who, values in times.items():
            spread = Spread.of(values)
            share = Spread.of([copy / own for copy, own in zip(ceiling, values)])
            row = (
                case, str(x.dtype)[6:], layout, x.size(0), x.size(1), x.size(2) if x.dim() == 3 else 1, who,
                f"{spread.median:.5f}", f"{spread.low:.5f}", f"{spread.high:.5f}",
                f"{nbytes / spread.median / 1e6:.0f}", f"{share.median:.3f}", f"{extra_memory(calls[who]):.0f}",
            )  # fmt: skip
            self.writer.writerow(row)
            print(
                f"{case:22} {row[1]:8} {layout:13} T={row[5]:<6} {who:12} {spread.median:9.4f} ms "
                f"({spread.low:.4f}..{spread.high:.4f})  {row[10]:>5} GB/s  {100 * share.median:5.1f} % of the copy",
                flush=True,
            )


def tensors(dtype: torch.dtype, layout: str, time: int, sets: int, batch: int = B) -> list[torch.Tensor]:
    shape = (batch, D, time) if layout == "[B, D, T]" else (batch, time, D)
    made = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(sets)]
    return made if layout == "[B, D, T]" else [tensor.transpose(1, 2) for tensor in made]


def documents(batch: int, time: int) -> torch.Tensor:
    """Documents of 1024 positions on average."""
    starts = torch.rand(batch, time, device="cuda") < 1 / 1024
    return starts.cumsum(1).int()


def peers(layout: str, compiled: bool) -> dict[str, Callable]:
    """Functions of (input, weight, bias) that give the same output."""

    def padded(x, weight, bias):
        return F.silu(F.conv1d(F.pad(x, (W - 1, 0)), weight[:, None], bias, groups=x.size(1)))

    def shifted(x, weight, bias):
        y = bias[:, None] + weight[:, W - 1, None] * x
        for k in range(1, W):
            y = y + weight[:, W - 1 - k, None] * F.pad(x, (k, 0))[..., : x.size(-1)]
        return F.silu(y)

    found = {"pad+conv1d": padded}
    if compiled:
        # Not dynamic: else all lengths but the first get kernels for any length, which are slower.
        found |= {
            "compile(pad)": torch.compile(padded, dynamic=False),
            "compile(shift)": torch.compile(shifted, dynamic=False),
        }
    with outside_this_folder():
        try:
            from causal_conv1d import causal_conv1d_fn

            found["causal-conv1d"] = lambda x, weight, bias: causal_conv1d_fn(x, weight, bias, activation="silu")
        except ImportError as error:
            print(f"without causal-conv1d: {error}", file=sys.stderr)
        try:
            from fla.modules.convolution import causal_conv1d as fla_conv

            def fla(x, weight, bias):
                out = fla_conv(x.transpose(1, 2), weight, bias, activation="silu")
                return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

            if layout != "[B, D, T]":  # in its own layout only
                found["fla"] = fla
        except ImportError as error:
            print(f"without fla: {error}", file=sys.stderr)
    return found


@contextmanager
def outside_this_folder() -> Iterator[None]:
    """Where `causal_conv1d` is the package of that name, not the benchmark."""
    path = sys.path
    sys.path = [entry for entry in path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    try:
        yield
    finally:
        sys.path = path


def backward_of(function: Callable, x: list[torch.Tensor], grad: list[torch.Tensor], weight, bias) -> Call:
    """The backward pass alone: the forward pass is recorded once for each set."""
    leaves = [
        (a.detach().requires_grad_(), weight.detach().requires_grad_(), bias.detach().requires_grad_()) for a in x
    ]
    outs = [function(*leaf) for leaf in leaves]
    return lambda i: torch.autograd.grad(outs[i], leaves[i], grad[i], retain_graph=True)


def sequence(
    bench: Bench, dtype: torch.dtype, layout: str, time: int, passes: list[str], others: dict[str, Callable]
) -> None:
    size = B * D * time * dtype.itemsize
    sets = max(1 if size >= COLD else 2, min(16, COLD // (2 * size)))
    x = tensors(dtype, layout, time, sets)
    weight, bias = torch.randn(D, W, device="cuda", dtype=dtype) * 0.5, torch.randn(D, device="cuda", dtype=dtype)

    def ours(x, weight, bias, **kwargs):
        return F.causal_conv1d(x, weight, bias, "silu", **kwargs)

    functions = {"overlay": ours, **others}
    seq_idx = documents(B, time)
    state = torch.randn(B, D, W - 1, device="cuda", dtype=dtype)
    if "forward" in passes:
        calls = copies(2 * size, sets)
        with torch.no_grad():
            for name, function in functions.items():
                calls[name] = lambda i, f=function: f(x[i], weight, bias)
            if "variants" in passes:
                calls["+seq_idx"] = lambda i: ours(x[i], weight, bias, seq_idx=seq_idx)
                calls["+states"] = lambda i: ours(x[i], weight, bias, initial_state=state, return_final_state=True)
            bench.report("forward", x[0], layout, 2 * size, calls, sets)
        del calls
    if "backward" in passes:
        grad = tensors(dtype, layout, time, sets)
        calls = copies(3 * size, sets)
        for name, function in functions.items():
            calls[name] = backward_of(function, x, grad, weight, bias)
        if "variants" in passes:
            calls["+seq_idx"] = backward_of(lambda *a: ours(*a, seq_idx=seq_idx), x, grad, weight, bias)
            calls["+states"] = states_backward(ours, x, grad, weight, bias, state)
        bench.report("backward", x[0], layout, 3 * size, calls, sets)


def states_backward(function, x, grad, weight, bias, state) -> Call:
    grad_final = torch.randn_like(state)
    leaves = [[a.detach().requires_grad_() for a in (one, weight, bias, state)] for one in x]
    outs = [function(*leaf[:3], initial_state=leaf[3], return_final_state=True) for leaf in leaves]
    return lambda i: torch.autograd.grad(outs[i], leaves[i], (grad[i], grad_final), retain_graph=True)


def decode(bench: Bench, dtype: torch.dtype, batch: int, channels: int = 8192) -> None:
    nbytes = batch * channels * dtype.itemsize * (2 + 2 * (W - 1))
    sets = min(64, max(8, COLD // (4 * nbytes)))
    x = [torch.randn(batch, channels, device="cuda", dtype=dtype) for _ in range(sets)]
    states = [torch.randn(batch, channels, W - 1, device="cuda", dtype=dtype) for _ in range(sets)]
    weight, bias = (torch.randn(*s, device="cuda", dtype=dtype) for s in ((channels, W), (channels,)))
    calls = {
        **copies(nbytes, sets),
        "overlay": lambda i: F.causal_conv1d_update(x[i], states[i], weight, bias, "silu"),
    }
    with outside_this_folder():
        try:
            from causal_conv1d import causal_conv1d_update

            calls["causal-conv1d"] = lambda i: causal_conv1d_update(x[i], states[i], weight, bias, "silu")
        except ImportError:
            pass
    bench.report("decode", x[0], "[B, D]", nbytes, calls, sets)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--times", type=int, nargs="*", default=[512, 1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--dtypes", nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--layouts", nargs="*", default=["[B, D, T]", "channels-last"])
    parser.add_argument("--passes", nargs="*", default=["forward", "backward", "variants"])
    parser.add_argument("--decode", type=int, nargs="*", default=[1, 8, 64, 128, 256, 512])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--compile", type=int, nargs="*", default=[2048], help="the lengths for torch.compile's forms")
    parser.add_argument("--csv", type=Path, default=Path("build/causal_conv1d_cuda.csv"))
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    # A compiled backward pass would else take the buffers of the forward pass, which is recorded once for many.
    functorch_config.donated_buffer = False
    about = f"B={B} D={D} W={W}, bias, SiLU; one {torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(about)
    # One stream for all: autograd runs a backward pass on the stream of the forward pass, and that must be the
    # stream that is captured.
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open("w", newline="") as file, torch.cuda.stream(torch.cuda.Stream()):
        file.write(f"# {about}\n# benchmarks/causal_conv1d.py --device cuda {shlex.join(arguments)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        bench = Bench(options.rounds, writer)
        for dtype in options.dtypes:
            for layout in options.layouts:
                for time in options.times:
                    others = peers(layout, time in options.compile) if options.peers else {}
                    sequence(bench, getattr(torch, dtype), layout, time, options.passes, others)
                    torch.cuda.empty_cache()
                    file.flush()
            for batch in options.decode:
                decode(bench, getattr(torch, dtype), batch)
