"""Runs mistakes on the simulated device, in a process of its own: the last of them may fault.

    python mps_mutants.py MISTAKE ...

A mistake is host code (.so) or kernels (.metal), which take the place of those before, or the name of an overload that
goes without its kernel. For each: a line that says what the checks of the suite see.
"""

import sys
from pathlib import Path

import metal_host.simulated_mps as mps

mps.load()
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from mps_checks import left_to_the_cpu  # noqa: E402


def convolution(device):
    torch.manual_seed(0)
    big, weight, bias, state = torch.randn(2, 9, 30), torch.randn(5, 4), torch.randn(5), torch.randn(2, 5, 3)
    big, weight, bias, state = (x.to(device) for x in (big, weight, bias, state))
    return F.causal_conv1d(big[:, 2:7, 4:], weight, bias, "silu", initial_state=state)


def in_place(device):
    x = torch.zeros(6, device=device)
    return x.put_(torch.tensor([4, 1], device=device), torch.tensor([2.0, 3.0], device=device), accumulate=True)


def seen() -> str:
    with mps.counting() as counts:
        agree = all(torch.allclose(run("mps").cpu(), run("cpu"), atol=1e-5) for run in (convolution, in_place))
    return "falls back" if left_to_the_cpu(counts) else "agrees" if agree else "differs"


print(seen(), flush=True)
for mistake in sys.argv[1:]:
    if mistake.endswith(".so"):
        torch.ops.load_library(mistake)
    elif mistake.endswith(".metal"):
        mps.load_kernels(Path(mistake))
    else:
        mps.forget(mistake)
    print(seen(), flush=True)
