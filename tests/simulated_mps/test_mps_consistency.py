"""The overlay's operators on mps against the CPU, over the samples of their OpInfos, as in PyTorch's test_mps.py.

They are ours, and those of PyTorch that no longer are on its list of expected failures. What PyTorch expects of mps is
taken from its common_mps.py, with the overlay's edits: an edit that is missing shows here as an unexpected success. The
tolerances are those of test_mps.py, too.
"""

from __future__ import annotations

import ast
import copy
import inspect
from pathlib import Path

import torch
from metal_host.simulated_mps import counting
from mps_checks import in_schedules, left_to_the_cpu
from overlay.edits import apply_edits
from overlay.model import load_patches
from overlay.mps_coverage import XFAILS
from packaging.version import Version
from torch.testing._internal import common_methods_invocations, common_mps
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils import _pytree as pytree

import torch_overlay.testing

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
GRAD_DTYPES = DTYPES[:4]
# Where a view's neighbours are, so that reading them shows.
FILLERS = {torch.bool: True, torch.uint8: 77, torch.int8: 77}

RELEASE = Version(torch.__version__)
PATCHES = [edit for edit in load_patches() if edit.applies_to(RELEASE)]
EDITS = [edit for edit in PATCHES if edit.target == XFAILS]

# test_mps.py's FP16_LOW_PRECISION_LIST, as far as it is about these operators: what PyTorch has, and what an edit adds.
LOW_PRECISION = {"nn.functional.interpolate"} | {
    ast.literal_eval(name)
    for edit in PATCHES
    if edit.target == "test/test_mps.py"
    for name in edit.arguments["elements"]
}
LOW_PRECISION_TOLERANCES = {torch.float16: {"atol": 1e-2, "rtol": 1e-2}, torch.bfloat16: {"atol": 5e-2, "rtol": 5e-2}}


def edited_common_mps():
    """PyTorch's lists of what fails on mps, after the overlay's edits, for a recent macOS."""
    path = Path(inspect.getsourcefile(common_mps))
    text, outcomes = apply_edits(XFAILS, path.read_bytes(), EDITS)
    assert not [outcome.error for outcome in outcomes if outcome.error]
    module = {"__name__": common_mps.__name__, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), module)
    return {**module, "MACOS_VERSION": 26.0}


def modified(modifier, op_db):
    functions = edited_common_mps()
    function = functions[modifier]
    function.__globals__["MACOS_VERSION"] = 26.0
    return list(function(copy.deepcopy(op_db)))


WORKING = {ast.literal_eval(edit.arguments["key"]) for edit in EDITS if edit.operation == "remove_key"}
ours = torch_overlay.testing.op_db()
theirs = [op for op in common_methods_invocations.op_db if op.name + op.variant_test_name in WORKING]
assert {op.name + op.variant_test_name for op in theirs} == WORKING
op_db = modified("mps_ops_modifier", [*ours, *theirs])
grad_op_db = [op for op in modified("mps_ops_grad_modifier", [*ours, *theirs]) if op.supports_autograd]


def to_device(sample, device):
    def move(x):
        return x.detach().to(device).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    return sample.transform(move)


def noncontiguous(sample):
    """The same on tensors with strides and storage offsets of their own, NaN around them."""

    def spread(x):
        if not isinstance(x, torch.Tensor) or x.dim() == 0:
            return x
        filler = torch.nan if x.is_floating_point() or x.is_complex() else FILLERS.get(x.dtype, 7777)
        big = x.new_full([2 * size + 3 for size in x.shape], filler)
        view = big[tuple(slice(2, 2 * size + 2, 2) for size in x.shape)].copy_(x.detach())
        return view.requires_grad_(x.requires_grad)

    return sample.transform(spread)


def plain(sample):
    return sample


def call(op, sample):
    return pytree.tree_leaves(op(sample.input, *sample.args, **sample.kwargs))


def tolerances(op, dtype):
    """Beyond what assertEqual allows the dtype."""
    return LOW_PRECISION_TOLERANCES.get(dtype, {}) if op.name in LOW_PRECISION else {}


def differentiable(tensors):
    return [x for x in pytree.tree_leaves(tensors) if isinstance(x, torch.Tensor) and x.requires_grad]


def leaves(sample):
    return differentiable((sample.input, sample.args, sample.kwargs))


class TestConsistency(TestCase):
    def run_samples(self, op, dtype, check, **options):
        """`check` on each sample, that kernels ran for them, and that no overload fell back."""
        self.tolerances = tolerances(op, dtype)
        samples = list(op.sample_inputs("cpu", dtype, **options))
        for _ in in_schedules():
            with counting() as counts:
                for sample in samples:
                    check(sample)
            self.assertEqual(left_to_the_cpu(counts), [])
            self.assertTrue(counts.kernels)

    def compare(self, op, sample, arrange):
        actual, expected = call(op, arrange(to_device(sample, "mps"))), call(op, sample)
        self.assertEqual([out.device.type for out in actual], ["mps"] * len(expected))
        self.assertEqual([out.cpu() for out in actual], expected, **self.tolerances)

    @ops(op_db, allowed_dtypes=DTYPES)
    def test_output_match(self, device, dtype, op):
        self.run_samples(op, dtype, lambda sample: self.compare(op, sample, plain))

    @ops(op_db, allowed_dtypes=DTYPES)
    def test_output_match_noncontiguous(self, device, dtype, op):
        self.run_samples(op, dtype, lambda sample: self.compare(op, sample, noncontiguous))

    @ops(grad_op_db, allowed_dtypes=GRAD_DTYPES)
    def test_output_grad_match(self, device, dtype, op):
        for arrange in (plain, noncontiguous):
            self.run_samples(
                op, dtype, lambda sample, a=arrange: self.compare_gradients(op, sample, a), requires_grad=True
            )

    def compare_gradients(self, op, sample, arrange):
        moved = arrange(to_device(sample, "mps"))
        expected_outputs, outputs = (differentiable(call(op, on)) for on in (sample, moved))
        self.assertEqual([out.cpu() for out in outputs], expected_outputs, **self.tolerances)
        self.assertEqual(len(leaves(moved)), len(leaves(sample)))
        if not expected_outputs:
            return
        directions = [torch.randn_like(out) for out in expected_outputs]
        expected = torch.autograd.grad(expected_outputs, leaves(sample), directions, allow_unused=True)
        directions = [direction.to("mps") for direction in directions]
        actual = torch.autograd.grad(outputs, leaves(moved), directions, allow_unused=True)
        self.assertEqual([grad is None for grad in actual], [grad is None for grad in expected])
        for mine, theirs in zip(actual, expected, strict=True):
            if theirs is not None:
                self.assertEqual(mine.cpu(), theirs, **self.tolerances)


instantiate_device_type_tests(TestConsistency, globals(), only_for="mps", allow_mps=True)

if __name__ == "__main__":
    run_tests()
