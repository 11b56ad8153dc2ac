"""PyTorch's own operators that have Metal kernels here, over the samples of their OpInfos: the overloads, layouts and
errors that PyTorch's test_mps.py, and so test_mps_consistency.py, does not go through."""

from __future__ import annotations

import torch
from metal_host.simulated_mps import counting
from mps_checks import in_schedules, left_to_the_cpu
from test_mps_consistency import DTYPES, call, theirs, to_device, tolerances
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase, run_tests

FLOATS = DTYPES[:3]
with_out = [op for op in theirs if op.supports_out]
in_place = [op for op in theirs if op.inplace_variant]
with_errors = [op for op in theirs if op.error_inputs_func]


def transposed(sample):
    """The same with the second and the last dimension, as of channels_last, in another order in memory."""

    def transpose(x):
        return x.detach().transpose(1, -1).contiguous().transpose(1, -1) if x.dim() > 2 else x.detach().t().clone().t()

    return sample.transform(lambda x: transpose(x) if isinstance(x, torch.Tensor) and x.dim() > 1 else x)


class TestOperators(TestCase):
    def run_samples(self, op, dtype, check):
        for _ in in_schedules():
            with counting() as counts:
                for sample in op.sample_inputs("cpu", dtype):
                    check(sample, call(op, sample))
            self.assertTrue(counts.kernels)
            self.assertEqual(left_to_the_cpu(counts), [])

    def compare(self, op, dtype, actual, expected):
        self.assertEqual([out.cpu() for out in actual], expected, **tolerances(op, dtype))

    @ops(theirs, allowed_dtypes=FLOATS)
    def test_transposed(self, device, dtype, op):
        def check(sample, expected):
            actual = call(op, transposed(to_device(sample, "mps")))
            self.compare(op, dtype, actual, expected)
            if op.name.startswith("nn.functional"):  # where the memory format is the input's
                on_cpu = call(op, transposed(sample))
                self.assertEqual([out.stride() for out in actual], [out.stride() for out in on_cpu])

        self.run_samples(op, dtype, check)

    @ops(with_out, allowed_dtypes=DTYPES)
    def test_out(self, device, dtype, op):
        def check(sample, expected):
            for spread in (False, True):
                outs = [self.empty_out(each, spread) for each in expected]
                moved = to_device(sample, "mps")
                out = outs[0] if len(outs) == 1 else tuple(outs)
                op(moved.input, *moved.args, **moved.kwargs, out=out)
                self.compare(op, dtype, outs, expected)

        self.run_samples(op, dtype, check)

    def empty_out(self, expected, spread):
        """One to be resized, or one with strides and a storage offset of its own."""
        if not spread:
            return expected.new_empty(0, device="mps")
        return torch.empty([*expected.shape, 3], dtype=expected.dtype, device="mps")[..., 1]

    @ops(in_place, allowed_dtypes=DTYPES)
    def test_in_place(self, device, dtype, op):
        def check(sample, expected):
            if expected[0].shape != sample.input.shape:
                return  # the input is broadcast
            for spread in (False, True):
                moved = to_device(sample, "mps")
                self_ = self.empty_out(moved.input, spread)
                self_ = self_.copy_(moved.input) if spread else moved.input
                self.assertIs(op.inplace_variant(self_, *moved.args, **moved.kwargs), self_)
                self.compare(op, dtype, [self_], expected)

        self.run_samples(op, dtype, check)

    @ops(with_errors, dtypes=(torch.float32,))
    def test_errors(self, device, dtype, op):
        for error in op.error_inputs("mps"):
            sample = error.sample_input
            with self.assertRaisesRegex(error.error_type, error.error_regex):
                op(sample.input, *sample.args, **sample.kwargs)


instantiate_device_type_tests(TestOperators, globals(), only_for="mps", allow_mps=True)

if __name__ == "__main__":
    run_tests()
