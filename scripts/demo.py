"""`make demo`: builds the operators for the installed torch, then checks and times causal_conv1d.

It ends with `demo: OK`, or says what failed and exits non-zero.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "benchmarks")]

from measure import compare, peak_bytes  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

B, D, T, W = 4, 2048, 2048, 4
ROUNDS = 9
# The largest error, relative to the largest value of the float64 result. bfloat16 has 8 bits: half a unit is 2 ** -9.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
NAMES = ("output", "grad_input", "grad_weight", "grad_bias")


def ours(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.causal_conv1d(input, weight, bias, "silu")


def peer(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.conv1d(F.pad(input, (W - 1, 0)), weight[:, None], bias, groups=D))


def forward_backward(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    output = function(*inputs)
    return output.detach(), *torch.autograd.grad(output, inputs, grad)


def relative_errors(results: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> list[float]:
    return [((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(results, exact)]


def build() -> None:
    command = [sys.executable, "-m", "overlay", "wheel-mode", "--python", sys.executable]
    if subprocess.run(command, cwd=REPO).returncode:
        raise RuntimeError("wheel mode did not build; its messages are above")


def check_and_time(dtype: torch.dtype) -> list[str]:
    """Prints the rows of one dtype and returns what failed."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, D, T), (D, W), (D,), (B, D, T))
    *inputs, grad = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    exact = forward_backward(peer, [tensor.detach().double().requires_grad_() for tensor in inputs], grad.double())

    errors = {function: relative_errors(forward_backward(function, inputs, grad), exact) for function in (ours, peer)}
    for name, mine, theirs in zip(NAMES, errors[ours], errors[peer]):
        print(f"  error of {name:11}  {mine:8.1e}   PyTorch {theirs:8.1e}")

    def forward(function: Callable[..., Tensor]) -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    passes = {"forward": forward, "forward + backward": lambda function: forward_backward(function, inputs, grad)}
    for name, run in passes.items():
        ratio = compare(lambda: run(ours), lambda: run(peer), ROUNDS).ratio  # noqa: B023  called at once
        memory = [peak_bytes(lambda: run(function)) / 2**20 for function in (ours, peer)]  # noqa: B023
        print(
            f"  {name:20}  {ratio.median:4.1f} times as fast ({ratio.low:.1f} to {ratio.high:.1f})"
            f"   memory {memory[0]:5.0f} MiB, PyTorch {memory[1]:5.0f} MiB"
        )
    limit = TOLERANCE[dtype]
    return [
        f"{dtype} {name}: error {error:.1e} is above {limit:.1e}"
        for name, error in zip(NAMES, errors[ours])
        if not error <= limit
    ]


def main() -> int:
    start = time.monotonic()
    try:
        build()
        import torch_overlay  # noqa: F401

        print(f"\ncausal_conv1d against F.pad + F.conv1d + F.silu: {B=} {D=} {T=} {W=}, {torch.get_num_threads()} threads")
        print("errors are the largest, relative to the largest value in float64; memory is the peak, results included")
        failures = []
        for dtype in TOLERANCE:
            print(f"{dtype}")
            failures += check_and_time(dtype)
    except (RuntimeError, ImportError, AttributeError) as error:
        failures = [f"{type(error).__name__}: {error}"]
    for failure in failures:
        print(f"demo: {failure}", file=sys.stderr)
    print(f"took {time.monotonic() - start:.0f} s\ndemo: {'FAILED' if failures else 'OK'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
