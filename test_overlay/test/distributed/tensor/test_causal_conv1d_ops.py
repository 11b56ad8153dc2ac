# Owner(s): ["oncall: distributed"]
"""DTensor's sharding rules of causal_conv1d: what is placed where, and what is communicated."""

import copy
import unittest

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import (
    distribute_module,
    distribute_tensor,
    DTensor,
    init_device_mesh,
    Partial,
    Replicate,
    Shard,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorOpTestBase


R, P = Replicate(), Partial()
B, D, T, W = 5, 6, 9, 4  # no size is a multiple of the ranks


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def rand(*shapes):
    """The same on every rank; the ranks are threads, which share the default generator."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


class TestCausalConv1dSharding(DTensorOpTestBase):
    world_size = 4

    def mesh(self, *shape):
        return init_device_mesh("cpu", shape or (self.world_size,))

    def tensors(self, batch=(B,)):
        return rand((*batch, D, T), (D, 1, W), (D,), (*batch, D, W - 1))

    def check(self, mesh, input, weight, state, *, output=None, grads=None, communicates=False, batch=(B,)):
        """Of input, weight (and bias) and state on such placements; the output's default to the input's."""
        tensors = self.tensors(batch)
        reference = [leaf(t) for t in tensors]
        expected = F.causal_conv1d(*reference[:3], "silu", initial_state=reference[3], return_final_state=True)
        grad_output, grad_final = rand(*(t.shape for t in expected))
        torch.autograd.backward(expected, [grad_output, grad_final])

        output = output or input
        sharded = [distribute_tensor(t, mesh, p).requires_grad_() for t, p in zip(tensors, (input, weight, weight, state))]
        grad_outputs = [distribute_tensor(grad_output, mesh, output), distribute_tensor(grad_final, mesh, state)]
        with CommDebugMode() as communication:
            actual = F.causal_conv1d(*sharded[:3], "silu", initial_state=sharded[3], return_final_state=True)
            torch.autograd.backward(actual, grad_outputs)
        self.assertEqual(communication.get_total_counts() > 0, communicates)
        self.assertEqual([t.placements for t in actual], [tuple(output), tuple(state)])
        for a, e in zip(actual, expected):
            self.assertEqual(a.full_tensor(), e, rtol=0, atol=0)
        for tensor, e, placements in zip(sharded, reference, grads or (input, weight, weight, state)):
            self.assertEqual(tensor.grad.placements, tuple(placements))
            self.assertEqual(tensor.grad.full_tensor(), e.grad)

    def test_batch_and_channels_do_not_communicate(self):
        mesh = self.mesh()
        batch, channel = [Shard(0)], [Shard(1)]
        self.check(mesh, batch, [R], batch, grads=(batch, [P], [P], batch))
        self.check(mesh, channel, [Shard(0)], channel)
        self.check(mesh, [R], [R], [R])
        self.check(mesh, [R], [Shard(0)], channel, output=channel, grads=(channel, [Shard(0)], [Shard(0)], channel))
        self.check(mesh, [Shard(0)], [Shard(0)], [Shard(0)], batch=())  # unbatched: the channels

    def test_two_dimensional_mesh(self):
        both = [Shard(0), Shard(1)]
        parameter_grad = [P, Shard(0)]
        self.check(self.mesh(2, 2), both, [R, Shard(0)], both, grads=(both, parameter_grad, parameter_grad, both))

    def test_other_placements_are_redistributed(self):
        mesh = self.mesh()
        self.check(mesh, [Shard(2)], [R], [R], output=[R], grads=([R], [R], [R], [R]), communicates=True)
        # Beside a sharded batch the parameters are gathered.
        batch = [Shard(0)]
        self.check(mesh, batch, [Shard(0)], batch, grads=(batch, [P], [P], batch), communicates=True)

    def test_a_keyword_is_not_redistributed(self):
        input, weight, _, state = self.tensors()
        mesh = self.mesh()
        input, weight, state = (distribute_tensor(t, mesh, [p]) for t, p in ((input, Shard(0)), (weight, R), (state, R)))
        with self.assertRaisesRegex(RuntimeError, "expected initial_state to be placed as .*redistribute it first"):
            F.causal_conv1d(input, weight, initial_state=state)
        # The rules are cached by the placements of keywords too.
        F.causal_conv1d(input, weight, initial_state=state.redistribute(placements=[Shard(0)]))
        F.causal_conv1d(input, weight)
        with self.assertRaisesRegex(RuntimeError, "expected initial_state to be placed as"):
            F.causal_conv1d(input, weight, initial_state=state)

    def test_seq_idx_and_cu_seqlens(self):
        input, weight, bias, _ = self.tensors()
        mesh = self.mesh()
        seq_idx = (torch.arange(T) // 4).expand(B, T).contiguous()
        cu_seqlens = torch.tensor([0, 4, T])
        for division, parameter, keyword in (([Shard(0)], [R], [Shard(0)]), ([Shard(1)], [Shard(0)], [R])):
            args = [distribute_tensor(t, mesh, p) for t, p in ((input, division), (weight, parameter), (bias, parameter))]
            with CommDebugMode() as communication:
                output = F.causal_conv1d(*args, seq_idx=distribute_tensor(seq_idx, mesh, keyword))
            self.assertEqual(communication.get_total_counts(), 0)
            self.assertEqual(output.full_tensor(), F.causal_conv1d(input, weight, bias, seq_idx=seq_idx))
        # Segments share one row, so only channels divide them; their states are [N, D, W-1].
        row = distribute_tensor(input[:1], mesh, [Shard(1)])
        with CommDebugMode() as communication:
            output, final = F.causal_conv1d(
                row, *args[1:], cu_seqlens=distribute_tensor(cu_seqlens, mesh, [R]), return_final_state=True
            )
        self.assertEqual(communication.get_total_counts(), 0)
        expected = F.causal_conv1d(input[:1], weight, bias, cu_seqlens=cu_seqlens, return_final_state=True)
        self.assertEqual(final.placements, (Shard(1),))
        self.assertEqual((output.full_tensor(), final.full_tensor()), expected)
        row = distribute_tensor(input[:1], mesh, [Shard(0)])
        parameters = [distribute_tensor(t, mesh, [R]) for t in (weight, bias)]
        output = F.causal_conv1d(row, *parameters, cu_seqlens=distribute_tensor(cu_seqlens, mesh, [R]))
        self.assertEqual((output.placements, output.full_tensor()), ((R,), expected[0]))

    def test_update(self):
        mesh = self.mesh()
        _, weight, bias, _ = self.tensors()
        indices = torch.tensor([6, 2, -1, 0, 3])
        cases = (
            ([Shard(0)], [R], None),
            ([Shard(1)], [Shard(0)], None),
            ([Shard(1)], [Shard(0)], indices),
            ([R], [R], indices),
        )
        for division, parameter, rows in cases:
            pool, step = rand((B if rows is None else 7, D, W), (B, D))
            seen = torch.arange(B)
            expected_pool = pool.clone()
            expected = F.causal_conv1d_update(
                step, expected_pool, weight, bias, state_indices=rows, cache_seqlens=seen
            )
            sharded = [
                distribute_tensor(t, mesh, p)
                for t, p in ((step, division), (pool, division), (weight, parameter), (bias, parameter))
            ]
            keywords = {"cache_seqlens": distribute_tensor(seen, mesh, division if division == [Shard(0)] else [R])}
            if rows is not None:
                keywords["state_indices"] = distribute_tensor(rows, mesh, [R])
            state = sharded[1]
            storage = state.to_local().data_ptr()
            with CommDebugMode() as communication:
                output = F.causal_conv1d_update(*sharded, **keywords)
            self.assertEqual(communication.get_total_counts(), 0)
            self.assertEqual(output.placements, tuple(division))
            self.assertEqual(output.full_tensor(), expected)
            self.assertEqual(state.full_tensor(), expected_pool)
            self.assertEqual(state.to_local().data_ptr(), storage)
            functional = torch.ops.aten.causal_conv1d_update_functional(
                sharded[0], distribute_tensor(pool, mesh, division), *sharded[2:], **keywords
            )
            self.assertEqual([t.full_tensor() for t in functional], [expected, expected_pool])

    def test_update_leaves_the_state_where_it_is(self):
        mesh = self.mesh()
        _, weight, _, state = self.tensors()
        weight = distribute_tensor(weight, mesh, [R])
        step = distribute_tensor(*rand((B, D)), mesh, [R])
        for placement, keywords in ((Shard(2), {}), (Shard(0), {"state_indices": torch.arange(B)})):
            sharded = distribute_tensor(state, mesh, [placement])
            keywords = {name: distribute_tensor(t, mesh, [R]) for name, t in keywords.items()}
            with self.assertRaisesRegex(RuntimeError, "expected state to be placed as .*redistribute it first"):
                F.causal_conv1d_update(step, sharded, weight, **keywords)

    @unittest.skipIf(
        torch.ops.aten.select.int not in DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs,
        "this release has no rule for select, which double backward takes",
    )
    def test_module_and_double_backward(self):
        mesh = self.mesh()

        def shard_channels(name, module, mesh):
            for key, parameter in module.named_parameters():
                module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))

        whole, *parameters = (leaf(t) for t in self.tensors()[:3])
        plain = nn.CausalConv1d(D, W, activation="silu")
        plain.load_state_dict(dict(zip(("weight", "bias"), parameters)))
        module = distribute_module(copy.deepcopy(plain), mesh, shard_channels)
        sharded = distribute_tensor(whole.detach(), mesh, [Shard(1)]).requires_grad_()
        (grad,) = torch.autograd.grad(module(sharded).square().sum(), sharded, create_graph=True)
        grad.square().sum().backward()
        (expected,) = torch.autograd.grad(plain(whole).square().sum(), whole, create_graph=True)
        expected.square().sum().backward()
        self.assertEqual(grad.full_tensor(), expected)
        self.assertEqual(sharded.grad.full_tensor(), whole.grad)
        for actual, parameter in zip(module.parameters(), plain.parameters()):
            self.assertEqual(actual.grad.full_tensor(), parameter.grad)


if __name__ == "__main__":
    run_tests()
