# Owner(s): ["module: nn"]
"""nn.CausalConv1d with what is used around modules."""

import copy
import importlib
import importlib.util
import io
import pickle
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.testing._internal.common_utils import parametrize as parametrize_test
from torch.testing._internal.common_utils import instantiate_parametrized_tests, run_tests, subtest, TestCase
from torch.utils.checkpoint import checkpoint


# Beside an installed torch, each process that a test starts loads the operator itself.
LOAD = "import torch_overlay" if importlib.util.find_spec("torch_overlay") else "pass"
exec(LOAD)

B, D, T, W = 4, 6, 10, 4
EXACT = {"rtol": 0, "atol": 0}


def make_module(**kwargs):
    torch.manual_seed(0)
    return nn.CausalConv1d(D, W, activation="silu", **kwargs)


class TestCausalConv1dModule(TestCase):
    @parametrize_test("use_reentrant", (False, True))
    def test_checkpoint(self, use_reentrant):
        module, input = make_module(), torch.randn(B, D, T, requires_grad=True)
        state = torch.randn(B, D, W - 1, requires_grad=True)

        def run(input, state):
            return module(input, initial_state=state, return_final_state=True)

        results = []
        for call in (run, lambda *args: checkpoint(run, *args, use_reentrant=use_reentrant)):
            output, final = call(input, state)
            tensors = [input, state, *module.parameters()]
            (output.square().sum() + final.sum()).backward()
            results.append([output, final, *(tensor.grad for tensor in tensors)])
            for tensor in tensors:
                tensor.grad = None
        self.assertEqual(results[0], results[1], **EXACT)

    def test_deepcopy(self):
        module = make_module()
        copied = copy.deepcopy(module)
        input = torch.randn(B, D, T)
        self.assertEqual(copied(input), module(input), **EXACT)
        with torch.no_grad():
            copied.weight.zero_()
        self.assertNotEqual(copied(input), module(input))

    @parametrize_test(
        "dump, load",
        (
            subtest((pickle.dump, "pickle.load(file)"), name="pickle"),
            subtest((torch.save, "torch.load(file, weights_only=False)"), name="save"),
        ),
    )
    def test_pickle_names_the_public_class(self, dump, load):
        self.assertEqual(nn.CausalConv1d.__module__, "torch.nn.modules.causal_conv1d")
        module, input = make_module(), torch.randn(B, D, T)
        buffer = io.BytesIO()
        dump((module, input), buffer)
        content = buffer.getvalue()
        self.assertIn(b"torch.nn.modules.causal_conv1d", content)
        self.assertNotIn(b"overlay", content)
        # In a process that has not touched the class before.
        program = f"""
import io, pickle, sys, torch
{LOAD}
file = io.BytesIO(sys.stdin.buffer.read())
module, input = {load}
assert type(module) is torch.nn.CausalConv1d, type(module)
torch.save(module(input).detach(), sys.stdout.buffer)
"""
        done = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(torch.load(io.BytesIO(done.stdout)), module(input), **EXACT)

    def test_weights_only_load(self):
        module, buffer = make_module(), io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        with torch.serialization.safe_globals([nn.CausalConv1d, *_globals_of_conv1d()]):
            loaded = torch.load(buffer, weights_only=True)
        input = torch.randn(B, D, T)
        self.assertEqual(loaded(input), module(input), **EXACT)

    @parametrize_test("bias", (False, True))
    def test_state_dict_of_conv1d(self, bias):
        causal = nn.CausalConv1d(D, W, bias=bias)
        conv = nn.Conv1d(D, D, W, groups=D, padding=W - 1, bias=bias)
        input = torch.randn(B, D, T)
        for source, target in ((conv, causal), (causal, conv)):
            nn.init.normal_(source.weight)
            target.load_state_dict(source.state_dict())
            self.assertEqual(causal(input), conv(input)[..., :T])
        self.assertEqual(list(causal.state_dict()), list(conv.state_dict()))

    def test_parametrize(self):
        module, input = make_module(), torch.randn(B, D, T)
        expected = module(input)
        weight_norm(module)
        self.assertEqual(module(input), expected)
        module.parametrizations.weight.original0.data.mul_(2)
        self.assertEqual(module(input), F.causal_conv1d(input, module.weight, module.bias, "silu"), **EXACT)
        module(input).sum().backward()
        self.assertIsNotNone(module.parametrizations.weight.original1.grad)
        parametrize.remove_parametrizations(module, "weight")
        self.assertIs(type(module), nn.CausalConv1d)

    def test_jit_trace(self):
        module, input = make_module(), torch.randn(B, D, T)
        traced = torch.jit.trace(module, input)
        other = torch.randn(B + 1, D, T + 3)
        self.assertEqual(traced(other), module(other), **EXACT)

    def test_export(self):
        module, input = make_module(), torch.randn(B, D, T)
        time = torch.export.Dim("time", min=2)
        program = torch.export.export(module, (input,), dynamic_shapes={"input": {2: time}})
        self.assertIn(torch.ops.aten.causal_conv1d.default, [node.target for node in program.graph.nodes])
        other = torch.randn(B, D, T + 7)
        self.assertEqual(program.module()(other), module(other), **EXACT)

    def test_functional_call(self):
        module, input = make_module(), torch.randn(B, D, T)
        parameters = {name: torch.randn_like(p) for name, p in module.named_parameters()}
        expected = F.causal_conv1d(input, parameters["weight"], parameters["bias"], "silu")
        self.assertEqual(functional_call(module, parameters, (input,)), expected, **EXACT)

        def loss(parameters):
            return functional_call(module, parameters, (input,)).square().sum()

        grads = torch.func.grad(loss)(parameters)
        leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        loss(leaves).backward()
        self.assertEqual(grads, {name: p.grad for name, p in leaves.items()})

    @parametrize_test("batched_input", (False, True))
    def test_vmap_over_an_ensemble(self, batched_input):
        modules = [nn.CausalConv1d(D, W, activation="silu") for _ in range(3)]
        parameters, buffers = stack_module_state(modules)
        input = torch.randn(3, B, D, T) if batched_input else torch.randn(B, D, T)

        def call(parameters, buffers, input):
            return functional_call(modules[0], (parameters, buffers), (input,))

        in_dims = (0, 0, 0 if batched_input else None)
        outputs = vmap(call, in_dims)(parameters, buffers, input)
        inputs = input if batched_input else [input] * 3
        self.assertEqual(outputs, torch.stack([m(x) for m, x in zip(modules, inputs)]), **EXACT)

    def test_autocast(self):
        module, input = make_module(), torch.randn(B, D, T, requires_grad=True)
        state = torch.randn(B, D, W - 1)
        with torch.autocast("cpu", torch.bfloat16):
            output, final = module(input, initial_state=state, return_final_state=True)
            double = copy.deepcopy(module).double()(input.double())
        self.assertEqual((output.dtype, final.dtype, double.dtype), (torch.bfloat16, torch.bfloat16, torch.float64))
        low = copy.deepcopy(module).bfloat16()
        self.assertEqual(output, low(input.bfloat16(), initial_state=state.bfloat16()), **EXACT)
        output.sum().backward()
        self.assertEqual({p.grad.dtype for p in (input, *module.parameters())}, {torch.float32})

    @parametrize_test("dtype", (torch.float32, torch.bfloat16, torch.float64))
    def test_autocast_never_casts_a_state_in_place(self, dtype):
        """Everything else takes its dtype, or the update would be lost in a copy."""
        module, state = make_module(dtype=dtype), torch.zeros(B, D, W - 1, dtype=dtype)
        args = torch.randn(B, D, dtype=dtype), state, module.weight.detach(), module.bias.detach(), "silu"
        expected_state = state.clone()
        expected = F.causal_conv1d_update(args[0], expected_state, *args[2:])
        with torch.autocast("cpu", torch.bfloat16):
            output = F.causal_conv1d_update(*args)
        self.assertEqual((output, state), (expected, expected_state), **EXACT)
        self.assertNotEqual(state, torch.zeros_like(state))


def _globals_of_conv1d():
    """What loading an nn.Conv1d with weights_only takes too, beside the class."""
    buffer = io.BytesIO()
    torch.save(nn.Conv1d(1, 1, 1), buffer)
    buffer.seek(0)
    names = (name.rpartition(".") for name in torch.serialization.get_unsafe_globals_in_checkpoint(buffer))
    return [getattr(importlib.import_module(module), name) for module, _, name in names]


instantiate_parametrized_tests(TestCausalConv1dModule)


if __name__ == "__main__":
    run_tests()
