"""causal_conv1d_update under torch.compile and AOTInductor: in place, whatever the size of the state."""

import copy
import tempfile

import torch
import torch.nn.functional as F
from torch._inductor.utils import run_and_get_code
from torch.library import opcheck
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils.flop_counter import FlopCounterMode


class TestCompiledUpdate(TestCase):
    def inputs(self, rows=512, channels=64, width=4):
        torch.manual_seed(0)
        return torch.randn(1, channels), torch.randn(rows, channels, width - 1), torch.randn(channels, width)

    def test_state_is_not_copied(self):
        x, pool, weight = self.inputs()
        indices = torch.tensor([5])

        @torch.compile(fullgraph=True)
        def step(x, pool, indices):
            return F.causal_conv1d_update(x, pool, weight, None, "silu", state_indices=indices)

        expected_pool = pool.clone()
        expected = F.causal_conv1d_update(x, expected_pool, weight, None, "silu", state_indices=indices)
        out, code = run_and_get_code(step, x, pool, indices)
        self.assertEqual(out, expected, rtol=0, atol=0)
        self.assertEqual(pool, expected_pool, rtol=0, atol=0)
        # One call, on the caller's own tensor: nothing of the pool's size is allocated or copied.
        text = "\n".join(code)
        self.assertIn("aten_overlay.causal_conv1d_update.default(", text)
        self.assertNotIn("empty_strided_cpu((512,", text)
        self.assertNotIn("cpp_fused", text)

    def test_several_steps_in_one_graph(self):
        x, pool, weight = self.inputs(rows=1)

        @torch.compile(fullgraph=True)
        def steps(x, pool):
            first = F.causal_conv1d_update(x, pool, weight)
            return F.causal_conv1d_update(first, pool, weight) + pool.sum()

        expected_pool = pool.clone()
        first = F.causal_conv1d_update(x, expected_pool, weight)
        expected = F.causal_conv1d_update(first, expected_pool, weight) + expected_pool.sum()
        self.assertEqual(steps(x, pool), expected)
        self.assertEqual(pool, expected_pool, rtol=0, atol=0)

    def test_functionalize(self):
        x, pool, weight = self.inputs(rows=1)

        def step(x, pool):
            pool = pool.clone()
            return F.causal_conv1d_update(x, pool, weight), pool

        self.assertEqual(torch.func.functionalize(step)(x, pool), step(x, pool), rtol=0, atol=0)

    def test_opcheck_of_the_name_it_compiles_to(self):
        x, pool, weight = self.inputs(rows=3)
        rows = torch.tensor([2])
        for kwargs in ({"state_indices": rows}, {"state_indices": rows, "cache_seqlens": torch.tensor([7])}):
            opcheck(torch.ops.aten_overlay.causal_conv1d_update.default, (x, pool, weight, None, "silu"), kwargs)

    def test_flops(self):
        x = torch.randn(2, 8, 16, requires_grad=True)
        weight = torch.randn(8, 4, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            F.causal_conv1d(x, weight, None, "silu").sum().backward()
            F.causal_conv1d_update(x[..., 0], torch.zeros(2, 8, 3), weight)
        self.assertEqual(counter.get_total_flops(), 3 * (2 * 2 * 8 * 16 * 4) + 2 * 2 * 8 * 4)


class Decoder(torch.nn.Module):
    """A prompt and one step, the latter on a pool of states that the module owns."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.CausalConv1d(8, 4, activation="silu")
        self.register_buffer("pool", torch.zeros(6, 8, 3))

    def forward(self, prompt, token, rows):
        out, state = self.conv(prompt, return_final_state=True)
        weight, bias = self.conv.weight, self.conv.bias
        step = F.causal_conv1d_update(token, self.pool, weight, bias, "silu", state_indices=rows)
        return out, state, step


class TestAOTInductor(TestCase):
    def test_decoder(self):
        # Not on the list of C-shim operators, so the calls go through the proxy executor.
        torch.manual_seed(0)
        module = Decoder()
        inputs = torch.randn(2, 8, 9), torch.randn(2, 8), torch.tensor([1, 4])
        time = torch.export.Dim("time", min=2, max=512)
        program = torch.export.export(
            module, inputs, dynamic_shapes={"prompt": {2: time}, "token": None, "rows": None}
        )
        eager = copy.deepcopy(module)
        with tempfile.TemporaryDirectory() as folder:
            package = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/decoder.pt2")
            compiled = torch._inductor.aoti_load_package(package)
            for length in (9, 33, 2):  # the pool goes on from step to step
                inputs = torch.randn(2, 8, length), torch.randn(2, 8), torch.tensor([1, 4])
                with torch.no_grad():
                    self.assertEqual(compiled(*inputs), eager(*inputs), rtol=0, atol=0)


if __name__ == "__main__":
    run_tests()
