"""conv_transpose1d's native kernels against cuDNN, on the shapes that people run.

    make bench OP=conv_transpose1d [ARGS="--cases headline --maths float32"]

Each candidate is captured in a CUDA graph of several calls that rotate over inputs and outputs, so that the
second-level cache is cold; every round replays each graph once, in turn, and ratios are taken within a round. cuDNN
picks its algorithm with benchmark=True, which tries the one that it takes without; --no-benchmark is for comparing.
Both compute in the same math mode. Beside each time stand the error relative to float64 in norm, the memory of the
call at its peak, and the share of the rate at which a copy moves in the same run what must be moved: each tensor that
the pass reads or writes, once.

The results go to a CSV file: conv_transpose1d_figure.py draws them, conv_transpose1d_rule.py turns them into the rule
by which "auto" decides.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_harness import Call, compare, copies, extra_memory
from harness import Spread

import torch_overlay  # noqa: F401

cudnn = torch.backends.cudnn
COLD = 1 << 28  # bytes that a graph's calls go through, at least: several times the cache

PASSES = {
    "forward": None,
    "grad_input": (True, False, False),
    "grad_weight": (False, True, False),
    "grad_bias": (False, False, True),
    "backward": (True, True, True),
}
# dtype and allow_tf32; the latter is on by default, also where nothing is float32.
MATHS = {
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bfloat16": (torch.bfloat16, True),
    "float16": (torch.float16, True),
}
FIELDS = (
    "case", "pass", "math", "capability", "N", "Cin", "Cout", "K", "stride", "padding", "output_padding", "dilation",
    "groups", "L", "who", "ms", "ms_p20", "ms_p80", "speedup", "speedup_p20", "speedup_p80", "of_copy", "error",
    "extra_MiB",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    batch: int
    channels: int
    out_channels: int
    taps: int
    length: int
    stride: int = 1
    padding: int = 0
    output_padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of input, weight and output."""
        spread = (self.length - 1) * self.stride + self.dilation * (self.taps - 1) + 1
        out = spread - 2 * self.padding + self.output_padding
        weight = (self.channels, self.out_channels // self.groups, self.taps)
        return (self.batch, self.channels, self.length), weight, (self.batch, self.out_channels, out)

    @property
    def arguments(self) -> tuple:
        """Those of aten.convolution after the tensors."""
        return [self.stride], [self.padding], [self.dilation], True, [self.output_padding], self.groups


CASES = {
    "headline": Case(16, 32, 64, 3, 131072, 2, 1, dilation=2),
    "KernelBench 64": Case(64, 128, 128, 3, 65536),
    "KernelBench 74": Case(32, 32, 64, 5, 131072, dilation=3),
    "HiFi-GAN 1": Case(16, 512, 256, 16, 32, 8, 4),
    "HiFi-GAN 1, long": Case(1, 512, 256, 16, 861, 8, 4),
    "HiFi-GAN 2": Case(16, 256, 128, 16, 256, 8, 4),
    "HiFi-GAN 2, long": Case(1, 256, 128, 16, 6888, 8, 4),
    "HiFi-GAN 3": Case(16, 128, 64, 4, 2048, 2, 1),
    "HiFi-GAN 3, long": Case(1, 128, 64, 4, 55104, 2, 1),
    "HiFi-GAN 4": Case(16, 64, 32, 4, 4096, 2, 1),
    "HiFi-GAN 4, long": Case(1, 64, 32, 4, 110208, 2, 1),
    "BigVGAN 1": Case(4, 1536, 768, 8, 861, 4, 2),
    "BigVGAN 3": Case(4, 384, 192, 4, 13776, 2, 1),
    "BigVGAN 6": Case(4, 48, 24, 4, 110208, 2, 1),
    "DAC 1": Case(4, 1536, 768, 16, 861, 8, 4),
    "DAC 3": Case(4, 384, 192, 8, 55104, 4, 2),
    "DAC 4": Case(4, 192, 96, 4, 220416, 2, 1),
    "EnCodec 1": Case(8, 512, 256, 16, 750, 8),
    "EnCodec 4": Case(8, 64, 32, 4, 240000, 2),
    "SNAC 1": Case(4, 1536, 768, 14, 500, 7, 4, 1),
    "Stable Audio": Case(1, 512, 256, 8, 98304, 4, 2),
    "HTDemucs": Case(4, 384, 192, 8, 1344, 4),
    "StyleTTS2 pool": Case(8, 512, 512, 3, 400, 2, 1, 1, groups=512),
    "WaveGlow": Case(1, 80, 80, 1024, 900, 256),
    "iSTFT": Case(1, 1026, 1, 1024, 224, 256),
}
MADE_UP = ("headline", "KernelBench 64", "KernelBench 74")  # not of a model


def calls(case: Case, name: str, tensors: list, who: str, flags: dict[str, object]) -> Call:
    """tensors: inputs, grad_outputs (one for each set), weight, bias."""
    inputs, grads, weight, bias = tensors
    mask = PASSES[name]

    def call(i: int):
        with cudnn.flags(enabled=True, conv_transpose1d_kernel=who, **flags):
            if mask is None:
                return torch.ops.aten.convolution(inputs[i], weight, bias, *case.arguments)
            return torch.ops.aten.convolution_backward(
                grads[i], inputs[i], weight, list(bias.shape), *case.arguments, mask
            )

    return call


def exact(case: Case, names: list[str], tensors: list) -> dict[str, list[torch.Tensor]]:
    """The passes' results in float64."""
    inputs, grads, weight, bias = tensors
    x, grad, weight, bias = (tensor.double() for tensor in (inputs[0], grads[0], weight, bias))
    results = {}
    with cudnn.flags(enabled=True, conv_transpose1d_kernel="cudnn"):
        if "forward" in names:
            results["forward"] = [torch.ops.aten.convolution(x, weight, bias, *case.arguments)]
        if set(names) - {"forward"}:
            backward = torch.ops.aten.convolution_backward(
                grad, x, weight, list(bias.shape), *case.arguments, PASSES["backward"]
            )
            results |= {name: [result] for name, result in zip(list(PASSES)[1:4], backward)}
            results["backward"] = list(backward)
    return results


def error(results: object, expected: list[torch.Tensor]) -> float:
    """The largest of the relative errors in norm."""
    actual = [results] if isinstance(results, torch.Tensor) else [result for result in results if result is not None]
    return max(((a.double() - e).norm() / e.norm()).item() for a, e in zip(actual, expected))


def measure(label: str, case: Case, math_name: str, options, known: dict, writer) -> None:
    """`known`: the results in float64 by dtype, as far as they have been computed for this case."""
    dtype, tf32 = MATHS[math_name]
    input_sizes, weight_sizes, output_sizes = case.sizes
    source, weights, output = (math.prod(sizes) * dtype.itemsize for sizes in case.sizes)
    nbytes = source + weights + output
    sets = max(2, min(64, math.ceil(COLD / nbytes)))
    torch.manual_seed(0)

    def random(*sizes: int, scale: float = 1) -> torch.Tensor:
        return (torch.randn(*sizes, device="cuda") * scale).to(dtype)

    scale = (case.channels // case.groups * case.taps / case.stride) ** -0.5
    tensors = [
        [random(*input_sizes) for _ in range(sets)],
        [random(*output_sizes) for _ in range(sets)],
        random(*weight_sizes, scale=scale),
        random(case.out_channels),
    ]
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    if dtype not in known:
        known[dtype] = exact(case, options.passes, tensors)
    flags = {
        "benchmark": not options.no_benchmark,
        "benchmark_limit": options.benchmark_limit,
        "allow_tf32": tf32,
    }
    for name in options.passes:
        ways = {
            who: calls(case, name, tensors, who, flags)
            for who in dict.fromkeys((*options.ways, "cudnn"))
        }
        errors = {who: error(call(0), known[dtype][name]) for who, call in ways.items()}
        torch.cuda.empty_cache()
        least = {"grad_bias": output, "backward": nbytes + source + weights}.get(name, nbytes)
        times = compare({**copies(least, sets), **ways}, sets, options.rounds)
        ceiling = min((times[copy] for copy in ("copy", "copy kernel")), key=statistics.median)
        for who in ways:
            if who not in times:
                continue
            spread = Spread.of(times[who])
            faster = Spread.of([theirs / own for theirs, own in zip(times["cudnn"], times[who])])
            share = Spread.of([copy / own for copy, own in zip(ceiling, times[who])])
            writer.writerow((
                label, name, math_name, capability, case.batch, case.channels, case.out_channels, case.taps,
                case.stride, case.padding, case.output_padding, case.dilation, case.groups, case.length, who,
                f"{spread.median:.5f}", f"{spread.low:.5f}", f"{spread.high:.5f}",
                f"{faster.median:.4f}", f"{faster.low:.4f}", f"{faster.high:.4f}", f"{share.median:.3f}",
                f"{errors[who]:.3e}", f"{extra_memory(ways[who]):.0f}",
            ))  # fmt: skip
            print(
                f"{label:17} {name:11} {math_name:8} {who:6} {spread.median:9.4f} ms "
                f"({spread.low:.4f}..{spread.high:.4f})  {faster.median:6.2f} x cuDNN  "
                f"{100 * share.median:5.1f} % of the copy  error {errors[who]:.2e}",
                flush=True,
            )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="of no effect: it runs on the GPU")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES, metavar="CASE")
    parser.add_argument("--maths", nargs="*", default=list(MATHS), choices=MATHS)
    parser.add_argument("--passes", nargs="*", default=list(PASSES), choices=PASSES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-benchmark", action="store_true", help="cuDNN's heuristics alone")
    parser.add_argument("--benchmark-limit", type=int, default=10, help="how many algorithms cuDNN tries")
    parser.add_argument(
        "--ways", nargs="*", default=["native", "auto"], choices=("native", "auto"), help="beside cuDNN"
    )
    parser.add_argument("--csv", type=Path, default=Path("build/conv_transpose1d_cuda.csv"))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("conv_transpose1d is compared with cuDNN, and there is no GPU: run it where torch.cuda.is_available()")

    about = f"one {torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {cudnn.version()}"
    print(about)
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open("w", newline="") as file, torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        chosen = shlex.join(arguments).replace(str(options.csv), options.csv.name)
        file.write(f"# {about}\n# benchmarks/conv_transpose1d.py {chosen}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for label in options.cases:
            known: dict[torch.dtype, dict[str, list[torch.Tensor]]] = {}
            for math_name in options.maths:
                measure(label, CASES[label], math_name, options, known, writer)
                torch.cuda.empty_cache()
                file.flush()
        summary(options.csv)


def summary(path: Path) -> None:
    """Geometric means of the speed-up over the shapes of models."""
    rows = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    speedups: dict[tuple[str, str, str], list[float]] = {}
    for row in csv.DictReader(rows):
        if row["who"] != "cudnn" and row["case"] not in MADE_UP:
            speedups.setdefault((row["who"], row["pass"], row["math"]), []).append(float(row["speedup"]))
    for (who, name, math_name), values in sorted(speedups.items()):
        mean = statistics.geometric_mean(values)
        print(
            f"{who:6} {name:11} {math_name:8} {mean:6.2f} x cuDNN, geometric mean of {len(values)} shapes of models; "
            f"least {min(values):.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
