"""Runs mutated host code on the simulated device, in a process of its own: the last of it faults.

    python mps_mutants.py LIBRARY ...

A library registers its kernels over those of the one before. For each: a line that says whether the results differ.
"""

import sys

import metal_host.simulated_mps as mps

mps.load()
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402


def agrees() -> bool:
    torch.manual_seed(0)
    big, weight, bias, state = torch.randn(2, 9, 30), torch.randn(5, 4), torch.randn(5), torch.randn(2, 5, 3)
    on_mps = [tensor.to("mps") for tensor in (big, weight, bias, state)]
    expected, actual = (
        F.causal_conv1d(x[:, 2:7, 4:], w, b, "silu", initial_state=s)
        for x, w, b, s in ((big, weight, bias, state), on_mps)
    )
    return torch.allclose(actual.cpu(), expected, atol=1e-5)


print("agrees" if agrees() else "differs", flush=True)
for library in sys.argv[1:]:
    torch.ops.load_library(library)
    print("agrees" if agrees() else "differs", flush=True)
