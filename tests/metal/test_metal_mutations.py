"""The mistakes that kernels are made with: each is put into code that passes, and must be caught.

"Caught" is what the tests of a kernel do: it is run in every schedule and under the sanitizers, and must give what
is expected of it.
"""

from __future__ import annotations

from collections.abc import Callable

import metal_causal_conv1d_host as host
import metal_host
import pytest
import torch
from metal_host import shader_library
from metal_host.compiler import METAL_3_1
from metal_host.executor import SCHEDULES
from test_causal_conv1d_metal import SOURCE, make_case, reference
from test_causal_conv1d_metal import check as check_gradients
from test_causal_conv1d_metal import run as run_all

REVERSE = """
#include <metal_stdlib>
using namespace metal;

// Each threadgroup's elements, back to front.
kernel void reverse(
    device float* out [[buffer(0)]],
    constant float* in [[buffer(1)]],
    constant uint& size [[buffer(2)]],
    uint i [[thread_position_in_grid]],
    uint t [[thread_position_in_threadgroup]],
    uint n [[threads_per_threadgroup]]) {
  threadgroup float row[256];
  if (i < size) {
    row[t] = in[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = row[n - 1 - t];
}
"""

TOTALS = """
#include <c10/metal/reduction_utils.h>
#include <metal_stdlib>
using namespace metal;

// The sum of each threadgroup's elements, all of it in the first thread of each simdgroup first.
kernel void totals(
    device int* out [[buffer(0)]],
    constant int* in [[buffer(1)]],
    uint i [[thread_position_in_grid]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup int partial[32];
  int sum = in[i];
  for (ushort offset = 16; offset > 0; offset /= 2) {
    sum += simd_shuffle_down(sum, offset);
  }
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    sum = lane < simdgroups ? partial[lane] : 0;
    sum = simd_sum(sum);
    if (lane == 0) {
      out[group] = sum;
    }
  }
}
"""


def check_reverse(library):
    x = torch.arange(600.0)
    out = torch.zeros(600)
    library.reverse(out, x, 600, threads=600, group_size=200, arg_casts="int32")
    assert torch.equal(out, x.view(3, 200).flip(1).flatten())


def check_totals(library):
    x = torch.randint(-1000, 1000, (512,), generator=torch.Generator().manual_seed(0)).int()
    out = torch.zeros(4, dtype=torch.int32)
    library.totals(out, x, threads=512, group_size=128)
    assert torch.equal(out, x.view(4, 128).sum(1, dtype=torch.int32))


def check_causal_conv1d(library):
    for index, layout in ((None, "sliced"), ("seq_idx32", "contiguous")):
        case, grads = make_case(torch.float32, (2, 9, 37, 4), layout, bias=True, silu=True, state=True, index=index)
        check_gradients(run_all(library, case, grads), reference(case, grads), case)


def check_big_strides(library):
    storage = host.sparse_storage((1 << 30) * 5 + 100)
    x = storage.as_strided((1, 6, 20), (0, 1 << 30, 1)).copy_(torch.randn(1, 6, 20))
    weight = torch.randn(6, 4).half()
    expected = torch.ops.aten.causal_conv1d(x.contiguous(), weight)
    assert torch.equal(host.CausalConv1d(library, x, weight).forward(), expected)


def is_caught(source: str, check: Callable) -> bool:
    """Whether a check of this source fails in any schedule: under the sanitizers first, without which a mistake may
    write into this process's own memory."""
    with metal_host.options(sanitize=True):
        library = shader_library.ShaderLibrary(source, str(SOURCE), METAL_3_1)
    for sanitize in (True, False):
        for schedule in SCHEDULES:
            try:
                with metal_host.options(sanitize=sanitize, schedule=schedule):
                    check(library)
                metal_host.synchronize()
            except (AssertionError, RuntimeError):
                return True
    return False


def conv_source(check: Callable) -> str:
    """The shipped kernels, of the one type that the check is for."""
    source = SOURCE.read_text()
    for other in {"float", "half", "bfloat"} - {"half" if check is check_big_strides else "float"}:
        assert f"REGISTER_CAUSAL_CONV1D({other});\n" in source
        source = source.replace(f"REGISTER_CAUSAL_CONV1D({other});\n", "")
    return source


def conv(original: str, mutant: str, check: Callable = check_causal_conv1d, which: int = 0):
    """A mutation of the `which`-th place of the shipped kernels where `original` stands."""
    source = conv_source(check)
    parts = source.split(original)
    assert len(parts) > which + 1, original
    mutated = original.join(parts[: which + 1]) + mutant + original.join(parts[which + 1 :])
    return mutated, check


def small(source: str, original: str, mutant: str, check: Callable):
    assert source.count(original) == 1, original
    return source.replace(original, mutant), check


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"

OFFSET = "return row * strides.row + channel * strides.channel + time * strides.time;"

MUTATIONS = {
    "reverse: no barrier": small(REVERSE, BARRIER, "", check_reverse),
    "reverse: one too far": small(REVERSE, "row[n - 1 - t]", "row[n - t]", check_reverse),
    "reverse: written past the end": small(REVERSE, "out[i] = row", "out[i + 1] = row", check_reverse),
    "totals: no barrier": small(TOTALS, BARRIER, "", check_totals),
    "totals: lanes the other way": small(TOTALS, "simd_shuffle_down(sum", "simd_shuffle_up(sum", check_totals),
    "totals: a pair of lanes swapped": small(
        TOTALS, "sum += simd_shuffle_down(sum, offset)", "sum += simd_shuffle_xor(sum, offset ^ 1)", check_totals
    ),
    "totals: a lane too few": small(TOTALS, "offset = 16", "offset = 8", check_totals),
    "conv: no barrier after the store": conv(BARRIER, ""),
    "conv: no barrier before the next": conv(BARRIER, "", which=1),
    "conv: lane and channel swapped": conv(
        "sums[c * kCausalConv1dLanes + lane] = sum[i]", "sums[lane * 4 + c] = sum[i]"
    ),
    "conv: one position too many": conv("t < end; ++t", "t <= end; ++t"),
    "conv: the tap one off": conv("t + k - (p.width - 1)), z)", "t + k - p.width), z)"),
    "conv: the state one off": conv("p.width - 1 + s - segment.start;", "p.width + s - segment.start;"),
    "conv: padding seen": conv("here >= 0 && (s == t", "(s == t"),
    "conv: the gradient's reach one short": conv("k <= place; ++k", "k < place; ++k"),
    "conv: a partial left out": conv(
        "for (long i = 0; i < num_partials; ++i)", "for (long i = 1; i < num_partials; ++i)"
    ),
    "conv: offsets of 32 bits": conv(
        OFFSET,
        "return uint(row * strides.row + channel * strides.channel + time * strides.time);",
        check_big_strides,
    ),
    "conv: offsets of 32 signed bits": conv(
        OFFSET,
        "return int(row) * int(strides.row) + int(channel) * int(strides.channel) + int(time) * int(strides.time);",
        check_big_strides,
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_caught(name):
    assert is_caught(*MUTATIONS[name])


@pytest.mark.parametrize(
    ("source", "check"),
    [
        pytest.param(REVERSE, check_reverse, id="reverse"),
        pytest.param(TOTALS, check_totals, id="totals"),
        pytest.param(conv_source(check_causal_conv1d), check_causal_conv1d, id="conv"),
        pytest.param(conv_source(check_big_strides), check_big_strides, id="big_strides"),
    ],
)
def test_the_unchanged_code_passes(source, check):
    assert not is_caught(source, check)
