# Owner(s): ["oncall: distributed"]
"""torch.distributed.nn.sequence_parallel_causal_conv1d against one process, to the bit."""

import importlib.util
import itertools
import pickle
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing import make_tensor
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests, TestCase


if importlib.util.find_spec("torch_overlay"):
    # Beside an installed torch, each process that a test starts loads the operator itself.
    import torch_overlay  # noqa: F401


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Of three ranks; two take the first two.
LENGTHS = ((7, 5, 9), (2, 1, 4), (5, 0, 1), (0, 2, 0), (1, 1, 0), (0, 0, 0))


def sequence_parallel(*args, **kwargs):
    from torch.distributed.nn import sequence_parallel_causal_conv1d

    return sequence_parallel_causal_conv1d(*args, **kwargs)


def channels_last(tensor):
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def leaf(tensor):
    return None if tensor is None else tensor.detach().clone().requires_grad_()


def make(shape, dtype):
    return make_tensor(shape, device="cpu", dtype=dtype, low=-2, high=2)


class TestSequenceParallel(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_sequence_parallel(self):
        """All in one test: to start the processes takes longer than what they do."""
        torch.set_num_threads(1)
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        pair = dist.new_group([0, 1])
        end = dist.new_group([1, 2])
        self.check_equals_one_process(None, LENGTHS)
        if self.rank < 2:
            self.check_equals_one_process(pair, [lengths[:2] for lengths in LENGTHS])
            self.check_variants(pair)
            self.check_what_travels(pair)
            self.check_autograd(pair)
            self.check_autocast_and_compile(pair)
            self.check_errors_come_before_anything_is_sent(pair)
            with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
                self.check_double_backward(pair)
        # Ranks of a group are not global ranks.
        if self.rank > 0:
            self.check((2, 5), torch.float32, group=end, state=True)
        else:
            with self.assertRaisesRegex(ValueError, "of global rank 0, is not in the group"):
                sequence_parallel(torch.randn(2, 3, 6), torch.randn(3, 4), group=end)
        dist.barrier()
        dist.destroy_process_group()

    def check(
        self, lengths, dtype, *, group, width=4, activation="silu", state=False, layout=torch.clone,
        parameters=None, unbatched=False, weight_shape=lambda d, w: (d, w),
    ):  # fmt: skip
        """Results and gradients of shards of these lengths are those of one process."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        torch.manual_seed(0)
        b, d, t = 2, 3, sum(lengths)
        shape = (d,) if unbatched else (b, d)
        x, grad_output = layout(make((*shape, t), dtype)), layout(make((*shape, t), dtype))
        initial, grad_final = make((*shape, width - 1), dtype), make((*shape, width - 1), dtype)
        parameters = [make(s, parameters or dtype) for s in (weight_shape(d, width), (d,))]

        whole = [leaf(v) for v in (x, *parameters)]
        whole_state = leaf(initial) if state else None
        expected = F.causal_conv1d(*whole, activation, initial_state=whole_state, return_final_state=True)
        torch.autograd.backward(expected, [grad_output, grad_final])

        begin = sum(lengths[:rank])
        own = slice(begin, begin + lengths[rank])
        shard = [leaf(layout(x[..., own])), *map(leaf, parameters)]
        shard_state = leaf(initial) if state and rank == 0 else None
        output, final = sequence_parallel(
            *shard, activation, group=group, initial_state=shard_state, return_final_state=True
        )
        exact = {"rtol": 0, "atol": 0}
        self.assertEqual(output, expected[0][..., own], **exact)
        self.assertEqual(output.stride(), shard[0].stride())
        if rank == size - 1:
            self.assertEqual(final, expected[1], **exact)
            torch.autograd.backward([output, final], [grad_output[..., own], grad_final])
        else:
            self.assertIsNone(final)
            output.backward(grad_output[..., own])

        self.assertEqual(shard[0].grad, whole[0].grad[..., own], **exact)
        if shard_state is not None:
            self.assertEqual(shard_state.grad, whole_state.grad, **exact)
        for mine, total in zip(shard[1:], whole[1:]):
            self.assertEqual(mine.grad.dtype, mine.dtype)
            summed = mine.grad.double()
            dist.all_reduce(summed, group=group)
            tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(mine.dtype, 0.05)
            self.assertEqual(summed, total.grad.double(), rtol=tolerance, atol=4 * tolerance)

    def check_equals_one_process(self, group, all_lengths):
        for lengths, dtype, state in itertools.product(all_lengths, DTYPES, (False, True)):
            self.check(lengths, dtype, group=group, state=state)

    def check_variants(self, group):
        for width, activation in itertools.product((1, 2, 9), (None, "silu")):
            self.check((5, 3), torch.float32, group=group, width=width, activation=activation, state=True)
            self.check((3, 5), torch.bfloat16, group=group, width=width, activation=activation)
        for dtype in (torch.float32, torch.bfloat16):
            self.check((7, 5), dtype, group=group, layout=channels_last, parameters=torch.float32)
            self.check((2, 1), dtype, group=group, layout=channels_last, state=True)
        self.check((2, 6), torch.float32, group=group, unbatched=True, state=True)
        self.check((2, 6), torch.float32, group=group, weight_shape=lambda d, w: (d, 1, w))

    def check_what_travels(self, group):
        sent = []
        run = dist.batch_isend_irecv

        def record(operations):
            sent.extend(op.tensor.numel() for op in operations if op.op is dist.isend)
            return run(operations)

        b, d, t, w = 2, 3, 50, 4
        halo = b * d * (w - 1)
        input, weight = torch.randn(b, d, t, requires_grad=True), torch.randn(d, w)
        with mock.patch.object(dist, "batch_isend_irecv", record):
            output = sequence_parallel(input, weight, group=group)
            self.assertEqual(sent, [halo] if self.rank == 0 else [])
            sent.clear()
            output.sum().backward()
            self.assertEqual(sent, [2 * halo + w - 1] if self.rank == 1 else [])

    def check_autograd(self, group):
        """Whatever is used of the results, every rank's backward serves the other."""
        torch.manual_seed(0)
        input, weight = torch.randn(2, 3, 2, requires_grad=True), torch.randn(3, 4)
        output, final = sequence_parallel(input, weight, group=group, return_final_state=True)
        (output if self.rank == 0 else final).sum().backward()

        whole = torch.zeros(2, 3, 4, requires_grad=True)
        expected, expected_final = F.causal_conv1d(whole, weight, return_final_state=True)
        (expected[..., :2].sum() + expected_final.sum()).backward()
        self.assertEqual(input.grad, whole.grad[..., 2 * self.rank :][..., :2], rtol=0, atol=0)

    def check_double_backward(self, group):
        input, weight = torch.randn(2, 3, 6, requires_grad=True), torch.randn(3, 4)
        output = sequence_parallel(input, weight, group=group)
        (grad,) = torch.autograd.grad(output.square().sum(), input, create_graph=True)
        grad.sum().backward()

    def check_autocast_and_compile(self, group):
        args = torch.randn(2, 3, 6, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            output = sequence_parallel(*args, group=group)
            double = sequence_parallel(*(a.detach().double() for a in args), group=group)
        self.assertEqual(output.dtype, torch.bfloat16)
        self.assertEqual(double.dtype, torch.float64)
        for grad in torch.autograd.grad(output.sum(), args):
            self.assertEqual(grad.dtype, torch.float32)

        compiled = torch.compile(lambda *args: sequence_parallel(*args, group=group) * 2, backend="eager")
        self.assertEqual(compiled(*args), sequence_parallel(*args, group=group) * 2)

    def check_errors_come_before_anything_is_sent(self, group):
        input, weight = torch.randn(2, 3, 6), torch.randn(3, 4)
        with mock.patch.object(dist, "batch_isend_irecv", side_effect=AssertionError("sent")):
            with self.assertRaisesRegex(TypeError, "expected weight to have the input's dtype"):
                sequence_parallel(input, weight.double(), group=group)
            with self.assertRaisesRegex(ValueError, "expected input to be"):
                sequence_parallel(input[0, 0], weight, group=group)
            with self.assertRaisesRegex(ValueError, "expected activation"):
                sequence_parallel(input, weight, None, "gelu", group=group)
            state = torch.zeros(2, 3, 2 if self.rank == 0 else 3)
            message = r"expected initial_state to be \[B, D, W-1\]" if self.rank == 0 else "on the first rank only"
            with self.assertRaisesRegex(ValueError, message):
                sequence_parallel(input, weight, group=group, initial_state=state)


class TestSequenceParallelAlone(TestCase):
    def test_is_public(self):
        import torch.distributed.nn

        function = torch.distributed.nn.sequence_parallel_causal_conv1d
        self.assertEqual(function.__module__, "torch.distributed.nn")
        self.assertIs(pickle.loads(pickle.dumps(function)), function)

    def test_not_initialized(self):
        args = torch.randn(2, 3, 6), torch.randn(3, 4)
        with self.assertRaisesRegex(RuntimeError, "torch.distributed is not initialized"):
            sequence_parallel(*args)
        with mock.patch.object(dist, "is_available", return_value=False):
            with self.assertRaisesRegex(RuntimeError, "torch.distributed is not initialized"):
                sequence_parallel(*args)

    def test_one_rank(self):
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            input, weight = torch.randn(2, 3, 6, requires_grad=True), torch.randn(3, 4)
            output, final = sequence_parallel(input, weight, return_final_state=True)
            expected, expected_final = F.causal_conv1d(input, weight, return_final_state=True)
            self.assertEqual((output, final), (expected, expected_final), rtol=0, atol=0)
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    run_tests()
