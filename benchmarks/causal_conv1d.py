"""causal_conv1d against F.pad + F.conv1d + F.silu: time as ratios in one run, and extra memory.

    make bench OP=causal_conv1d DEVICE=cpu

With DEVICE=cuda it is another comparison: see causal_conv1d_gpu.py.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from harness import Comparison, Spread, compare, extra_memory, machine

import torch_overlay  # noqa: F401

B, D, T, W = 4, 2048, 2048, 4


def eager(x, weight, bias):
    """What one writes without the operator."""
    width = weight.size(-1)
    return F.silu(F.conv1d(F.pad(x, (width - 1, 0)), weight[:, None], bias, groups=x.size(1)))


def overlay(x, weight, bias):
    return F.causal_conv1d(x, weight, bias, "silu")


def inputs(dtype: torch.dtype, layout: str, batch: int = B, channels: int = D, time: int = T, width: int = W):
    """input, weight, bias (leaves that want gradients) and grad_output."""
    torch.manual_seed(0)
    x = torch.randn(batch, channels, time).to(dtype)
    grad = torch.randn(batch, channels, time).to(dtype)
    if layout == "channels-last":
        x, grad = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, grad))
    weight, bias = torch.randn(channels, width).to(dtype), torch.randn(channels).to(dtype)
    return [t.requires_grad_() for t in (x, weight, bias)], grad


def forward_backward(function, tensors, grad):
    return torch.autograd.grad(function(*tensors), tensors, grad)


def run_forward(function, tensors):
    with torch.no_grad():
        return function(*tensors)


def measure(dtype: torch.dtype, layout: str, rounds: int) -> tuple[Comparison, Comparison]:
    tensors, grad = inputs(dtype, layout)
    sides = {"overlay": overlay, "eager": eager}
    forward = compare({name: lambda f=f: run_forward(f, tensors) for name, f in sides.items()}, rounds)
    both = compare({name: lambda f=f: forward_backward(f, tensors, grad) for name, f in sides.items()}, rounds)
    return forward, both


def decode(dtype: torch.dtype, rounds: int) -> None:
    """One row of the decode table: a step of one sequence, whose state is one row of a pool of 512."""
    torch.manual_seed(0)
    channels, steps = 4096, 100
    x, pool = torch.randn(1, channels).to(dtype), torch.zeros(512, channels, W - 1, dtype=dtype)
    weight, bias = torch.randn(channels, W).to(dtype), torch.randn(channels).to(dtype)
    rows = torch.tensor([5])
    empty = (x[:, :0], pool[:, :0], weight[:0], bias[:0])

    def step(x, pool, weight, bias):
        return F.causal_conv1d_update(x, pool, weight, bias, "silu", state_indices=rows)

    def copying(x, pool, weight, bias):  # what the step would be if it were not kept in place
        update = torch.ops.aten.causal_conv1d_update_functional
        out, new = update(x, pool, weight, bias, "silu", state_indices=rows)
        pool.copy_(new)
        return out

    def repeated(function, *tensors):
        def run():
            with torch.no_grad():
                for _ in range(steps):
                    function(*tensors)

        return run

    tensors = (x, pool, weight, bias)
    candidates = {
        "eager": (step, tensors),
        "no channels": (step, empty),
        "compiled": (torch.compile(step), tensors),
        "compiled, copying": (torch.compile(copying), tensors),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result = compare({name: repeated(function, *args) for name, (function, args) in candidates.items()}, rounds)
    cells = []
    for name, (function, args) in candidates.items():
        with torch.no_grad():
            memory = extra_memory(lambda function=function, args=args: function(*args))
        time = Spread.of([1e6 * value / steps for value in result.seconds[name]])
        cells.append(f"{time:.1f} | {memory / 2**20:.1f}")
    torch.set_num_threads(threads)
    print(f"| {str(dtype)[6:]} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()

    print(f"causal_conv1d, B={B} D={D} T={T} W={W}, bias, SiLU; {machine()}")
    print(f"median (20th..80th percentile) of {arguments.rounds} interleaved rounds; memory beyond the arguments\n")
    print("| dtype | layout | pass | overlay, ms | pad + conv1d + silu, ms | times faster | memory, MiB | theirs |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        for layout in ("contiguous", "channels-last"):
            forward, both = measure(dtype, layout, arguments.rounds)
            tensors, grad = inputs(dtype, layout)
            for name, result, call in (
                ("forward", forward, lambda f: run_forward(f, tensors)),
                ("both", both, lambda f: forward_backward(f, tensors, grad)),
            ):
                memory = [f"{extra_memory(lambda f=f: call(f)) / 2**20:.0f}" for f in (overlay, eager)]
                print(
                    f"| {str(dtype)[6:]} | {layout} | {name} "
                    f"| {result.time('overlay'):.1f} | {result.time('eager'):.1f} "
                    f"| {result.speedup('overlay', over='eager'):.1f} | {memory[0]} | {memory[1]} |",
                    flush=True,
                )

    print("\ncausal_conv1d_update, one token of one sequence, D=4096, a row of a pool of 512, one thread")
    print("| dtype | step, us | MiB | the same with D=0 | MiB | compiled | MiB | compiled without the edit | MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        decode(dtype, arguments.rounds)


if __name__ == "__main__":
    if sys.argv[1:3] == ["--device", "cuda"]:
        import causal_conv1d_gpu

        causal_conv1d_gpu.main(sys.argv[3:])
    else:
        main()
