"""Generic tests over the overlay's OpInfos in wheel mode.

In a source tree PyTorch's own suites (test_ops.py and its kin) run over the same OpInfos; wheels do
not ship them, so these are our own, small ones.
"""

import torch
from torch.autograd import forward_ad
from torch.library import opcheck
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops

# Fast mode, unless PYTORCH_TEST_WITH_SLOW_GRADCHECK=1 (which `make test-full` sets).
from torch.testing._internal.common_utils import TestCase, gradcheck, gradgradcheck, noncontiguous_like, run_tests
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torch_overlay.testing

op_db = torch_overlay.testing.op_db()
differentiable = [op for op in op_db if op.supports_autograd]


def map_tensors(function, sample):
    return sample.transform(lambda x: function(x) if isinstance(x, torch.Tensor) else x)


def call(op, sample):
    return op(sample.input, *sample.args, **sample.kwargs)


def tensors_that_want_gradients(sample):
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]


def as_function_of_tensors(op, sample):
    """(function, tensors) such that function(*tensors) is the sample's call."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.requires_grad]

    def function(*tensors):
        own = list(leaves)
        for i, tensor in zip(where, tensors):
            own[i] = tensor
        x, args, kwargs = pytree.tree_unflatten(own, spec)
        return op(x, *args, **kwargs)

    return function, tuple(leaves[i] for i in where)


class CollectCalls(TorchDispatchMode):
    """The calls of aten operators that a piece of code makes, with their arguments."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten" and func._opname == self.name:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class TestOpInfo(TestCase):
    @ops(op_db, dtypes=OpDTypes.supported)
    def test_samples_match_reference(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            actual = call(op, sample)
            exact = map_tensors(lambda x: x.double() if x.is_floating_point() else x, sample)
            expected = op.ref(exact.input, *exact.args, **exact.kwargs)
            self.assertEqual(actual, expected, exact_dtype=False)

    @ops(op_db, dtypes=OpDTypes.unsupported)
    def test_other_dtypes_raise(self, device, dtype, op):
        sample = next(iter(op.sample_inputs(device, torch.float32)))
        with self.assertRaises((TypeError, RuntimeError)):
            call(op, map_tensors(lambda x: x.to(dtype), sample))

    @ops(op_db, dtypes=OpDTypes.none)
    def test_errors(self, device, op):
        for error in op.error_inputs(device):
            with self.assertRaisesRegex(error.error_type, error.error_regex):
                call(op, error.sample_input)

    @ops(op_db, dtypes=OpDTypes.any_one)
    def test_noncontiguous_samples(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=op.supports_autograd):
            other = sample.noncontiguous()
            out, other_out = call(op, sample), call(op, other)
            self.assertEqual(out, other_out)
            if not op.supports_autograd:
                continue
            wanted, other_wanted = map(tensors_that_want_gradients, (sample, other))
            outs, other_outs = pytree.tree_leaves(out), pytree.tree_leaves(other_out)
            grads = [torch.randn_like(x) for x in outs]
            self.assertEqual(
                torch.autograd.grad(outs, wanted, grads, allow_unused=True),
                torch.autograd.grad(
                    other_outs, other_wanted, [noncontiguous_like(g) for g in grads], allow_unused=True
                ),
            )

    @ops(differentiable, allowed_dtypes=(torch.float64,))
    def test_gradcheck(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            function, tensors = as_function_of_tensors(op, sample)
            gradcheck(function, tensors, check_forward_ad=op.supports_forward_ad, check_batched_grad=True)

    @ops([op for op in op_db if op.supports_gradgrad], allowed_dtypes=(torch.float64,))
    def test_gradgradcheck(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            function, tensors = as_function_of_tensors(op, sample)
            gradgradcheck(function, tensors, check_fwd_over_rev=op.supports_fwgrad_bwgrad)

    @ops([op for op in op_db if op.supports_forward_ad], allowed_dtypes=(torch.float64,))
    def test_forward_ad_of_each_argument_alone(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            function, tensors = as_function_of_tensors(op, sample)
            for i, tensor in enumerate(tensors):
                tangent = torch.randn_like(tensor)
                with forward_ad.dual_level():
                    duals = [x.detach() for x in tensors]
                    duals[i] = forward_ad.make_dual(duals[i], tangent)
                    out = [forward_ad.unpack_dual(x).tangent for x in pytree.tree_leaves(function(*duals))]
                # <tangent of out, v> = <tangent, gradient of v>
                outs = pytree.tree_leaves(function(*tensors))
                grads = [torch.randn_like(x) for x in outs]
                (grad,) = torch.autograd.grad(outs, tensor, grads, allow_unused=True)
                left = sum((t * g).sum() for t, g in zip(out, grads) if t is not None)
                right = 0.0 if grad is None else (tangent * grad).sum()
                self.assertEqual(torch.as_tensor(left, dtype=dtype), torch.as_tensor(right, dtype=dtype))

    @ops(op_db, dtypes=OpDTypes.supported)
    def test_meta(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            if "cu_seqlens" in sample.kwargs:
                continue  # shapes do not depend on it, but its own is checked below through opcheck
            out = call(op, sample)
            meta = call(op, map_tensors(lambda x: x.to("meta"), sample))
            for a, b in zip(pytree.tree_leaves(out), pytree.tree_leaves(meta)):
                self.assertEqual((a.shape, a.stride(), a.dtype), (b.shape, b.stride(), b.dtype))

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_opcheck(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=op.supports_autograd):
            with CollectCalls(op.aten_name) as collect:
                call(op, sample)
            self.assertEqual(len(collect.calls), 1)
            for func, args, kwargs in collect.calls:
                args, kwargs = pytree.tree_map_only(
                    torch.Tensor,
                    lambda x: x.detach().requires_grad_(op.supports_autograd and x.is_floating_point()),
                    (args, kwargs),
                )
                opcheck(func, args, kwargs)

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_compile_with_dynamic_shapes(self, device, dtype, op):
        # The samples of one signature share a graph: sizes are symbols in it.
        torch._dynamo.reset()
        samples = list(op.sample_inputs(device, dtype, requires_grad=op.supports_autograd))
        for sample in (samples[0], samples[2], *samples[-3:]):
            compiled = torch.compile(op.op, fullgraph=True, dynamic=True, backend="aot_eager")
            expected = pytree.tree_leaves(call(op, sample))
            actual = pytree.tree_leaves(call(compiled, sample))
            self.assertEqual(actual, expected)
            self.assertEqual([x.stride() for x in actual], [x.stride() for x in expected])
            if not op.supports_autograd:
                continue
            wanted = tensors_that_want_gradients(sample)
            grads = [torch.randn_like(x) for x in expected]
            self.assertEqual(
                torch.autograd.grad(actual, wanted, grads, allow_unused=True),
                torch.autograd.grad(expected, wanted, grads, allow_unused=True),
            )

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_export(self, device, dtype, op):
        for sample in list(op.sample_inputs(device, dtype))[-3:]:

            class Module(torch.nn.Module):
                def forward(self, x, *args, **kwargs):
                    return op(x, *args, **kwargs)

            program = torch.export.export(Module(), (sample.input, *sample.args), sample.kwargs)
            names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
            self.assertIn(f"aten.{op.aten_name}.default", names)
            self.assertEqual(program.module()(sample.input, *sample.args, **sample.kwargs), call(op, sample))


instantiate_device_type_tests(TestOpInfo, globals(), only_for=("cpu", "cuda"))

if __name__ == "__main__":
    run_tests()
