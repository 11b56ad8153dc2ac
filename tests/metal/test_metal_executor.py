"""The executor: positions, threadgroup memory, barriers, simdgroups, atomics, checks, and what is said of mistakes."""

from __future__ import annotations

import itertools

import metal_host
import numpy as np
import pytest
import torch
from metal_host import executor
from metal_host.compiler import METAL_3_1, METAL_4_0
from metal_host.executor import SCHEDULES, Memory, Options
from metal_host.shader_library import ShaderLibrary

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def build(source: str) -> ShaderLibrary:
    return metal_host.compile_shader(HEAD + source)


# ---- Positions -----------------------------------------------------------------------------

COORDINATES = (
    "thread_position_in_grid thread_position_in_threadgroup threadgroup_position_in_grid threads_per_threadgroup "
    "dispatch_threads_per_threadgroup threadgroups_per_grid threads_per_grid"
).split()
INDICES = (
    "thread_index_in_threadgroup thread_index_in_simdgroup simdgroup_index_in_threadgroup threads_per_simdgroup "
    "simdgroups_per_threadgroup dispatch_simdgroups_per_threadgroup thread_index_in_quadgroup "
    "quadgroup_index_in_threadgroup"
).split()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("grid", "group"), [((7, 5, 3), (4, 2, 2)), ((70, 1, 1), (32, 1, 1)), ((5, 9, 1), (5, 3, 1))])
def test_positions(grid, group, schedule):
    """Of every thread, in groups that do not divide the grid."""
    parameters = "".join(f", uint3 {name} [[{name}]]" for name in COORDINATES)
    parameters += "".join(f", ushort {name} [[{name}]]" for name in INDICES)
    columns = [*(f"{name}.{c}" for name in COORDINATES for c in "xyz"), *INDICES]
    stores = "".join(f"out[i * {len(columns)} + {n}] = {column};\n" for n, column in enumerate(columns))
    library = build(
        f"kernel void positions(device uint* out [[buffer(0)]]{parameters}) {{\n"
        "const uint i = thread_position_in_grid.x + threads_per_grid.x * (thread_position_in_grid.y"
        " + threads_per_grid.y * thread_position_in_grid.z);\n"
        f"{stores}}}\n"
    )
    out = torch.full((grid[2], grid[1], grid[0], len(columns)), -1, dtype=torch.int32)
    with metal_host.options(schedule=schedule, host_threads=2):
        library.positions(out, threads=grid, group_size=group)
    for z, y, x in itertools.product(range(grid[2]), range(grid[1]), range(grid[0])):
        position = (x, y, z)
        groups = [-(-n // g) for n, g in zip(grid, group, strict=True)]
        where = [p // g for p, g in zip(position, group, strict=True)]
        inside = [p % g for p, g in zip(position, group, strict=True)]
        size = [min(g, n - w * g) for g, n, w in zip(group, grid, where, strict=True)]
        index = inside[0] + size[0] * (inside[1] + size[1] * inside[2])
        simdgroups = [-(-s[0] * s[1] * s[2] // 32) for s in (size, group)]
        expected = [*position, *inside, *where, *size, *group, *groups, *grid]
        expected += [index, index % 32, index // 32, 32, *simdgroups, index % 4, index // 4]
        assert out[z, y, x].tolist() == expected, position


def test_scalar_and_short_positions():
    library = build(
        "kernel void f(device uint* out, ushort2 p [[thread_position_in_grid]], ushort2 n [[threads_per_grid]]) {\n"
        "  out[p.y * n.x + p.x] = p.x * 100 + p.y;\n}\n"
        "kernel void g(device uint* out, ushort i [[thread_position_in_grid]]) { out[i] = i; }\n"
    )
    out = torch.zeros(3, 4, dtype=torch.int32)
    library.f(out, threads=[4, 3], group_size=[3, 2])
    assert out.tolist() == [[x * 100 + y for x in range(4)] for y in range(3)]
    library.g(out.view(-1))
    assert out.view(-1).tolist() == list(range(12))


# ---- Threadgroup memory and barriers -------------------------------------------------------


def test_threadgroup_memory_is_poisoned():
    """For each group anew."""
    library = build("""
        kernel void f(device uint* out, uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
          threadgroup uint a[4], b;
          out[2 * i] = a[t];
          out[2 * i + 1] = b;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          a[t] = 1;
          b = 1;
        }
    """)
    out = torch.zeros(12, 2, dtype=torch.int32)
    library.f(out, threads=12, group_size=4)
    assert (out.numpy().view(np.uint32) == 0xAAAAAAAA).all()


def test_threadgroup_memory_that_the_host_gives():
    """compile_shader cannot give any, as on a Mac; a host program can."""
    library = build("""
        kernel void f(
            device float* out [[buffer(0)]],
            threadgroup float* row [[threadgroup(1)]],
            uint i [[thread_position_in_grid]],
            uint t [[thread_index_in_threadgroup]],
            uint n [[threads_per_threadgroup]]) {
          row[t] = out[i];
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[i] = row[n - 1 - t];
        }
    """)
    out = torch.arange(100.0)
    memory = Memory(out.data_ptr(), out.data_ptr(), out.data_ptr() + 400)
    for sanitize in (False, True):
        with metal_host.options(sanitize=sanitize):
            function = library.function("f")
        function.run([memory], (100, 1, 1), (50, 1, 1), Options(), threadgroup_lengths=(0, 200))
    assert torch.equal(out, torch.arange(100.0))  # reversed twice
    with pytest.raises(RuntimeError, match=r"kernel f, threadgroup\(1\) is given no memory"):
        function.run([memory], (100, 1, 1), (50, 1, 1), Options())
    with pytest.raises(
        RuntimeError, match=r"writes 4 bytes 0 bytes after the end of threadgroup argument 1 \(196 bytes\)"
    ):
        function.run([memory], (100, 1, 1), (50, 1, 1), Options(), threadgroup_lengths=(0, 196))


def test_too_much_threadgroup_memory():
    library = build("""
        kernel void f(device float* out, uint i [[thread_position_in_grid]]) {
          threadgroup float a[8192];
          threadgroup float b;
          a[i] = b = i;
          out[i] = a[i];
        }
    """)
    with pytest.raises(RuntimeError, match="its threadgroup variables exceed 32 KiB"):
        library.f(torch.zeros(4))


MISSING_BARRIER = """
    kernel void f(
        device uint* out, uint t [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
      threadgroup uint row[256];
      row[t] = t;
      BARRIER
      out[t] = row[(t + SHIFT) % n];
    }
"""


@pytest.mark.parametrize(
    ("shift", "schedules"), [(32, {"forward", "simdgroup"}), (-32, {"reverse", "simdgroup-reverse"})]
)
def test_a_missing_barrier_shows_in_one_direction_at_least(shift, schedules):
    expected = (torch.arange(256, dtype=torch.int32) + shift) % 256
    source = MISSING_BARRIER.replace("SHIFT", f"{shift} + n")
    right = build(source.replace("BARRIER", "threadgroup_barrier(mem_flags::mem_threadgroup);"))
    wrong = build(source.replace("BARRIER", ""))
    for schedule in SCHEDULES:
        out = torch.zeros(256, dtype=torch.int32)
        with metal_host.options(schedule=schedule):
            right.f(out, threads=256, group_size=256)
            assert torch.equal(out, expected)
            wrong.f(out, threads=256, group_size=256)
        if schedule in schedules:
            assert not torch.equal(out, expected)


def test_a_simdgroup_operation_does_not_hide_a_missing_barrier():
    """Threads that all start before any operation is resolved would."""
    source = """
        kernel void f(device uint* out, uint t [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
          threadgroup uint sums[8];
          const uint sum = simd_sum(t);
          if (t % 32 == 0) {
            sums[t / 32] = sum;
          }
          BARRIER
          out[t] = sums[(t / 32 + 1) % 8];
        }
    """
    sums = torch.arange(256).view(8, 32).sum(1).roll(-1).repeat_interleave(32).int()
    shown = set()
    for barrier in ("threadgroup_barrier(mem_flags::mem_threadgroup);", ""):
        library = build(source.replace("BARRIER", barrier))
        for schedule in SCHEDULES:
            out = torch.zeros(256, dtype=torch.int32)
            with metal_host.options(schedule=schedule):
                library.f(out, threads=256, group_size=256)
            if barrier:
                assert torch.equal(out, sums)
            elif not torch.equal(out, sums):
                shown.add(schedule)
    assert "simdgroup" in shown


def test_threads_that_returned_do_not_hold_up_a_barrier():
    library = build("""
        kernel void f(device uint* out, uint t [[thread_index_in_threadgroup]]) {
          threadgroup uint row[64];
          if (t >= 50) {
            return;
          }
          row[t] = t;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[t] = row[49 - t];
        }
    """)
    for schedule in SCHEDULES:
        out = torch.zeros(64, dtype=torch.int32)
        with metal_host.options(schedule=schedule):
            library.f(out, threads=64, group_size=64)
        assert out.tolist() == [*range(49, -1, -1), *[0] * 14]


def test_threads_at_different_barriers():
    library = build("""
        kernel void f(device uint* out, uint t [[thread_index_in_threadgroup]]) {
          if (t < 40) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            out[t] = 1;
          } else {
            threadgroup_barrier(mem_flags::mem_device);
            out[t] = 2;
          }
        }
    """)
    for schedule in SCHEDULES:
        with metal_host.options(schedule=schedule), pytest.raises(RuntimeError, match="wait at different barriers"):
            library.f(torch.zeros(64, dtype=torch.int32), threads=64, group_size=64)


# ---- Simdgroups ----------------------------------------------------------------------------

SIMD = {
    "simd_sum(x)": lambda x: np.full(32, x.sum()),
    "simd_product(x | 1)": lambda x: np.full(32, np.multiply.reduce(x | 1)),
    "simd_max(x)": lambda x: np.full(32, x.max()),
    "simd_min(x)": lambda x: np.full(32, x.min()),
    "simd_and(x)": lambda x: np.full(32, np.bitwise_and.reduce(x)),
    "simd_or(x)": lambda x: np.full(32, np.bitwise_or.reduce(x)),
    "simd_xor(x)": lambda x: np.full(32, np.bitwise_xor.reduce(x)),
    "simd_prefix_exclusive_sum(x)": lambda x: np.cumsum(x, dtype=x.dtype) - x,
    "simd_prefix_inclusive_sum(x)": lambda x: np.cumsum(x, dtype=x.dtype),
    "simd_broadcast(x, 7)": lambda x: np.full(32, x[7]),
    "simd_broadcast_first(x)": lambda x: np.full(32, x[0]),
    "simd_shuffle(x, lane / 2)": lambda x: x[np.arange(32) // 2],
    "simd_shuffle_xor(x, 5)": lambda x: x[np.arange(32) ^ 5],
    "simd_shuffle_down(x, 3)": lambda x: np.concatenate([x[3:], x[29:]]),
    "simd_shuffle_up(x, 3)": lambda x: np.concatenate([x[:3], x[:29]]),
    "simd_shuffle_rotate_down(x, 3)": lambda x: np.roll(x, -3),
    "simd_shuffle_rotate_up(x, 3)": lambda x: np.roll(x, 3),
    "simd_shuffle_and_fill_down(x, 9, 3)": lambda x: np.concatenate([x[3:], [9] * 3]),
    "simd_shuffle_and_fill_up(x, 9, 3)": lambda x: np.concatenate([[9] * 3, x[:29]]),
    "int(ulong(simd_ballot(x > 0)))": lambda x: np.full(32, (2 ** np.arange(32) * (x > 0)).sum()).astype(np.uint32),
    "simd_any(x == 77)": lambda x: np.full(32, (x == 77).any()),
    "simd_all(x > -1000)": lambda x: np.full(32, (x > -1000).all()),
    "simd_is_first()": lambda x: np.arange(32) == 0,
}


def test_simd_operations():
    kernels = "".join(
        f"kernel void f{n}(device int* out, constant int* in, uint i [[thread_position_in_grid]],"
        f" ushort lane [[thread_index_in_simdgroup]]) {{ const int x = in[i]; out[i] = {expression}; (void)lane; }}\n"
        for n, expression in enumerate(SIMD)
    )
    library = build(kernels)
    x = torch.randint(-100, 100, (96,), dtype=torch.int32)
    for schedule in SCHEDULES:
        for n, (expression, reference) in enumerate(SIMD.items()):
            out = torch.zeros(96, dtype=torch.int32)
            with metal_host.options(schedule=schedule):
                getattr(library, f"f{n}")(out, x, threads=96, group_size=96)
            expected = np.stack([reference(row).astype(np.int64) for row in x.numpy().reshape(3, 32)])
            np.testing.assert_array_equal(out.numpy(), expected.astype(np.int32).flatten(), err_msg=expression)


def test_lanes_that_went_another_way():
    """An operation in a branch is for the lanes that took it; after the branch all are there again."""
    library = build("""
        kernel void f(device int2* out, uint i [[thread_position_in_grid]]) {
          int inside = -1;
          if (i % 3 == 0) {
            inside = simd_sum(1);
          }
          for (uint n = 0; n < i % 4; ++n) {
            inside += 100 * simd_sum(1);
          }
          out[i] = int2(inside, simd_sum(1));
        }
    """)
    third = len(range(0, 32, 3))
    for schedule in SCHEDULES:
        out = torch.zeros(32, 2, dtype=torch.int32)
        with metal_host.options(schedule=schedule):
            library.f(out, threads=32, group_size=32)
        loop = [0, 24, 40, 48]  # the lanes that are still there, summed over the rounds
        expected = [[(third if i % 3 == 0 else -1) + 100 * loop[i % 4], 32] for i in range(32)]
        assert out.tolist() == expected, schedule


def test_a_simdgroup_that_is_not_full():
    library = build("kernel void f(device int* out, uint i [[thread_position_in_grid]]) { out[i] = simd_sum(1); }")
    out = torch.zeros(80, dtype=torch.int32)
    library.f(out, threads=80, group_size=40)
    assert out.tolist() == [*[32] * 32, *[8] * 8] * 2


@pytest.mark.parametrize("name", ("float", "half", "bfloat"))
def test_simdgroup_matrix(name):
    dtype = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}[name]
    library = build(f"""
        #include <metal_simdgroup_matrix>
        kernel void f(device float* out, device const {name}* a, device const {name}* b) {{
          simdgroup_{name}8x8 left, right;
          simdgroup_load(left, a, 10);
          simdgroup_load(right, b, 8, ulong2(0), true);
          simdgroup_float8x8 sum(2.0f);
          simdgroup_multiply_accumulate(sum, left, right, sum);
          simdgroup_store(sum, out, 8);
        }}
    """)
    a, b = torch.randint(-5, 5, (8, 10)).to(dtype), torch.randint(-5, 5, (8, 8)).to(dtype)
    out = torch.zeros(8, 8)
    library.f(out, a, b, threads=32, group_size=32)
    assert torch.equal(out, a[:, :8].float() @ b.float().T + 2 * torch.eye(8))


# ---- Several host threads ------------------------------------------------------------------


def test_atomics_of_several_host_threads():
    library = build("""
        kernel void f(
            device atomic<uint>* sum, device atomic<uint>* largest, device atomic<float>* total,
            uint i [[thread_position_in_grid]]) {
          atomic_fetch_add_explicit(sum, i, memory_order_relaxed);
          atomic_fetch_max_explicit(largest, i, memory_order_relaxed);
          atomic_fetch_add_explicit(total, 1.0, memory_order_relaxed);
        }
    """)
    sum, largest, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    with metal_host.options(host_threads=4):
        library.f(sum, largest, total, threads=60000, group_size=64)
    assert (sum.item(), largest.item(), total.item()) == ((60000 * 59999 // 2) % 2**32, 59999, 60000.0)


def test_groups_with_barriers_on_several_host_threads():
    library = build(
        MISSING_BARRIER.replace("SHIFT", "1")
        .replace("BARRIER", "threadgroup_barrier(mem_flags::mem_none);")
        .replace("out[t]", "out[i]")
        .replace("device uint* out,", "device uint* out, uint i [[thread_position_in_grid]],")
    )
    out = torch.zeros(100 * 256, dtype=torch.int32)
    before = executor.read_counters().barriers
    with metal_host.options(host_threads=4):
        library.f(out, threads=out.numel(), group_size=256)
    assert torch.equal(out.view(100, 256), torch.arange(256, dtype=torch.int32).roll(-1).expand(100, 256))
    assert executor.read_counters().barriers == before + 100


# ---- Arithmetic ----------------------------------------------------------------------------


def test_denormals():
    library = build("kernel void f(device float* out, constant float& x) { out[0] = x * 0.5; out[1] = x + 0.0; }")
    out = torch.ones(2)
    library.f(out, 2.0**-126, threads=1)
    assert out.tolist() == [0.0, 2.0**-126]
    with metal_host.options(keep_denormals=True):
        library.f(out, 2.0**-126, threads=1)
    assert out.tolist() == [2.0**-127, 2.0**-126]
    assert torch.tensor(2.0**-126).mul(0.5) != 0  # this process is as it was


def test_every_half_and_bfloat():
    """Conversions of all values, and products that round once."""
    library = build("""
        kernel void widen(device float* a, device float* b, constant half* h, constant bfloat* f,
                          uint i [[thread_position_in_grid]]) { a[i] = h[i]; b[i] = f[i]; }
        kernel void narrow(device half* h, device bfloat* f, constant float* in,
                           uint i [[thread_position_in_grid]]) { h[i] = half(in[i]); f[i] = bfloat(in[i]); }
        kernel void square(device half* h, device bfloat* f, uint i [[thread_position_in_grid]]) {
          h[i] = h[i] * h[i] + h[i];
          f[i] = f[i] * f[i] + f[i];
        }
    """)
    bits = torch.arange(65536).to(torch.int32).to(torch.int16)
    h, f = bits.view(torch.float16), bits.view(torch.bfloat16)
    a, b = torch.zeros(65536), torch.zeros(65536)
    with metal_host.options(keep_denormals=True):
        library.widen(a, b, h, f)
        assert torch.equal(a.nan_to_num(1e30), h.float().nan_to_num(1e30))
        assert torch.equal(b.nan_to_num(1e30), f.float().nan_to_num(1e30))
        wide = torch.randint(-(2**31), 2**31, (100000,)).to(torch.int32).view(torch.float32)
        nh, nf = torch.zeros(100000, dtype=torch.float16), torch.zeros(100000, dtype=torch.bfloat16)
        library.narrow(nh, nf, wide)
        assert torch.equal(nh.nan_to_num(1), wide.half().nan_to_num(1))
        assert torch.equal(nf.nan_to_num(1), wide.bfloat16().nan_to_num(1))
        sh, sf = h.clone(), f.clone()
        library.square(sh, sf)
    assert torch.equal(sh.nan_to_num(1), (h * h + h).nan_to_num(1))
    assert torch.equal(sf.nan_to_num(1), (f * f + f).nan_to_num(1))


def test_vectors():
    library = build("""
        kernel void f(device float4* out, constant float4* in, constant bool2& flags, constant packed_float3* p) {
          const float4 v = in[0];
          out[0] = v.wzyx + 2.0;
          out[1].xy = v.zw;
          out[1].zw = float2(v.x, 7);
          out[2] = float4(v.xyz, 1.0);
          out[3] = select(v, float4(0), v > 2.5);
          out[4] = float4(float2(v.x), float2(half2(v.yz)));
          out[5] = float4(any(v > 3.5), all(v > 3.5), flags.x, flags.y);
          out[6] = float4(float3(p[1]), dot(v, v));
          out[7] = float4(int4(v * 1.5));
          out[8] = as_type<float4>(as_type<uint4>(v) ^ uint4(0x80000000));
          float4 w = v;
          w.xz *= 2;
          w[3] = length(v.rg + float2(0, 0));
          out[9] = w;
          out[10] = float4(float3(cross(float3(1, 0, 0), float3(0, 1, 0))), clamp(v.x, 2.0, 3.0));
        }
    """)
    v = torch.tensor([1.0, 2.0, 3.0, 4.0])
    out = torch.zeros(11, 4)
    library.f(out, v, [True, False], torch.arange(6.0), threads=1)
    expected = [
        [6, 5, 4, 3], [3, 4, 1, 7], [1, 2, 3, 1], [1, 2, 0, 0], [1, 1, 2, 3], [1, 0, 1, 0], [3, 4, 5, 30],
        [1, 3, 4, 6], [-1, -2, -3, -4], [2, 2, 6, 5**0.5], [0, 0, 1, 2],
    ]  # fmt: skip
    assert torch.equal(out, torch.tensor(expected, dtype=torch.float32))


def test_structs_between_address_spaces():
    library = build("""
        struct Params {
          float scale;
          uint size;
        };
        template <typename T>
        struct Item {
          T value;
          uint index;
        };
        kernel void f(
            device Params* out [[buffer(0)]],
            device float* values [[buffer(1)]],
            constant Params& p [[buffer(2)]],
            uint i [[thread_position_in_grid]],
            uint n [[threads_per_threadgroup]]) {
          threadgroup Item<float> items[32];
          items[i] = Item<float>{float(i), i};
          threadgroup_barrier(mem_flags::mem_threadgroup);
          Item<float> theirs = items[n - 1 - i];
          const auto mine = p;
          Params sum = p;
          sum.size += mine.size + theirs.index;
          out[i] = sum;
          out[i] = out[i];
          values[i] = theirs.value * mine.scale;
        }
    """)
    out, values = torch.zeros(8, 2), torch.zeros(8)
    params = torch.tensor([2.5, 0])
    params.view(torch.int32)[1] = 100
    for sanitize in (False, True):
        with metal_host.options(sanitize=sanitize):
            library.f(out, values, params, threads=8)
        assert values.tolist() == [2.5 * i for i in range(7, -1, -1)]
        assert out[:, 0].tolist() == [2.5] * 8
        assert out.view(torch.int32)[:, 1].tolist() == [200 + i for i in range(7, -1, -1)]


def test_levels():
    source = (
        HEAD
        + """
        template <typename T>
        kernel void f(device T* out) {
          if constexpr (sizeof(T) == 4) {
            out[0] = __METAL_VERSION__;
          }
        }
        template [[host_name("f")]] kernel void f<float>(device float* out);
    """
    )
    out = torch.zeros(1)
    ShaderLibrary(source, "a.metal", METAL_4_0).f(out)
    assert out.item() == 400
    with pytest.raises(Exception, match=r"a.metal:6: constexpr if needs C\+\+17; Metal 3.1 is C\+\+14"):
        ShaderLibrary(source, "a.metal", METAL_3_1)


# ---- Checks --------------------------------------------------------------------------------

OUT_OF_BOUNDS = {
    "out[i + 2] = 1;": r"kernel f, thread \(2, 0, 0\) of threadgroup \(1, 0, 0\): writes 4 bytes 0 bytes after the end "
    r"of buffer\(0\) \(32 bytes\)",
    "out[int(i) - 1] = 1;": r"thread \(0, 0, 0\) of threadgroup \(0, 0, 0\): writes 4 bytes 4 bytes before buffer\(0\)",
    "out[i] = in[i + 1];": r"reads 4 bytes 0 bytes after the end of buffer\(1\) \(32 bytes\)",
    "out[i] = in[i * 1000];": r"reads 4 bytes 3968 bytes after the end of buffer\(1\)",
    "threadgroup float row[3]; threadgroup float* p = row; p[i] = in[i]; out[i] = p[i];": "threadgroup variable 0",
    "int n[4] = {1, 2, 3, 4}; out[i] = n[i];": "an index outside of its array at program_source:5",
    "out[i] = 1 << (i + 31);": "a shift by a negative amount or by all the bits at program_source:5",
    "out[i] = (int(i) + 2147483644) / 2;": "a signed addition overflows at program_source:5",
    "out[i] = 7 / (3 - int(i));": "an integer division by zero.* at program_source:5",
    "out[i] = reinterpret_cast<device float4*>(out + 1)->x;": "a misaligned access at program_source:5",
}


@pytest.mark.parametrize("statement", OUT_OF_BOUNDS)
def test_sanitized(statement):
    with metal_host.options(sanitize=True):
        library = build(
            "kernel void f(device float* out, constant float* in, uint i [[thread_position_in_grid]]) {\n"
            f"  (void)in;\n{statement}\n}}\n"
        )
        storage = torch.zeros(3, 8)  # what lies beside is memory too, but not bound
        with pytest.raises(RuntimeError, match=OUT_OF_BOUNDS[statement]):
            library.f(storage[1], torch.ones(8), threads=8, group_size=4)


def test_sanitized_after_a_wait():
    """The thread is named even when others have run since it began."""
    with metal_host.options(sanitize=True):
        library = build("""
            kernel void f(device float* out, uint i [[thread_position_in_grid]]) {
              const float sum = simd_sum(1.0);
              threadgroup_barrier(mem_flags::mem_none);
              if (i == 37) {
                out[i + 100] = sum;
              }
            }
        """)
        for schedule in SCHEDULES:
            with metal_host.options(schedule=schedule), pytest.raises(RuntimeError, match=r"thread \(37, 0, 0\)"):
                library.f(torch.zeros(64), threads=64, group_size=64)


RACES = {
    # what comes between writing one's own element and reading another's -> what is said of it, if anything
    "": r"s byte \d+ of threadgroup variable 0, which thread \(\d+, 0, 0\) touched too since the last barrier",
    "threadgroup_barrier(mem_flags::mem_threadgroup);": None,
    "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);": None,
    "threadgroup_barrier(mem_flags::mem_device);": "touched too since the last barrier that orders threadgroup memory",
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("barrier", RACES)
def test_races_in_threadgroup_memory(barrier, schedule):
    """In every schedule, whichever way the values go."""
    with metal_host.options(sanitize=True, schedule=schedule):
        library = build(f"""
            kernel void f(device uint* out, uint t [[thread_index_in_threadgroup]]) {{
              threadgroup uint row[64];
              row[t] = t;
              {barrier}
              out[t] = row[t ^ 1];
            }}
        """)
        out = torch.zeros(64, dtype=torch.int32)
        if RACES[barrier] is None:
            library.f(out, threads=64, group_size=64)
            assert torch.equal(out, torch.arange(64, dtype=torch.int32) ^ 1)
        else:
            with pytest.raises(RuntimeError, match=RACES[barrier]):
                library.f(out, threads=64, group_size=64)


@pytest.mark.parametrize(
    ("body", "races"),
    [
        ("row[0] = t;", True),  # all of them
        ("if (t == 0) { row[0] = 1; }", False),
        ("row[t] = 1; row[t] = row[t] + 1;", False),
        ("const uint x = row[5]; if (t == 7) { row[5] = x; }", True),  # read by others, then written
        ("const uint x = row[t / 32]; simd_sum(x); if (t % 32 == 3) { row[t / 32] = x; }", False),
        ("const uint x = row[0]; simd_sum(x); if (t == 3) { row[0] = x; }", True),  # another simdgroup has read it
        ("const uint x = row[5]; threadgroup_barrier(mem_flags::mem_threadgroup); if (t == 7) { row[5] = x; }", False),
        ("row[t] = t; simdgroup_barrier(mem_flags::mem_threadgroup); out[t] = row[t ^ 1];", False),
        ("row[t] = t; simdgroup_barrier(mem_flags::mem_threadgroup); out[t] = row[t ^ 32];", True),
    ],
)
def test_what_is_a_race(body, races):
    with metal_host.options(sanitize=True):
        library = build(f"""
            kernel void f(device uint* out, uint t [[thread_index_in_threadgroup]]) {{
              threadgroup uint row[64];
              {body}
              out[t] = 0;
            }}
        """)
        for schedule in SCHEDULES:
            with metal_host.options(schedule=schedule):
                if races:
                    with pytest.raises(RuntimeError, match="touched too"):
                        library.f(torch.zeros(128, dtype=torch.int32), threads=128, group_size=64)
                else:
                    library.f(torch.zeros(128, dtype=torch.int32), threads=128, group_size=64)


def test_a_crash_is_an_error():
    library = build("""
        kernel void wild(device float* out, uint i [[thread_position_in_grid]]) {
          out[ulong(i) << 40] = 1;
        }
        kernel void divide(device int* out, constant int& by) {
          out[0] = 7 / by;
        }
        kernel void unbound(device float* out [[buffer(0)]], constant float* in [[buffer(1)]]) {
          out[0] = in[0];
        }
        int deep(int n, thread int* p) {
          int more[1000];
          more[n % 1000] = *p;
          return n == 0 ? 0 : deep(n - 1, more) + more[(n * 7) % 1000];
        }
        kernel void overflow(device int* out) {
          int n = 1;
          out[0] = deep(1000000, &n);
        }
    """)
    with pytest.raises(RuntimeError, match=r"kernel wild, a thread of threadgroup \(0, 0, 0\): touches memory at"):
        library.wild(torch.zeros(4))
    with pytest.raises(RuntimeError, match="kernel divide, .*division by zero"):
        library.divide(torch.zeros(1, dtype=torch.int32), 0, arg_casts="int32")
    with pytest.raises(RuntimeError, match=r"kernel unbound, buffer\(1\) is not bound"):
        library.unbound(torch.zeros(4))
    with pytest.raises(RuntimeError, match="kernel overflow, .*touches memory at"):
        library.overflow(torch.zeros(1, dtype=torch.int32), threads=1)
    out = torch.zeros(1, dtype=torch.int32)
    library.divide(out, 2, arg_casts="int32")
    assert out.item() == 3


# ---- The interface of torch.mps.compile_shader ---------------------------------------------

INTERFACE = """
    kernel void my_kernel(
        const device float* input [[buffer(0)]],
        device float* output [[buffer(1)]],
        uint tid [[thread_position_in_grid]]) {
      output[tid] = input[tid] * 2.0;
    }
    kernel void fill(device float* out, constant float& value, uint i [[thread_position_in_grid]]) { out[i] = value; }
    kernel void longs(device long* out, constant long2& v) { out[0] = v.x; out[1] = v.y; }
    kernel void bytes(device uchar* out, constant uchar* in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
    [[max_total_threads_per_threadgroup(64)]] kernel void small(device float* out) { out[0] = 1; }
"""


@pytest.fixture(scope="module")
def library():
    return build(INTERFACE)


class TestInterface:
    def test_the_example_of_the_guide(self, library):
        inp, out = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
        library.my_kernel(inp, out, threads=[3, 1, 1], group_size=[3, 1, 1])
        metal_host.synchronize()
        assert out.tolist() == [2.0, 4.0, 6.0]

    def test_threads_default_to_the_first_tensor(self, library):
        out = torch.zeros(5)
        library.my_kernel(torch.ones(3), out)
        assert out.tolist() == [2.0, 2.0, 2.0, 0.0, 0.0]

    def test_numbers(self, library):
        out = torch.zeros(4)
        library.fill(out, 3.14)
        assert torch.equal(out, torch.full((4,), 3.14))
        longs = torch.zeros(2, dtype=torch.int64)
        library.longs(longs, [2**40, -7], threads=1)
        assert longs.tolist() == [2**40, -7]
        for cast, dtype in {
            "fp16": torch.float16, "bf16": torch.bfloat16, "int32": torch.int32, "int16": torch.int16,
            "int8": torch.int8, "uint8": torch.uint8,
        }.items():  # fmt: skip
            values = torch.tensor([1, 2, 3], dtype=dtype)
            out = torch.zeros(3 * dtype.itemsize, dtype=torch.uint8)
            library.bytes(out, [1, 2, 3], arg_casts=cast)
            assert torch.equal(out.view(dtype), values)

    def test_views(self, library):
        base = torch.zeros(10)
        library.fill(base[4:7], 1.0)
        assert base.tolist() == [0.0] * 4 + [1.0] * 3 + [0.0] * 3

    def test_nothing_to_do(self, library):
        library.fill(torch.zeros(0), 1.0)
        library.fill(torch.zeros(4), 1.0, threads=[0, 4], group_size=[1, 1])

    def test_what_is_refused(self, library):
        out = torch.zeros(4)
        for error, match, call in (
            (AttributeError, "has no kernel `nothing`; it has", lambda: library.nothing),
            (RuntimeError, "Number of threads is undefined", lambda: library.fill(1.0)),
            (RuntimeError, "Unsupported cast instruction fp64", lambda: library.fill(out, 1.0, arg_casts="fp64")),
            (RuntimeError, "Empty list/tuple", lambda: library.fill(out, [])),
            (RuntimeError, "Unexpected argument types", lambda: library.fill(out, "1")),
            (RuntimeError, "as many sizes", lambda: library.fill(out, 1.0, threads=[4], group_size=[4, 1])),
            (RuntimeError, "a threadgroup has 1 to 1024 threads, not 2048",
             lambda: library.fill(out, 1.0, threads=4096, group_size=2048)),
            (RuntimeError, "a threadgroup has 1 to 64 threads, not 65",
             lambda: library.small(out, threads=65, group_size=65)),
            (RuntimeError, r"buffer\(1\) is a reference to 16 bytes, but 8 are bound",
             lambda: library.longs(torch.zeros(2, dtype=torch.int64), 7, threads=1)),
            (RuntimeError, r"buffer\(1\) is not bound", lambda: library.fill(out)),
            (ValueError, "schedule to be one of", lambda: metal_host.options(schedule="sideways").__enter__()),
        ):  # fmt: skip
            with pytest.raises(error, match=match):
                call()

    def test_attributes(self, library):
        assert set(dir(library)) == {"my_kernel", "fill", "longs", "bytes", "small"}
        assert library.small.max_threads_per_threadgroup == 64
        assert library.fill.max_threads_per_threadgroup == 1024
        assert library.fill.thread_execution_width == 32

    def test_an_error_names_its_line(self):
        with pytest.raises(Exception, match="^program_source:3: use of undeclared identifier 'x'"):
            build("kernel void f(device float* out) { out[0] = x; }")
