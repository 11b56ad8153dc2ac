# Owner(s): ["module: nn"]
"""torch.backends.cudnn.conv_transpose1d_kernel, and what it says about a call."""

import contextlib
import importlib.util
import unittest

import torch
import torch.nn.functional as F
from torch.backends import cudnn
from torch.testing._internal.common_cuda import TEST_CUDA
from torch.testing._internal.common_utils import run_tests, TestCase


# Beside an installed torch, this is what gives torch.backends.cudnn the switch.
exec("import torch_overlay" if importlib.util.find_spec("torch_overlay") else "pass")

PASSES = ("forward", "grad_input", "grad_weight", "grad_bias")
SM80 = TEST_CUDA and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


class TestConvTranspose1dKernel(TestCase):
    def setUp(self):
        super().setUp()
        contexts = contextlib.ExitStack()
        self.addCleanup(contexts.close)
        # common_utils freezes the flags.
        contexts.enter_context(getattr(torch.backends, "__allow_nonbracketed_mutation")())
        contexts.enter_context(cudnn.flags(enabled=cudnn.enabled, conv_transpose1d_kernel="auto"))

    @contextlib.contextmanager
    def native(self, *passes):
        before = cudnn._conv_transpose1d.native_counts()
        yield
        after = cudnn._conv_transpose1d.native_counts()
        self.assertEqual({name for name in PASSES if after[name] != before[name]}, set(passes))

    def test_values(self):
        for value in ("auto", "cudnn", "native"):
            cudnn.conv_transpose1d_kernel = value
            self.assertEqual(cudnn.conv_transpose1d_kernel, value)
        for value in ("fast", None, 1):
            with self.assertRaisesRegex(ValueError, 'must be "auto", "cudnn" or "native", got'):
                cudnn.conv_transpose1d_kernel = value
        self.assertEqual(cudnn.conv_transpose1d_kernel, "native")

    def test_flags(self):
        cudnn.conv_transpose1d_kernel = "native"
        with cudnn.flags(enabled=True, conv_transpose1d_kernel="cudnn"):
            self.assertEqual(cudnn.conv_transpose1d_kernel, "cudnn")
        with cudnn.flags(enabled=True):
            self.assertEqual(cudnn.conv_transpose1d_kernel, "native")
            cudnn.conv_transpose1d_kernel = "auto"
        self.assertEqual(cudnn.conv_transpose1d_kernel, "native")

    def test_cpu_is_not_affected(self):
        x, w = torch.randn(2, 4, 9, requires_grad=True), torch.randn(4, 3, 3, requires_grad=True)
        results = []
        for value in ("cudnn", "native"):
            cudnn.conv_transpose1d_kernel = value
            with self.native():
                out = F.conv_transpose1d(x, w, stride=2)
                results.append((out, *torch.autograd.grad(out.sum(), (x, w))))
        self.assertEqual(results[0], results[1], rtol=0, atol=0)

    @unittest.skipIf(not SM80, "needs an NVIDIA GPU of sm_80 or later")
    def test_cuda(self):
        x, w, b = (torch.randn(*sizes, device="cuda") for sizes in ((2, 4, 9), (4, 3, 3), (3,)))
        leaves = [tensor.requires_grad_() for tensor in (x, w, b)]
        with cudnn.flags(enabled=True, allow_tf32=False, conv_transpose1d_kernel="native"), self.native(*PASSES):
            out = F.conv_transpose1d(*leaves, stride=2, padding=1, output_padding=1)
            grads = torch.autograd.grad(out.sin().sum(), leaves)
        with cudnn.flags(enabled=True, allow_tf32=False, conv_transpose1d_kernel="cudnn"), self.native():
            expected = F.conv_transpose1d(*leaves, stride=2, padding=1, output_padding=1)
            expected_grads = torch.autograd.grad(expected.sin().sum(), leaves)
        self.assertEqual(out, expected)
        self.assertEqual(grads, expected_grads)

    @unittest.skipIf(not TEST_CUDA, "needs a GPU")
    def test_tensors_of_two_devices(self):
        cudnn.conv_transpose1d_kernel = "native"
        x, w = torch.randn(2, 4, 9), torch.randn(4, 3, 3)
        message = "Input type .* and weight type .* should be the same"
        with self.assertRaisesRegex(RuntimeError, message):
            F.conv_transpose1d(x.cuda(), w)


if __name__ == "__main__":
    run_tests()
