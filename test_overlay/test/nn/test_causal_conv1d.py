# Owner(s): ["module: nn"]
"""causal_conv1d against a plain float64 reference, and the equalities that hold to the bit."""

import itertools
import math

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, largeTensorTest, onlyCPU
from torch.testing._internal.common_utils import parametrize, run_tests, slowTest, TestCase
from torch.testing._internal.opinfo.definitions.causal_conv1d import reference_causal_conv1d


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS = ("contiguous", "channels_last", "sliced", "transposed", "expanded", "huge_pitch", "flipped_batch")

# Deterministic: the same examples on every run.
sweep = settings(deadline=None, derandomize=True, database=None, max_examples=120)


def lay_out(tensor, layout):
    """The values of a [B, D, T] tensor in another memory layout (expanded: those of its first row)."""
    b, d, t = tensor.shape
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "channels_last":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":  # as from a fused projection, at an odd offset
        base = tensor.new_full((b, d + 3, 2 * t + 5), math.nan)
        view = base[:, 1 : d + 1, 3 : 2 * t + 3 : 2]
    elif layout == "transposed":
        base = tensor.new_full((t, d, b), math.nan)
        view = base.permute(2, 1, 0)
    elif layout == "expanded":
        return tensor[:1].expand(b, d, t)
    elif layout == "huge_pitch":  # channels-last rows far apart
        base = tensor.new_full((b, t, d + 4099), math.nan)
        view = base[:, :, 7 : d + 7].transpose(1, 2)
    elif layout == "flipped_batch":
        base = tensor.new_full((d, b, t + 1), math.nan)
        view = base[:, :, 1:].transpose(0, 1)
    else:
        raise AssertionError(layout)
    return view.copy_(tensor)


def ulp(value, dtype):
    """The distance between neighbouring numbers of `dtype` at `value` (float64)."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.abs().clamp(min=info.tiny))[1] - 1
    return info.eps * torch.ldexp(torch.ones_like(value), exponent)


class TestCausalConv1d(TestCase):
    def inputs(self, device, dtype, b, d, t, w, *, layout="contiguous", bias=True, state=False, seed=0):
        torch.manual_seed(seed)
        make = lambda *shape: make_tensor(shape, device=device, dtype=dtype, low=-2, high=2)  # noqa: E731
        return (
            lay_out(make(b, d, t), layout),
            make(d, w),
            make(d) if bias else None,
            make(b, d, w - 1) if state else None,
        )

    def assert_within_ulp(self, actual, args, activation, **kwargs):
        """At most 1 ulp of the output's dtype beyond a computation in float32 (float64)."""
        double = [None if a is None else a.double() for a in args]
        states = {k: v.double() if v is not None and v.is_floating_point() else v for k, v in kwargs.items()}
        x, weight, bias = double
        expected = reference_causal_conv1d(x, weight, bias, activation, **states)
        states = {k: v.abs() if v is not None and v.is_floating_point() else v for k, v in states.items()}
        magnitude = reference_causal_conv1d(x.abs(), weight.abs(), None if bias is None else bias.abs(), **states)
        dtype = actual.dtype
        accumulate = torch.float64 if dtype == torch.float64 else torch.float32
        # W products and sums, then the few operations of SiLU, whose slope is at most 1.1.
        rounding = torch.finfo(accumulate).eps * (weight.size(-1) + 4) * 1.1 * magnitude
        bound = ulp(expected, dtype) + rounding
        error = (actual.double() - expected).abs()
        self.assertTrue(
            bool((error <= bound).all()),
            lambda _: f"error {error.max()} where {bound[error > bound].min()} is allowed, {dtype}",
        )

    def reference_gradients(self, outs, leaves, grads):
        """d outs / d leaves in float64; an empty input's reference does not depend on it."""
        pairs = [(o, g.double()) for o, g in zip(outs, grads) if o.requires_grad]
        if not pairs:
            return [torch.zeros_like(leaf) for leaf in leaves]
        outs, grads = zip(*pairs)
        found = torch.autograd.grad(outs, leaves, grads, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves)]

    def assert_gradients(self, actual, expected, leaves, terms):
        """Sums of up to `terms` terms of size about 10 in the arithmetic type, rounded once at the end."""
        for a, e, leaf in zip(actual, expected, leaves):
            self.assertEqual(a.dtype, leaf.dtype)
            self.assertEqual(a.shape, leaf.shape)
            work = torch.finfo(torch.float64 if a.dtype == torch.float64 else torch.float32).eps
            self.assertEqual(a.double(), e, rtol=2 * torch.finfo(a.dtype).eps, atol=20 * work * max(terms, 1))

    def check_forward_backward(self, device, dtype, b, d, t, w, layout, bias, activation, state, grad_layout):
        x, weight, bias, initial = self.inputs(device, dtype, b, d, t, w, layout=layout, bias=bias, state=state)
        leaves = [a for a in (x, weight, bias, initial) if a is not None]
        for leaf in leaves:
            leaf.requires_grad_()
        out, final = F.causal_conv1d(x, weight, bias, activation, initial_state=initial, return_final_state=True)
        self.assertEqual(
            out, F.causal_conv1d(x, weight, bias, activation, initial_state=initial), rtol=0, atol=0
        )
        with torch.no_grad():
            self.assert_within_ulp(out, (x, weight, bias), activation, initial_state=initial)

        double = [a.detach().double().requires_grad_() for a in leaves]
        it = iter(double)
        x64, w64, b64, s64 = (None if a is None else next(it) for a in (x, weight, bias, initial))
        out64, final64 = reference_causal_conv1d(
            x64, w64, b64, activation, initial_state=s64, return_final_state=True
        )
        self.assertEqual(final.double(), final64, rtol=0, atol=0)

        grad = lay_out(make_tensor(out.shape, device=device, dtype=dtype, low=-2, high=2), grad_layout)
        grad_final = make_tensor(final.shape, device=device, dtype=dtype, low=-2, high=2)
        actual = torch.autograd.grad((out, final), leaves, (grad, grad_final), allow_unused=True)
        expected = self.reference_gradients((out64, final64), double, (grad, grad_final))
        self.assert_gradients(actual, expected, leaves, max(b * t, w))

    @dtypes(*DTYPES)
    @parametrize("layout", LAYOUTS)
    def test_reference(self, device, dtype, layout):
        for (t, w), bias, activation, state in itertools.product(
            [(0, 4), (1, 1), (1, 4), (2, 4), (3, 4), (4, 4), (5, 2), (37, 3), (67, 5), (131, 9), (70, 64), (300, 4)],
            (False, True),
            (None, "silu"),
            (False, True),
        ):
            self.check_forward_backward(device, dtype, 2, 3, t, w, layout, bias, activation, state, layout)

    @dtypes(*DTYPES)
    def test_reference_sweep(self, device, dtype):
        @sweep
        @given(
            b=st.sampled_from([0, 1, 2, 3]),
            d=st.sampled_from([0, 1, 2, 7, 16, 17, 33]),
            t=st.sampled_from([0, 1, 2, 3, 5, 7, 8, 13, 31, 64, 101]),
            w=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 64]),
            layout=st.sampled_from(LAYOUTS),
            grad_layout=st.sampled_from(LAYOUTS),
            bias=st.booleans(),
            activation=st.sampled_from([None, "silu", "swish"]),
            state=st.booleans(),
        )
        def check(b, d, t, w, layout, grad_layout, bias, activation, state):
            if layout == "expanded" or grad_layout == "expanded":
                b = max(b, 1)
            self.check_forward_backward(device, dtype, b, d, t, w, layout, bias, activation, state, grad_layout)

        check()

    @dtypes(*DTYPES)
    def test_long_sweep(self, device, dtype):
        # Several blocks, and tails of every kind at their borders.
        @settings(sweep, max_examples=20)
        @given(
            b=st.sampled_from([1, 2]),
            d=st.sampled_from([1, 3, 17]),
            t=st.sampled_from([2047, 2048, 2049, 4099]),
            w=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 64]),
            layout=st.sampled_from(LAYOUTS),
            grad_layout=st.sampled_from(LAYOUTS),
            bias=st.booleans(),
            activation=st.sampled_from([None, "silu"]),
            state=st.booleans(),
        )
        def check(b, d, t, w, layout, grad_layout, bias, activation, state):
            self.check_forward_backward(device, dtype, b, d, t, w, layout, bias, activation, state, grad_layout)

        check()

    @dtypes(torch.float32, torch.bfloat16)
    def test_long_packed(self, device, dtype):
        for layout, t in itertools.product(("contiguous", "channels_last"), (2049, 4099)):
            bounds = torch.tensor([0, 0, 1, 700, 701, 2047, 2048, t], device=device)
            seq_idx = torch.bucketize(torch.arange(t, device=device), bounds[1:], right=True)[None]
            self.check_packed(device, dtype, 1, 17, t, 4, layout, True, "silu", True, cu_seqlens=bounds)
            self.check_packed(device, dtype, 1, 17, t, 4, layout, True, "silu", True, seq_idx=seq_idx)

    # ---- packed sequences -------------------------------------------------------------------

    def check_packed(self, device, dtype, b, d, t, w, layout, bias, activation, state, **index):
        x, weight, bias, _ = self.inputs(device, dtype, b, d, t, w, layout=layout, bias=bias)
        n = index["cu_seqlens"].numel() - 1 if "cu_seqlens" in index else b
        initial = make_tensor((n, d, w - 1), device=device, dtype=dtype, low=-2, high=2) if state else None
        leaves = [a.requires_grad_() for a in (x, weight, bias, initial) if a is not None]
        out, final = F.causal_conv1d(
            x, weight, bias, activation, initial_state=initial, return_final_state=True, **index
        )
        with torch.no_grad():
            self.assert_within_ulp(out, (x, weight, bias), activation, initial_state=initial, **index)
        double = [a.detach().double().requires_grad_() for a in leaves]
        it = iter(double)
        x64, w64, b64, s64 = (None if a is None else next(it) for a in (x, weight, bias, initial))
        outs64 = reference_causal_conv1d(
            x64, w64, b64, activation, initial_state=s64, return_final_state=True, **index
        )
        self.assertEqual(final.double(), outs64[1], rtol=0, atol=0)
        grads = [make_tensor(a.shape, device=device, dtype=dtype, low=-2, high=2) for a in (out, final)]
        actual = torch.autograd.grad((out, final), leaves, grads, allow_unused=True)
        expected = self.reference_gradients(outs64, double, grads)
        self.assert_gradients(actual, expected, leaves, max(b * t, w))

    @dtypes(*DTYPES)
    def test_seq_idx_sweep(self, device, dtype):
        @sweep
        @given(
            index=st.lists(
                st.lists(st.sampled_from([-2, -1, 0, 0, 0, 1, 1, 7]), min_size=23, max_size=23), min_size=1, max_size=2
            ),
            t=st.sampled_from([0, 1, 2, 3, 4, 9, 23]),
            runs=st.booleans(),
            d=st.sampled_from([1, 3, 17]),
            w=st.sampled_from([1, 2, 3, 4, 5, 9]),
            layout=st.sampled_from(("contiguous", "channels_last", "sliced", "huge_pitch")),
            bias=st.booleans(),
            activation=st.sampled_from([None, "silu"]),
            state=st.booleans(),
            index_dtype=st.sampled_from([torch.int32, torch.int64]),
        )
        def check(index, t, runs, d, w, layout, bias, activation, state, index_dtype):
            seq_idx = torch.tensor(index, device=device, dtype=index_dtype)[:, :t]
            if runs:
                seq_idx = seq_idx.repeat_interleave(4, 1)[:, :t]
            b = len(index)
            self.check_packed(device, dtype, b, d, t, w, layout, bias, activation, state, seq_idx=seq_idx)

        check()

    @dtypes(*DTYPES)
    def test_cu_seqlens_sweep(self, device, dtype):
        @sweep
        @given(
            lengths=st.lists(st.sampled_from([0, 0, 1, 2, 3, 5, 8, 13, 40]), max_size=6),
            d=st.sampled_from([1, 3, 17]),
            w=st.sampled_from([1, 2, 3, 4, 5, 9]),
            layout=st.sampled_from(("contiguous", "channels_last", "sliced", "huge_pitch")),
            bias=st.booleans(),
            activation=st.sampled_from([None, "silu"]),
            state=st.booleans(),
            index_dtype=st.sampled_from([torch.int32, torch.int64]),
        )
        def check(lengths, d, w, layout, bias, activation, state, index_dtype):
            bounds = torch.tensor([0, *itertools.accumulate(lengths)], device=device, dtype=index_dtype)
            t = sum(lengths)
            self.check_packed(device, dtype, 1, d, t, w, layout, bias, activation, state, cu_seqlens=bounds)

        check()

    @dtypes(*DTYPES)
    def test_packed_equals_separate(self, device, dtype):
        for layout, lengths in itertools.product(("contiguous", "channels_last"), ((5, 1, 700, 0, 2, 1500), (2500,))):
            t = sum(lengths)
            x, weight, bias, _ = self.inputs(device, dtype, 1, 19, t, 4, layout=layout)
            bounds = [0, *itertools.accumulate(lengths)]
            parts = [
                F.causal_conv1d(x[..., start:end], weight, bias, "silu") for start, end in itertools.pairwise(bounds)
            ]
            seq_idx = torch.arange(len(lengths), device=device).repeat_interleave(
                torch.tensor(lengths, device=device)
            )
            for index in ({"cu_seqlens": torch.tensor(bounds, device=device)}, {"seq_idx": seq_idx[None]}):
                packed = F.causal_conv1d(x, weight, bias, "silu", **index)
                self.assertEqual(packed, torch.cat(parts, -1), rtol=0, atol=0)

    @dtypes(torch.float32)
    def test_padding_is_inert(self, device, dtype):
        x, weight, bias, state = self.inputs(device, dtype, 2, 5, 30, 4, state=True)
        seq_idx = torch.zeros(2, 30, dtype=torch.int32, device=device)
        seq_idx[0, :7] = -1  # left padding
        seq_idx[1, 20:] = -1  # right padding
        dirty = x.clone()
        dirty[0, :, :7] = dirty[1, :, 20:] = math.nan
        state[0] = math.nan  # belongs to position 0, which is padding: unused
        dirty.requires_grad_()
        out, final = F.causal_conv1d(
            dirty, weight, bias, "silu", initial_state=state, return_final_state=True, seq_idx=seq_idx
        )
        self.assertEqual(out[0, :, :7].abs().sum() + out[1, :, 20:].abs().sum(), 0)
        alone = F.causal_conv1d(x[:1, :, 7:], weight, bias, "silu")
        self.assertEqual(out[0, :, 7:], alone[0], rtol=0, atol=0)
        self.assertEqual(final[1], x[1, :, 17:20], rtol=0, atol=0)
        (grad,) = torch.autograd.grad(out, dirty, torch.full_like(out, math.inf).where(seq_idx[:, None] < 0, 1.0))
        self.assertTrue(grad.isfinite().all())
        self.assertEqual(grad[0, :, :7].abs().sum() + grad[1, :, 20:].abs().sum(), 0)

    @dtypes(torch.float32)
    @onlyCPU
    def test_bad_cu_seqlens(self, device, dtype):
        x, weight, *_ = self.inputs(device, dtype, 1, 3, 8, 4)
        for bounds, rule in (
            ([0, 3], "run from 0 to T = 8, but got 0 to 3"),
            ([1, 8], "run from 0 to T = 8, but got 1 to 8"),
            ([0, 5, 3, 8], "not to decrease, but got 5 before 3 at segment 1"),
            ([0, 9, 8], "not to decrease, but got 0 before 9 at segment 0"),
        ):
            with self.assertRaisesRegex(ValueError, rule):
                F.causal_conv1d(x, weight, cu_seqlens=torch.tensor(bounds))

    # ---- the decode step --------------------------------------------------------------------

    def check_update(self, device, dtype, b, d, t, w, extra, steps, layout, bias, activation, ring, indices):
        x, weight, bias, _ = self.inputs(device, dtype, b, d, t * steps, w, bias=bias)
        rows = b + 2 if indices else b
        size = w - 1 + extra
        state = make_tensor((rows, d, size), device=device, dtype=dtype)
        state = lay_out(state, layout) if size else state
        state_indices = torch.randperm(rows, device=device)[:b] if indices else None
        at = state_indices if indices else slice(None)
        before = state.clone()
        if ring:  # nothing before the first token
            initial = None
        else:
            initial = state[at][..., size - (w - 1) :].clone()
        whole = F.causal_conv1d(x, weight, bias, activation, initial_state=initial)
        for step in range(steps):
            out = F.causal_conv1d_update(
                x[..., step * t : (step + 1) * t],
                state,
                weight,
                bias,
                activation,
                state_indices=state_indices,
                cache_seqlens=torch.full((b,), step * t, device=device, dtype=torch.int32) if ring else None,
            )
            self.assertEqual(out, whole[..., step * t : (step + 1) * t], rtol=0, atol=0)
        history = torch.cat([before[at], x], -1)
        expected = before.clone()
        if ring and size:
            for token in range(t * steps):
                expected[at, :, token % size] = x[..., token]
        elif size:
            expected[at] = history[..., history.size(-1) - size :]
        self.assertEqual(state, expected, rtol=0, atol=0)

    @dtypes(*DTYPES)
    def test_update_sweep(self, device, dtype):
        @sweep
        @given(
            b=st.sampled_from([0, 1, 2, 3]),
            d=st.sampled_from([1, 3, 8, 17, 37, 261]),
            t=st.sampled_from([1, 1, 2, 5]),
            w=st.sampled_from([1, 2, 3, 4, 5, 9]),
            extra=st.sampled_from([0, 1, 4]),
            steps=st.sampled_from([1, 3]),
            layout=st.sampled_from(("contiguous", "channels_last", "sliced", "huge_pitch")),
            bias=st.booleans(),
            activation=st.sampled_from([None, "silu"]),
            ring=st.booleans(),
            indices=st.booleans(),
        )
        def check(b, d, t, w, extra, steps, layout, bias, activation, ring, indices):
            if ring and w - 1 + extra == 0:
                extra = 1
            self.check_update(device, dtype, b, d, t, w, extra, steps, layout, bias, activation, ring, indices)

        check()

    @dtypes(torch.float32)
    def test_update_padding_and_stale_rows(self, device, dtype):
        x, weight, bias, _ = self.inputs(device, dtype, 3, 5, 1, 4)
        state = torch.full((6, 5, 3), math.nan, device=device)
        state[4] = 1.0
        before = state.clone()
        indices = torch.tensor([-1, 4, -7], device=device)
        out = F.causal_conv1d_update(x[..., 0], state, weight, bias, "silu", state_indices=indices)
        self.assertEqual(out[0].abs().sum() + out[2].abs().sum(), 0)
        self.assertTrue(out[1].isfinite().all())
        self.assertEqual(state[:4], before[:4], equal_nan=True)
        self.assertEqual(state[4, :, -1], x[1, :, 0])

    @dtypes(torch.float32)
    @onlyCPU
    def test_update_errors(self, device, dtype):
        x, weight, bias, _ = self.inputs(device, dtype, 2, 5, 1, 4)
        x, state = x[..., 0], torch.zeros(4, 5, 3)

        def error(kind, rule, *args, **kwargs):
            with self.assertRaisesRegex(kind, rule):
                F.causal_conv1d_update(*args, **kwargs)

        index = torch.tensor
        error(ValueError, r"expected state to be \[S, D, L\] .* D = 5, but got \[4, 6, 3\]", x, torch.zeros(4, 6, 3), weight)
        error(ValueError, "at least the W-1 = 3 inputs before, but got L = 2", x, torch.zeros(2, 5, 2), weight)
        error(ValueError, "B = 2 inputs, but got S = 4; pass state_indices", x, state, weight)
        error(TypeError, "expected state to have the dtype of input", x, state.double(), weight)
        error(IndexError, "below S = 4, .* but got 4 at 1", x, state, weight, state_indices=index([0, 4]))
        error(ValueError, "each row of state once .* but got 3 twice", x, state, weight, state_indices=index([3, 3]))
        error(IndexError, "count tokens from 0 on, but got -1 at 0", x, state[:2], weight, cache_seqlens=index([-1, 0]))
        error(RuntimeError, "unsupported operation", x, torch.zeros(1, 5, 3).expand(2, 5, 3), weight)
        error(ValueError, r"expected input to be \[B, D\] or \[B, D, T\], but got \[5\]", x[0], state, weight)
        self.assertEqual(state.abs().sum(), 0)  # nothing half done

    def test_update_has_no_gradient(self, device):
        weight = torch.randn(5, 4, device=device, requires_grad=True)
        out = F.causal_conv1d_update(torch.randn(2, 5, device=device), torch.zeros(2, 5, 3, device=device), weight)
        with self.assertRaisesRegex(RuntimeError, "causal_conv1d_update"):
            out.sum().backward()

    # ---- equal to the bit -------------------------------------------------------------------

    @dtypes(*DTYPES)
    def test_layouts_agree(self, device, dtype):
        for t, w, activation in itertools.product((1, 5, 130, 2100), (1, 3, 4, 6), (None, "silu")):
            results = []
            for layout in LAYOUTS:
                if layout == "expanded":
                    continue
                x, weight, bias, state = self.inputs(device, dtype, 2, 19, t, w, layout=layout, state=True)
                leaves = [a.requires_grad_() for a in (x, weight, bias, state)]
                out = F.causal_conv1d(x, weight, bias, activation, initial_state=state)
                torch.manual_seed(1)
                grad = lay_out(make_tensor(out.shape, device=device, dtype=dtype), layout)
                results.append((out, *torch.autograd.grad(out, leaves, grad)))
            for other in results[1:]:
                for a, b in zip(results[0], other):
                    self.assertEqual(a, b, rtol=0, atol=0)

    @dtypes(*DTYPES)
    def test_chunks_equal_one_shot(self, device, dtype):
        for t, w, activation in itertools.product((1, 9, 300), (1, 2, 4, 7), (None, "silu")):
            x, weight, bias, state = self.inputs(device, dtype, 2, 5, t, w, state=True)
            whole, final = F.causal_conv1d(
                x, weight, bias, activation, initial_state=state, return_final_state=True
            )
            for cuts in ([0, t], [0, 0, t], [0, 1, t], [0, t // 3, t // 2, t], list(range(t + 1))[:12] + [t]):
                chunks, carry = [], state
                for start, end in itertools.pairwise(cuts):
                    out, carry = F.causal_conv1d(
                        x[..., start:end], weight, bias, activation, initial_state=carry, return_final_state=True
                    )
                    chunks.append(out)
                self.assertEqual(torch.cat(chunks, -1), whole, rtol=0, atol=0)
                self.assertEqual(carry, final, rtol=0, atol=0)

    @dtypes(*DTYPES)
    def test_slices_equal_whole(self, device, dtype):
        x, weight, bias, _ = self.inputs(device, dtype, 3, 37, 150, 4)
        whole = F.causal_conv1d(x, weight, bias, "silu")
        for b, d, t in itertools.product((slice(0, 1), slice(1, 3)), (slice(0, 1), slice(5, 30)), (1, 2, 77, 149)):
            part = F.causal_conv1d(x[b, d, :t], weight[d], bias[d], "silu")
            self.assertEqual(part, whole[b, d, :t], rtol=0, atol=0)

    @dtypes(torch.float32, torch.bfloat16)
    @onlyCPU
    def test_threads_do_not_change_results(self, device, dtype):
        x, weight, bias, _ = self.inputs(device, dtype, 3, 70, 5000, 4)
        leaves = [a.requires_grad_() for a in (x, weight, bias)]

        def run():
            out = F.causal_conv1d(x, weight, bias, "silu")
            return out, *torch.autograd.grad(out.sum(), leaves)

        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            one = run()
            for other in (2, 3):
                torch.set_num_threads(other)
                for a, b in zip(one, run()):
                    self.assertEqual(a, b, rtol=0, atol=0)
        finally:
            torch.set_num_threads(threads)

    # ---- vmap -------------------------------------------------------------------------------

    def check_vmap(self, function, args, in_dims):
        """Of `function`, which returns a tuple of tensors, over `args`, where None is left out."""
        given = [i for i, a in enumerate(args) if a is not None]
        dims = tuple(in_dims[i] for i in given)

        def call(*tensors):
            own = list(args)
            for i, tensor in zip(given, tensors):
                own[i] = tensor
            return function(*own)

        tensors = [args[i] for i in given]
        mapped = torch.vmap(call, dims)(*tensors)
        examples = [
            call(*(a if dim is None else a.select(dim, i) for a, dim in zip(tensors, dims))) for i in range(3)
        ]
        for result, expected in zip(mapped, zip(*examples)):
            self.assertEqual(result, torch.stack(expected), rtol=0, atol=0)

    def vmap_args(self, device, dtype, shapes, in_dims):
        """A tensor for each shape, with 3 examples of it along its `in_dims`."""
        torch.manual_seed(0)
        return [
            None
            if shape is None
            else make_tensor(
                shape if dim is None else shape[:dim] + (3,) + shape[dim:], device=device, dtype=dtype, low=-2, high=2
            )
            for shape, dim in zip(shapes, in_dims)
        ]

    @dtypes(torch.float32)
    @parametrize("index_kind", (None, "seq_idx", "cu_seqlens"))
    @parametrize("batched", (True, False))
    def test_vmap(self, device, dtype, index_kind, batched):
        b, d, t, w = (1 if index_kind == "cu_seqlens" else 2), 5, 11, 4
        n = 3 if index_kind == "cu_seqlens" else b  # states
        row = (b,) if batched else ()
        if index_kind == "seq_idx":
            index = torch.tensor([0, 0, 0, 1, 1, -1, 2, 2, 2, 2, 2], device=device).expand(3, *row, t)
            index = torch.stack([i.roll(k, -1) for k, i in enumerate(index)])
        elif index_kind == "cu_seqlens":
            index = torch.tensor([[0, 5, 5, t], [0, 1, 9, t], [0, 0, t, t]], device=device)
        state_shape = (*((n,) if batched or index_kind == "cu_seqlens" else ()), d, w - 1)
        shapes = [(*row, d, t), (d, w), (d,), state_shape]

        for dims in itertools.product((None, 0, 1), (None, 1), (None, 0), (None, 0), (None, 0)):
            *tensor_dims, index_dim = dims
            if index_kind is None:
                index_dim, some = None, None
            else:
                some = index if index_dim == 0 else index[0]
            for count in (4, 3, 2):  # without the state, without the bias
                if all(dim is None for dim in (*tensor_dims[:count], index_dim)):
                    continue
                if any(dim is not None for dim in tensor_dims[count:]):
                    continue
                args = self.vmap_args(device, dtype, [*shapes[:count], *[None] * (4 - count)], tensor_dims)

                def forward(x, weight, bias, state, some):
                    kwargs = {"initial_state": state} | ({} if some is None else {index_kind: some})
                    out, final = F.causal_conv1d(x, weight, bias, "silu", return_final_state=True, **kwargs)
                    return out, final, F.causal_conv1d(x, weight, bias, "silu", **kwargs)

                def gradients(x, weight, bias, state, some):
                    leaves = [a for a in (x, weight, bias, state) if a is not None]
                    fill = [None] * (4 - len(leaves))
                    (out, final, _), vjp = torch.func.vjp(lambda *own: forward(*own, *fill, some), *leaves)
                    return vjp((out.cos(), final.sin(), torch.zeros_like(out)))

                self.check_vmap(forward, [*args, some], dims)
                self.check_vmap(gradients, [*args, some], dims)

    @dtypes(torch.float32)
    def test_vmap_over_gradients_alone(self, device, dtype):
        # Of every subset of the arguments, as with is_grads_batched.
        x, weight, bias, state = self.inputs(device, dtype, 2, 5, 11, 4, state=True)
        for wanted in itertools.product((False, True), repeat=4):
            leaves = [a.detach().requires_grad_(w) for a, w in zip((x, weight, bias, state), wanted)]
            if not any(wanted):
                continue
            outs = F.causal_conv1d(*leaves[:3], "silu", initial_state=leaves[3], return_final_state=True)
            pairs = [(out, make_tensor((3, *out.shape), device=device, dtype=dtype)) for out in outs if out.requires_grad]
            outs, grads = zip(*pairs)
            leaves = [leaf for leaf in leaves if leaf.requires_grad]
            batched = torch.autograd.grad(outs, leaves, grads, is_grads_batched=True, retain_graph=True)
            for i in range(3):
                alone = torch.autograd.grad(outs, leaves, [g[i] for g in grads], retain_graph=True)
                self.assertEqual([g[i] for g in batched], list(alone), rtol=0, atol=0)

    @dtypes(torch.float32)
    def test_nested_vmap(self, device, dtype):
        x = make_tensor((2, 3, 2, 5, 9), device=device, dtype=dtype)
        weight = make_tensor((3, 5, 4), device=device, dtype=dtype)
        nested = torch.vmap(torch.vmap(F.causal_conv1d), in_dims=(0, None))(x, weight)
        expected = [[F.causal_conv1d(x[i, j], weight[j]) for j in range(3)] for i in range(2)]
        self.assertEqual(nested, torch.stack([torch.stack(row) for row in expected]), rtol=0, atol=0)
        # None of its arguments is mapped at the inner level.
        inner = torch.vmap(lambda _, x: F.causal_conv1d(x, weight[0]), in_dims=(0, None))
        outer = torch.vmap(inner)(torch.ones(2, 3), x[:, 0])
        self.assertEqual(outer, torch.stack([F.causal_conv1d(x[i, 0], weight[0]).expand(3, -1, -1, -1) for i in (0, 1)]))

    @dtypes(torch.float32)
    def test_vmap_over_no_example(self, device, dtype):
        x, weight, shared = (torch.zeros(shape, device=device, dtype=dtype) for shape in ((0, 2, 5, 9), (0, 5, 4), (5, 4)))

        def gradient(x, weight):
            return torch.func.grad(lambda weight: F.causal_conv1d(x, weight).sum())(weight)

        self.assertEqual(torch.vmap(F.causal_conv1d, (0, None))(x, shared).shape, x.shape)
        self.assertEqual(torch.vmap(F.causal_conv1d)(x, weight).shape, x.shape)
        self.assertEqual(torch.vmap(gradient)(x, weight).shape, weight.shape)
        with self.assertRaisesRegex(RuntimeError, "there is no example to map over"):
            torch.vmap(F.causal_conv1d_update)(x[..., 0], x[..., :3].clone(), weight)

    @dtypes(torch.float32)
    def test_vmap_over_update(self, device, dtype):
        def step(x, state, weight, bias, rows, tokens):
            state = state.clone()
            out = F.causal_conv1d_update(x, state, weight, bias, "silu", state_indices=rows, cache_seqlens=tokens)
            return out, state

        rows = torch.tensor([[2, 0], [-1, 3], [1, 2]], device=device)
        tokens = torch.tensor([[0, 7], [3, 3], [1, 2]], device=device)
        for dims in itertools.product((None, 0, 1), (0, 2), (None, 0), (None, 0), (None, 0), (None, 0)):
            args = self.vmap_args(device, dtype, [(2, 5), (4, 5, 3), (5, 4), (5,)], dims)
            indices = [a if dim == 0 else a[0] for a, dim in zip((rows, tokens), dims[4:])]
            self.check_vmap(step, [*args, *indices], dims)
        x, state, weight = self.vmap_args(device, dtype, [(2, 5), (2, 5, 3), (5, 4)], (0, None, None))
        with self.assertRaisesRegex(RuntimeError, "state changes in place, so it must be mapped"):
            torch.vmap(lambda x: F.causal_conv1d_update(x, state, weight))(x)

    # ---- inputs that broke other implementations --------------------------------------------

    @dtypes(torch.float32, torch.bfloat16)
    def test_split_of_a_fused_projection(self, device, dtype):
        # The gradient of torch.cat reaches the operator with the strides of the whole.
        torch.manual_seed(0)
        qkv = make_tensor((2, 37, 3 * 24), device=device, dtype=dtype)
        weight = make_tensor((24, 4), device=device, dtype=dtype)
        grad = make_tensor(qkv.shape, device=device, dtype=dtype)

        def run(prepare):
            x = qkv.clone().requires_grad_()
            w = weight.clone().requires_grad_()
            parts = [prepare(part.transpose(1, 2)) for part in x.split(24, -1)]
            outs = [F.causal_conv1d(part, w, None, "silu").transpose(1, 2) for part in parts]
            return torch.autograd.grad(torch.cat(outs, -1), (x, w), grad)

        self.assertEqual(run(lambda part: part), run(lambda part: part.contiguous()), rtol=0, atol=0)

    @dtypes(torch.float32, torch.bfloat16)
    def test_lengths_around_powers_of_two(self, device, dtype):
        for t, layout in itertools.product((63, 64, 65, 127, 128, 129, 255, 256, 257), ("contiguous", "channels_last")):
            seq_idx = torch.arange(t, device=device).div(40, rounding_mode="floor").int().expand(2, t)
            self.check_packed(device, dtype, 2, 18, t, 4, layout, True, "silu", True, seq_idx=seq_idx)

    @dtypes(torch.float32)
    def test_wide_filters(self, device, dtype):
        for w in (138, 200, 600):
            self.check_forward_backward(device, dtype, 1, 3, 520, w, "contiguous", True, "silu", True, "channels_last")

    @dtypes(torch.float32, torch.bfloat16)
    def test_update_with_padded_slots(self, device, dtype):
        for t, w, ring in itertools.product((1, 3), (3, 4), (False, True)):
            x, weight, bias, _ = self.inputs(device, dtype, 3, 2064, t, w)
            state = make_tensor((5, 2064, w - 1), device=device, dtype=dtype)
            before = state.clone()
            rows = torch.tensor([2, -1, 4], device=device, dtype=torch.int32)
            seqlens = torch.tensor([9, 0, 9], device=device) if ring else None
            out = F.causal_conv1d_update(
                x, state, weight, bias, "silu", state_indices=rows, cache_seqlens=seqlens
            )
            self.assertEqual(out[1].abs().sum(), 0)
            for b, row in ((0, 2), (2, 4)):
                history = before[row].roll(-(9 % (w - 1)), -1) if ring else before[row]
                alone = F.causal_conv1d(x[b], weight, bias, "silu", initial_state=history)
                self.assertEqual(out[b], alone, rtol=0, atol=0)
            untouched = [0, 1, 3]
            self.assertEqual(state[untouched], before[untouched], rtol=0, atol=0)
        with self.assertRaisesRegex(ValueError, r"expected state_indices to be \[B\] = \[3\], but got \[2\]"):
            F.causal_conv1d_update(x, state, weight, state_indices=rows[:2])

    @dtypes(torch.float32)
    def test_tensors_on_two_devices(self, device, dtype):
        x, weight, *_ = self.inputs(device, dtype, 1, 3, 8, 4)
        with self.assertRaisesRegex(RuntimeError, "expected weight on the input's device"):
            F.causal_conv1d(x, weight.to("meta"))

    # ---- single properties ------------------------------------------------------------------

    @dtypes(torch.bfloat16)
    def test_products_are_not_rounded(self, device, dtype):
        x = torch.tensor([[[1.0078125]]], device=device, dtype=dtype)
        weight = torch.tensor([[1.0078125]], device=device, dtype=dtype)
        bias = torch.tensor([-1.015625], device=device, dtype=dtype)
        self.assertEqual(F.causal_conv1d(x, weight, bias).item(), 2.0**-14)

    @dtypes(torch.float16, torch.bfloat16)
    def test_float32_parameters(self, device, dtype):
        x, *_ = self.inputs(device, dtype, 2, 5, 40, 4)
        _, weight, bias, _ = self.inputs(device, torch.float32, 2, 5, 40, 4, seed=1)
        leaves = [a.requires_grad_() for a in (x, weight, bias)]
        out = F.causal_conv1d(x, weight, bias, "silu")
        self.assertEqual(out.dtype, dtype)
        with torch.no_grad():
            self.assert_within_ulp(out, (x, weight, bias), "silu")
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
        self.assertEqual([g.dtype for g in grads], [dtype, torch.float32, torch.float32])

    @dtypes(torch.float32)
    def test_output_strides(self, device, dtype):
        def strides(x):
            return F.causal_conv1d(x, torch.ones(x.size(-2), 3, device=device, dtype=dtype)).stride()

        x = torch.randn(2, 6, 5, device=device, dtype=dtype)
        for dense in (x, x.transpose(1, 2).contiguous().transpose(1, 2), x.permute(2, 0, 1), x[0], x[0].t()):
            self.assertEqual(strides(dense), dense.stride())
        self.assertEqual(strides(lay_out(x, "huge_pitch")), (30, 1, 6))
        self.assertEqual(strides(lay_out(x, "sliced")), (30, 5, 1))
        self.assertEqual(strides(lay_out(x, "expanded")), (30, 5, 1))
        self.assertEqual(strides(lay_out(x, "huge_pitch")[0]), (1, 6))
        meta = lay_out(x, "huge_pitch").to("meta")
        self.assertEqual(F.causal_conv1d(meta, torch.ones(6, 3, device="meta")).shape, x.shape)

    @dtypes(torch.float32)
    def test_unbatched_and_module_weight(self, device, dtype):
        x, weight, bias, state = self.inputs(device, dtype, 1, 5, 12, 4, state=True)
        out, final = F.causal_conv1d(x, weight, bias, "silu", initial_state=state, return_final_state=True)
        out2, final2 = F.causal_conv1d(
            x[0], weight[:, None], bias, "silu", initial_state=state[0], return_final_state=True
        )
        self.assertEqual(out[0], out2, rtol=0, atol=0)
        self.assertEqual(final[0], final2, rtol=0, atol=0)

    @dtypes(torch.float32)
    def test_non_finite(self, device, dtype):
        x, weight, bias, _ = self.inputs(device, dtype, 1, 1, 40, 4)
        for value in (math.inf, -math.inf, math.nan):
            y = x.clone()
            y[..., 20] = value
            out = F.causal_conv1d(y, weight, bias)
            self.assertTrue(out[..., :20].isfinite().all() and out[..., 24:].isfinite().all())
            self.assertFalse(out[..., 20:24].isfinite().any())

    @dtypes(torch.float32)
    @onlyCPU
    def test_more_than_65535_rows(self, device, dtype):
        for b, d in ((70000, 1), (1, 70000)):
            x = torch.randn(b, d, 4, device=device, dtype=dtype)
            weight = torch.randn(d, 2, device=device, dtype=dtype)
            self.assertEqual(
                F.causal_conv1d(x, weight),
                F.conv1d(F.pad(x, (1, 0)), weight[:, None], groups=d),
            )

    @dtypes(torch.float32)
    @onlyCPU
    def test_offsets_beyond_2_31(self, device, dtype):
        # 9 GiB of address space, of which only the touched pages are ever backed by memory.
        base = torch.empty(2**31 + 2**17, device=device, dtype=dtype)
        pitch = 2**31 // 3 + 1
        view = base.as_strided((1, 5, 4), (1, 1, pitch)).copy_(torch.randn(1, 5, 4))
        weight = torch.randn(5, 4, device=device, dtype=dtype)
        self.assertEqual(F.causal_conv1d(view, weight), F.causal_conv1d(view.contiguous(), weight), rtol=0, atol=0)

    @dtypes(torch.bfloat16)
    @onlyCPU
    def test_update_of_a_pool_beyond_2_31(self, device, dtype):
        # 4 GiB of address space, of which only the named rows are ever backed by memory.
        x, weight, bias, _ = self.inputs(device, dtype, 2, 3, 1, 4)
        rows = torch.tensor([2**31 // 9 + 5, 1])
        pool = torch.empty(2**31 // 9 + 9, 3, 3, dtype=dtype)
        pool[rows] = before = make_tensor((2, 3, 3), device=device, dtype=dtype)
        out = F.causal_conv1d_update(x[..., 0], pool, weight, bias, "silu", state_indices=rows)
        expected = F.causal_conv1d(x, weight, bias, "silu", initial_state=before)
        self.assertEqual(out, expected[..., 0], rtol=0, atol=0)
        self.assertEqual(pool[rows], torch.cat([before[..., 1:], x], -1), rtol=0, atol=0)

    @slowTest
    @largeTensorTest("12GB")
    @dtypes(torch.bfloat16)
    def test_more_than_2_31_outputs(self, device, dtype):
        d, t = 32771, 65536
        x, *_ = self.inputs(device, dtype, 1, 1, t, 4)
        weight = make_tensor((d, 4), device=device, dtype=dtype).requires_grad_()
        expanded = x.expand(1, d, t).detach().requires_grad_()
        out = F.causal_conv1d(expanded, weight, None, "silu")
        self.assertGreater(out.numel(), 2**31)
        grads = torch.autograd.grad(out, (expanded, weight), x.expand(1, d, t))
        some = torch.tensor([0, 1, 32766, 32767, 32768, d - 1], device=device)  # on both sides of 2**31
        x_some = x.expand(1, 6, t).detach().requires_grad_()
        w_some = weight.detach()[some].requires_grad_()
        out_some = F.causal_conv1d(x_some, w_some, None, "silu")
        self.assertEqual(out[:, some], out_some, rtol=0, atol=0)
        for whole, part in zip(grads, torch.autograd.grad(out_some, (x_some, w_some), x.expand(1, 6, t))):
            whole = whole[:, some] if whole.dim() == 3 else whole[some]
            self.assertEqual(whole, part, rtol=0, atol=0)

    def test_module(self, device):
        module = nn.CausalConv1d(6, 4, activation="silu", device=device)
        self.assertEqual(repr(module), "CausalConv1d(6, kernel_size=4, activation='silu')")
        x = torch.randn(2, 6, 9, device=device)
        expected = F.silu(F.conv1d(F.pad(x, (3, 0)), module.weight, module.bias, groups=6))
        self.assertEqual(module(x), expected)
        self.assertIsInstance(module, nn.Conv1d)
        conv = nn.Conv1d(6, 6, 4, groups=6, device=device)
        conv.load_state_dict(module.state_dict())
        module.load_state_dict(conv.state_dict())
        self.assertEqual(module(x), expected)
        with self.assertRaisesRegex(ValueError, "activation must be None, 'silu' or 'swish', but got 'relu'"):
            nn.CausalConv1d(6, 4, activation="relu")

    def test_gradients_have_the_dtype_and_the_mask(self, device):
        x, weight, bias, _ = self.inputs(device, torch.float32, 2, 3, 8, 4)
        for wanted in itertools.product((False, True), repeat=3):
            leaves = [a.detach().clone().requires_grad_(w) for a, w in zip((x, weight, bias), wanted)]
            if not any(wanted):
                continue
            F.causal_conv1d(*leaves, "silu").sum().backward()
            self.assertEqual([leaf.grad is not None for leaf in leaves], list(wanted))


instantiate_device_type_tests(TestCausalConv1d, globals())

if __name__ == "__main__":
    run_tests()
