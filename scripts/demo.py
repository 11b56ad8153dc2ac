"""`make demo`: builds the operators for the installed torch, then checks and times causal_conv1d.

It ends with `demo: OK`, or says what failed and exits non-zero.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch

REPO = Path(__file__).resolve().parents[1]
ROUNDS = 5
# The largest error relative to the float64 result's largest value; 2 ** -8 is one unit in bfloat16's last place.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
RESULTS = ("output", "grad_input", "grad_weight", "grad_bias")


class DemoError(Exception):
    pass


def overlay(*arguments: str, **options) -> str:
    """Runs a command of the tool; its messages go straight to the terminal."""
    run = subprocess.run([sys.executable, "-m", "overlay", *arguments], cwd=REPO, text=True, **options)
    if run.returncode:
        raise DemoError(f"`overlay {arguments[0]}` failed; its messages are above")
    return (run.stdout or "").strip()


def build() -> None:
    print("1. The tree that this torch's wheel holds, and what each edit would do to it", flush=True)
    tree = overlay("fetch", torch.__version__.partition("+")[0], stdout=subprocess.PIPE)
    overlay("check", tree)
    print("\n2. The operators, generated and compiled beside the wheel", flush=True)
    overlay("wheel-mode", "--python", sys.executable)


def compare_with_eager(dtype: torch.dtype) -> list[str]:
    """Prints one dtype's rows and returns what failed."""
    import causal_conv1d as benchmark
    from harness import extra_memory

    tensors, grad = benchmark.inputs(dtype, "contiguous")
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact = results(benchmark.eager, wide, grad.double())
    ours, eager = (
        relative_errors(results(function, tensors, grad), exact) for function in (benchmark.overlay, benchmark.eager)
    )
    for name, mine, theirs in zip(RESULTS, ours, eager):
        print(f"  {name:12} error {mine:.1e}   eager {theirs:.1e}")

    forward, both = benchmark.measure(dtype, "contiguous", ROUNDS)
    for name, times, call in (
        ("forward", forward, lambda function: benchmark.run_forward(function, tensors)),
        ("both", both, lambda function: benchmark.forward_backward(function, tensors, grad)),
    ):
        memory = [extra_memory(lambda: call(function)) for function in (benchmark.overlay, benchmark.eager)]
        mib = ["?" if used is None else f"{used / 2**20:.0f} MiB" for used in memory]
        ratio = times.speedup("overlay", over="eager")
        print(f"  {name:12} {ratio:.1f} times as fast   extra memory {mib[0]}, eager {mib[1]}", flush=True)

    limit = TOLERANCES[dtype]
    return [
        f"{dtype} {name}: error {error:.1e}, above {limit:.1e}"
        for name, error in zip(RESULTS, ours)
        if not error <= limit
    ]


def results(function, tensors: list[torch.Tensor], grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    output = function(*tensors)
    return output.detach(), *torch.autograd.grad(output, tensors, grad)


def relative_errors(values: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]) -> list[float]:
    return [((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(values, exact)]


def main() -> int:
    start = time.monotonic()
    sys.path[:0] = [str(REPO), str(REPO / "benchmarks")]
    failures = []
    try:
        build()
        from causal_conv1d import B, D, T, W
        from harness import machine

        print(f"\n3. causal_conv1d with SiLU against F.pad + F.conv1d + F.silu ({B=} {D=} {T=} {W=})")
        print(f"   {machine()}")
        print("   largest error relative to float64; median (20th..80th percentile) of the times' ratios")
        for dtype in TOLERANCES:
            print(f"{str(dtype).removeprefix('torch.')}")
            failures += compare_with_eager(dtype)
    except (DemoError, ImportError, AttributeError, RuntimeError) as error:
        failures.append(f"{type(error).__name__}: {error}")
    print(f"\ntook {time.monotonic() - start:.0f} s")
    for failure in failures:
        print(f"demo: {failure}")
    print(f"demo: {'FAILED' if failures else 'OK'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
