"""The overlay's operators on mps against the CPU, over the samples of their OpInfos, as in PyTorch's test_mps.py."""

from __future__ import annotations

import torch
from metal_host.simulated_mps import counting
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils import _pytree as pytree

import torch_overlay.testing

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
op_db = torch_overlay.testing.op_db()
differentiable = [op for op in op_db if op.supports_autograd]


def to_device(sample, device):
    def move(x):
        return x.detach().to(device).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    return sample.transform(move)


def noncontiguous(sample):
    """The same on tensors with strides and storage offsets of their own, NaN around them."""

    def spread(x):
        if not isinstance(x, torch.Tensor) or x.dim() == 0:
            return x
        filler = torch.nan if x.is_floating_point() else 77
        big = x.new_full([2 * size + 3 for size in x.shape], filler)
        view = big[tuple(slice(2, 2 * size + 2, 2) for size in x.shape)].copy_(x.detach())
        return view.requires_grad_(x.requires_grad)

    return sample.transform(spread)


def call(op, sample):
    return pytree.tree_leaves(op(sample.input, *sample.args, **sample.kwargs))


def leaves(sample):
    tensors = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]


def name_of(op):
    return op.aten_name.removeprefix("_").removesuffix("_with_state")


class TestConsistency(TestCase):
    def assert_no_fallback(self, op, counts):
        self.assertTrue(any(kernel.startswith(name_of(op)) for kernel in counts.kernels), counts)
        self.assertFalse([name for name in counts.fallbacks if name_of(op) in name], counts)

    def compare(self, op, sample, arrange):
        actual = call(op, arrange(to_device(sample, "mps")))
        for mine, expected in zip(actual, call(op, sample), strict=True):
            self.assertEqual(mine.device.type, "mps")
            self.assertEqual(mine.cpu(), expected)

    @ops(op_db, allowed_dtypes=DTYPES)
    def test_output_match(self, device, dtype, op):
        with counting() as counts:
            for sample in op.sample_inputs("cpu", dtype):
                self.compare(op, sample, lambda moved: moved)
        self.assert_no_fallback(op, counts)

    @ops(op_db, allowed_dtypes=DTYPES)
    def test_output_match_noncontiguous(self, device, dtype, op):
        with counting() as counts:
            for sample in op.sample_inputs("cpu", dtype):
                self.compare(op, sample, noncontiguous)
        self.assert_no_fallback(op, counts)

    @ops(differentiable, allowed_dtypes=DTYPES)
    def test_output_grad_match(self, device, dtype, op):
        with counting() as counts:
            for arrange in (lambda moved: moved, noncontiguous):
                for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
                    self.compare_gradients(op, sample, arrange)
        self.assert_no_fallback(op, counts)
        self.assertTrue(any(f"{name_of(op)}_backward" in kernel for kernel in counts.kernels), counts)

    def compare_gradients(self, op, sample, arrange):
        moved = arrange(to_device(sample, "mps"))
        expected_outputs, outputs = call(op, sample), call(op, moved)
        directions = [torch.randn_like(out) for out in expected_outputs]
        expected = torch.autograd.grad(expected_outputs, leaves(sample), directions)
        actual = torch.autograd.grad(outputs, leaves(moved), [direction.to("mps") for direction in directions])
        for mine, theirs in zip(actual, expected, strict=True):
            self.assertEqual(mine.cpu(), theirs)


instantiate_device_type_tests(TestConsistency, globals(), only_for="mps", allow_mps=True)

if __name__ == "__main__":
    run_tests()
