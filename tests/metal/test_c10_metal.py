"""The headers of c10/metal: they compile whole, and their kernel templates give what numpy gives, to the bit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import metal_host
import numpy as np
import pytest
import torch
from metal_host import compiler, frontend
from metal_host.compiler import LEVELS, METAL_3_1
from metal_host.shader_library import ShaderLibrary

HEADERS = "atomic common error expm1f igamma indexing random reduction_utils special_math utils".split()
DTYPES = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
    "char": torch.int8,
    "uchar": torch.uint8,
    "bool": torch.bool,
}
SCALAR_TYPES = {  # c10::metal::ScalarType
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
    torch.float32: 6, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
SHAPE = (5, 7, 11)
NUMEL = 385


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("release", ("2.14.1", "2.13.0"))
def test_whole_header(request, release, level, header):
    tree = request.getfixturevalue(f"tree_{release.replace('.', '_')}")
    source = f"#include <c10/metal/{header}.h>\n"
    result = frontend.type_check(source, "whole.metal", LEVELS[level], tree)
    assert f"{tree}/c10/metal/{header}.h" in result.text


def test_all_headers_at_once():
    source = "".join(f"#include <c10/metal/{header}.h>\n" for header in HEADERS)
    for level in LEVELS.values():
        frontend.type_check(source, "whole.metal", level)


# ---- Elementwise ---------------------------------------------------------------------------

UNARY_TYPES = ("float", "half", "bfloat", "long", "int", "short", "char", "uchar")
BINARY_TYPES = ("float", "half", "bfloat", "int", "long")

SOURCE = """
#include <c10/metal/indexing.h>
#include <metal_stdlib>
using namespace metal;
using namespace c10::metal;

struct shifted_square_functor {
  template <typename T>
  inline T operator()(const T x) {
    return T(T(x * x) - x);
  }
};

struct third_functor {
  template <typename T>
  inline float operator()(const T x) {
    return float(x) / 3;
  }
};

struct scaled_functor {
  template <typename T>
  inline T operator()(const T x, const T alpha) {
    return T(x * alpha);
  }
};

struct product_functor {
  template <typename T>
  inline T operator()(const T a, const T b) {
    return T(a * b);
  }
};

struct below_functor {
  template <typename T>
  inline bool operator()(const T a, const T b) {
    return a < b;
  }
};

struct blend_functor {
  template <typename T>
  inline T operator()(const T a, const T b, const T c) {
    return T(T(a * b) + c);
  }
};
""" + "".join(
    [
        *(f"REGISTER_UNARY_OP(shifted_square, {t}, {t});\n" for t in UNARY_TYPES),
        *(f"REGISTER_UNARY_OP(third, {t}, float);\n" for t in ("int", "long", "uchar")),
        *(f"REGISTER_UNARY_ALPHA_OP(scaled, {t}, {t}, {t});\n" for t in ("float", "half", "int")),
        *(f"REGISTER_BINARY_OP(product, {t}, {t});\n" for t in BINARY_TYPES),
        *(f"REGISTER_BINARY_OP(below, {t}, bool);\n" for t in ("float", "long")),
        *(f"REGISTER_BINARY_CASTOUT_OP(below, {t}, bool);\n" for t in ("float", "long")),
        *(f"REGISTER_TERNARY_OP(blend, {t}, {t});\n" for t in ("float", "half", "int")),
    ]
)


def bf16(array: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.asarray(array, dtype=np.float32)).bfloat16().float().numpy()


def rounded(array: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return bf16(array) if dtype == torch.bfloat16 else array


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


REFERENCES = {
    "shifted_square": lambda d, x: rounded(rounded(x * x, d) - x, d),
    "third": lambda d, x: x.astype(np.float32) / np.float32(3),
    "scaled": lambda d, x: x * x.dtype.type(3),
    "product": lambda d, a, b: rounded(a * b, d),
    "below": lambda d, a, b: a < b,
    "blend": lambda d, a, b, c: a * b + c,
}


@dataclass(frozen=True)
class Kernel:
    name: str
    operation: str
    variant: str  # without the unroll width
    output: torch.dtype | None  # None: given at run time
    input: torch.dtype

    @property
    def operands(self) -> int:
        return {"shifted_square": 1, "third": 1, "scaled": 1, "product": 2, "below": 2, "blend": 3}[self.operation]

    @property
    def casts(self) -> bool:
        return self.variant.endswith("_cast")


_NAME = re.compile(rf"({'|'.join(REFERENCES)})_(\w+?)((?:_(?:{'|'.join(DTYPES)}))+)$")


def parse(name: str) -> Kernel:
    operation, variant, types = _NAME.match(name).groups()
    dtypes = [DTYPES[t] for t in types.split("_")[1:]]
    if operation == "scaled":
        dtypes = dtypes[:2]  # then the type of alpha
    runtime_output = "castout" in variant and operation in ("shifted_square", "third")
    if runtime_output or (operation == "blend" and variant.endswith("_cast")):
        dtypes = [None if runtime_output else dtypes[0], dtypes[0]]
    return Kernel(name, operation, re.sub(r"ilp\d", "ilp", variant), *dtypes)


@pytest.fixture(scope="module", params=("2.13.0", "2.14.1"))
def elementwise(request):
    tree = request.getfixturevalue(f"tree_{request.param.replace('.', '_')}")
    return ShaderLibrary(SOURCE, "elementwise.metal", METAL_3_1, tree)


def values(dtype, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 3).to(dtype)
    low = 0 if dtype == torch.uint8 else -11
    return torch.randint(low, 12, shape, generator=generator).to(dtype)


def permuted(tensor):
    """The same values, not contiguous in any dimension."""
    size = tensor.shape
    base = torch.zeros(size[2] * 2, size[0], size[1] + 1, dtype=tensor.dtype)
    return base.permute(1, 2, 0)[:, : size[1], ::2].copy_(tensor)


def inner_first(numbers, element_size=1):
    return torch.tensor([n * element_size for n in reversed(numbers)], dtype=torch.int64)


def strides(tensor):
    return inner_first(tensor.stride(), tensor.element_size())


def outer(tensor):
    """What describes the dimensions beside the innermost."""
    return strides(tensor)[1:].clone()


def other_dtype(dtype):
    """What a kernel that casts is given instead, of which every value fits."""
    return torch.int16 if dtype in (torch.int32, torch.int64) else torch.float16 if dtype == torch.float32 else dtype


def run(library, kernel: Kernel) -> tuple[torch.Tensor, np.ndarray]:
    """What the kernel gives, and what numpy gives."""
    variant, dtype = kernel.variant, kernel.input
    strided = variant.startswith("strided")
    inner = variant.startswith("inner_contiguous")
    shape = SHAPE
    sources = [values(dtype, shape, seed) for seed in range(kernel.operands)]
    if kernel.casts or variant.endswith("castout") and kernel.operands == 2:
        sources[-1] = sources[-1].to(other_dtype(dtype))
    reference_inputs = [numpy_of(source.to(dtype)) for source in sources]
    broadcast, scalar = "broadcast" in variant, "scalar" in variant and kernel.operands == 2
    lhs = variant.startswith(("dense_broadcast_rhs", "dense_scalar_lhs"))
    if broadcast or scalar:
        small = 0 if lhs else 1
        sources[small] = sources[small].flatten()[: 77 if broadcast else 1].clone()
        one = numpy_of(sources[small].to(dtype))
        reference_inputs[small] = np.tile(one, NUMEL // one.size).reshape(shape)
    if strided:
        sources = [permuted(source) for source in sources]
    elif inner:
        sources = [torch.nn.functional.pad(source, (0, 3))[:, :, :11] for source in sources]
    output_dtype = kernel.output or (torch.int64 if kernel.operation == "third" else torch.float32)
    if "castout" in variant and kernel.operands == 2:
        output_dtype = torch.int32
    output = torch.zeros(shape, dtype=output_dtype)
    if strided or inner:
        output = permuted(output) if strided else torch.zeros(5, 7, 14, dtype=output_dtype)[:, :, :11]

    sizes = [source.element_size() for source in sources]
    types = [SCALAR_TYPES[source.dtype] for source in sources]
    out_type = SCALAR_TYPES[output_dtype]
    args = arguments(kernel, output, sources, sizes, types, out_type)
    threads = [NUMEL]
    if kernel.operands == 1 and strided:
        threads = [11, 35]
    elif inner:
        threads = [3, 35]
    elif "ilp" in variant or (kernel.operands == 1 and variant == "dense" and kernel.operation != "scaled"):
        threads = [97]
    casts = {i: "int32" for i, arg in enumerate(args) if isinstance(arg, list) or (isinstance(arg, int) and arg >= 0)}
    if broadcast:
        casts.pop(3)  # a long
    getattr(library, kernel.name)(*args, threads=threads, group_size=[32, 1][: len(threads)], arg_casts=casts)

    expected = REFERENCES[kernel.operation](dtype, *reference_inputs)
    if kernel.output is None or "castout" in variant:
        expected = numpy_of(torch.from_numpy(np.ascontiguousarray(expected)).to(output_dtype))
    return output, expected


def arguments(kernel, output, sources, sizes, types, out_type):
    variant, operands = kernel.variant, kernel.operands
    alpha = [torch.tensor([3], dtype=kernel.input)] if kernel.operation == "scaled" else []
    shape = inner_first(SHAPE)
    layout = [shape, strides(sources[0]), strides(output)]
    if operands == 1:
        size = output.element_size()
        if variant.startswith("inner_contiguous"):
            tail = [2, 11] if variant == "inner_contiguous" else [2, 11, size, out_type]
            return [output, *sources, shape[1:].clone(), outer(sources[0]), outer(output), tail]
        if variant == "strided":
            return [output, *sources, *layout, 3, *alpha]
        if variant == "strided_castout":
            return [output, *sources, *layout, [3, out_type]]
        if variant == "dense_castout":
            return [output, *sources, [size, out_type]]
        if variant == "dense_castout_ilp":
            return [output, *sources, [size, out_type, NUMEL, 0]]
        if kernel.operation == "scaled":
            return [output, *sources, *alpha, *([NUMEL] if variant == "dense_ilp" else [])]
        return [output, *sources, *([NUMEL] if variant == "dense" else [])]
    if variant.startswith("strided"):
        places = [shape, strides(output), *map(strides, sources)]
        if operands == 3:
            return [output, *sources, *places, 3, *([[*types, 0]] if kernel.casts else [])]
        tail = {"strided": [3, 0, 0, 0], "strided_cast": [3, *types, 0], "strided_castout": [3, *types, out_type]}
        return [output, *sources, *places, tail[variant]]
    if variant == "inner_contiguous":
        return [output, *sources, shape[1:].clone(), outer(output), *map(outer, sources), [2, 11]]
    args = [output, *sources]
    if "broadcast" in variant:
        args.append(77)
    if variant == "dense_ilp":
        args.append(NUMEL)
    if kernel.casts:
        args.extend([[*sizes, 0], [*types, 0]] if operands == 3 else [[*sizes, *types]])
    return args


def test_elementwise(elementwise):
    names = dir(elementwise)
    assert len(names) > 120
    for name in names:
        output, expected = run(elementwise, parse(name))
        np.testing.assert_array_equal(numpy_of(output), expected, err_msg=name)


def test_complex():
    """Complex numbers are vectors of two; their product by hand, since numpy may fuse it."""
    library = metal_host.compile_shader("""
        #include <c10/metal/indexing.h>
        using namespace metal;
        struct complex_square_functor {
          template <typename T>
          inline T operator()(const T x) {
            return c10::metal::mul(x, x);
          }
        };
        REGISTER_UNARY_OP(complex_square, float2, float2);
    """)
    x = torch.randn(100, dtype=torch.complex64)
    out = torch.zeros_like(x)
    library.complex_square_dense_scalar_float2_float2(out, x)
    real, imag = x.real.numpy(), x.imag.numpy()
    np.testing.assert_array_equal(out.real.numpy(), real * real - imag * imag)
    np.testing.assert_array_equal(out.imag.numpy(), real * imag + imag * real)


# ---- Reductions ----------------------------------------------------------------------------

REDUCTIONS = """
#include <c10/metal/reduction_utils.h>
#include <metal_stdlib>
using namespace metal;
using namespace c10::metal;

#define REGISTER_REDUCTION(NAME, T, R)                           \\
  kernel void tg_##NAME##_##T(                                   \\
      device R* out [[buffer(0)]],                               \\
      constant T* in [[buffer(1)]],                              \\
      uint i [[thread_position_in_grid]],                        \\
      uint group [[threadgroup_position_in_grid]],               \\
      uint t [[thread_position_in_threadgroup]],                 \\
      uint n [[threads_per_threadgroup]]) {                      \\
    threadgroup R shared[simdgroup_size];                        \\
    const R result = threadgroup_##NAME(shared, in[i], t, n);    \\
    out[group * n + t] = result;                                 \\
  }

REGISTER_REDUCTION(sum, float, float)
REGISTER_REDUCTION(sum, half, float)
REGISTER_REDUCTION(sum, bfloat, float)
REGISTER_REDUCTION(sum, int, int)
REGISTER_REDUCTION(sum, long, long)
REGISTER_REDUCTION(prod, float, float)
REGISTER_REDUCTION(prod, int, int)
REGISTER_REDUCTION(max, float, float)
REGISTER_REDUCTION(max, int, int)
REGISTER_REDUCTION(max, long, long)
REGISTER_REDUCTION(min, float, float)
REGISTER_REDUCTION(min, int, int)
REGISTER_REDUCTION(min, long, long)

#define REGISTER_ARG_REDUCTION(NAME, T)                                            \\
  kernel void tg_##NAME##_##T(                                                     \\
      device uint* out [[buffer(0)]],                                              \\
      constant T* in [[buffer(1)]],                                                \\
      uint i [[thread_position_in_grid]],                                          \\
      uint group [[threadgroup_position_in_grid]],                                 \\
      uint t [[thread_position_in_threadgroup]],                                   \\
      uint n [[threads_per_threadgroup]]) {                                        \\
    threadgroup T values[simdgroup_size];                                          \\
    threadgroup uint indices[simdgroup_size];                                      \\
    out[group * n + t] = threadgroup_##NAME(values, indices, T(in[i]), t, t, n);    \\
  }

REGISTER_ARG_REDUCTION(argmax, float)
REGISTER_ARG_REDUCTION(argmax, int)
REGISTER_ARG_REDUCTION(argmin, float)
REGISTER_ARG_REDUCTION(argmin, int)
"""
REDUCE = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}


@pytest.fixture(scope="module")
def reductions(tree_2_14_1):
    return ShaderLibrary(REDUCTIONS, "reductions.metal", METAL_3_1, tree_2_14_1)


@pytest.mark.parametrize("schedule", ("forward", "reverse", "simdgroup", "simdgroup-reverse"))
@pytest.mark.parametrize("group", (32, 96, 256, 1024))
def test_reductions(reductions, group, schedule):
    """Of integers, also as floats: exact in any order."""
    for name in dir(reductions):
        if name == "tg_sum_long" and group not in (32, 1024):
            continue  # see below
        operation, dtype = name.split("_")[1], DTYPES[name.split("_")[2]]
        x = values(torch.int32, (3, group), group).to(dtype)
        if operation == "prod":  # powers of two that neither overflow nor vanish
            x = torch.tensor([1, 2, -1, 1]).repeat(group // 4)[None].repeat(3, 1)
            x[:, 40:] = 1
            x = x.to(dtype)
        elif operation in ("argmax", "argmin"):
            x = torch.stack([torch.randperm(group) for _ in range(3)]).to(dtype)
        accumulate = torch.float32 if dtype.is_floating_point else dtype
        out = torch.zeros(3, group, dtype=torch.int32 if operation.startswith("arg") else accumulate)
        with metal_host.options(schedule=schedule):
            getattr(reductions, name)(out, x, threads=3 * group, group_size=group)
        wide = numpy_of(x).astype(np.float64 if dtype.is_floating_point else np.int64)
        expected = REDUCE[operation](wide, axis=1)
        if not operation.startswith("arg"):
            assert (out == out[:, :1]).all(), name  # every thread has it
        if operation.startswith("arg") and group > 32:
            out = out[:, :1]
        np.testing.assert_array_equal(out[:, 0].numpy().astype(wide.dtype), expected, err_msg=f"{name} {group}")


def test_reductions_have_no_races(reductions):
    for name in dir(reductions):
        x = values(torch.int32, (96,), 0).to(DTYPES[name.split("_")[2]])
        out = torch.zeros(96, dtype=torch.int64)
        with metal_host.options(sanitize=True, schedule="simdgroup-reverse"):
            if name not in ("tg_sum_long", "tg_prod_int"):  # sums of garbage, and products, that overflow
                getattr(reductions, name)(out, x, threads=96, group_size=96)


def test_what_an_inactive_lane_gives_shows(reductions, tree_2_13_0):
    """c10/metal's 64-bit sum reads lanes that are not there: 0 in practice, but undefined, and so not 0 here. Its
    minimum did so too in 2.13.0."""
    x, out = torch.ones(96, dtype=torch.int64), torch.zeros(96, dtype=torch.int64)
    reductions.tg_sum_long(out, x, threads=96, group_size=96)
    assert out[0] != 96
    reductions.tg_min_long(out, x, threads=96, group_size=96)
    assert out[0] == 1
    before = ShaderLibrary(REDUCTIONS, "reductions.metal", METAL_3_1, tree_2_13_0)
    before.tg_min_long(out, x, threads=96, group_size=96)
    assert out[0] != 1


def test_reductions_propagate_nan(reductions):
    x = torch.randn(256)
    x[77] = torch.nan
    for name in ("max", "min"):
        out = torch.zeros(256)
        getattr(reductions, f"tg_{name}_float")(out, x, threads=256, group_size=256)
        assert out.isnan().all()


# ---- Atomics, errors, random numbers, special functions ------------------------------------


@pytest.mark.parametrize("host_threads", (1, 4))
@pytest.mark.parametrize("name", ("float", "int", "half", "bfloat", "short", "uchar", "long"))
def test_atomic_add(name, host_threads):
    library = metal_host.compile_shader(f"""
        #include <c10/metal/atomic.h>
        #include <metal_stdlib>
        using namespace metal;
        kernel void add(
            device c10::metal::AtomicType_t<{name}>* out [[buffer(0)]],
            constant {name}* in [[buffer(1)]],
            constant int* where [[buffer(2)]],
            uint i [[thread_position_in_grid]]) {{
          c10::metal::AtomicType<{name}>::atomic_add(out, where[i], in[i]);
        }}
    """)
    dtype = DTYPES[name]
    x = torch.randint(0, 4, (4000,)).to(dtype)  # sums that bfloat16 and uint8 still hold
    where = torch.randint(0, 64, (4000,), dtype=torch.int32)
    out = torch.zeros(64, dtype=dtype)
    with metal_host.options(host_threads=host_threads):
        library.add(out, x, where, threads=4000, group_size=100)
    expected = np.bincount(where.numpy(), weights=numpy_of(x).astype(np.float64), minlength=64)
    if dtype == torch.uint8:
        expected %= 256
    elif dtype == torch.bfloat16:  # above 256 not every integer
        assert np.abs(numpy_of(out) - expected).max() <= 8
        return
    np.testing.assert_array_equal(numpy_of(out).astype(np.float64), expected)


def test_report_error():
    library = metal_host.compile_shader("""
        #include <c10/metal/error.h>
        #include <metal_stdlib>
        using namespace metal;
        kernel void index_set(
            device float* self,
            constant float* values,
            constant long* indices,
            constant uint& numel,
            device c10::metal::ErrorMessages* errors,
            uint i [[thread_position_in_grid]]) {
          const long index = indices[i];
          if (index < 0 || index >= long(numel)) {
            TORCH_REPORT_ERROR(errors, "index ", index, " out of bounds for size ", long(numel));
            return;
          }
          self[index] = values[i];
        }
    """)
    out = torch.zeros(4)
    indices = torch.tensor([3, -12, 0, 99])
    library.index_set(out, torch.arange(1.0, 5.0), indices, 4, threads=4, arg_casts={3: "int32"}, error_buf_idx=4)
    assert out.tolist() == [3.0, 0.0, 0.0, 1.0]
    with pytest.raises(torch.AcceleratorError, match="index -12 out of bounds for size 4") as raised:
        metal_host.synchronize()
    assert "index_set at program_source:14" in str(raised.value)
    metal_host.synchronize()


def test_philox():
    library = metal_host.compile_shader("""
        #include <c10/metal/random.h>
        using namespace metal;
        kernel void draw(device uint4* out, constant long& seed, uint i [[thread_position_in_grid]]) {
          out[i] = c10::metal::philox4::rand(seed, i);
        }
    """)
    out = torch.zeros(50, 4, dtype=torch.int32)
    library.draw(out, 1234567890123, threads=50)

    def philox(seed, index):
        counter = [0, 0, index >> 32, index & 0xFFFFFFFF]
        key = [seed >> 32, seed & 0xFFFFFFFF]
        for _ in range(9):
            first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
            counter = [
                (second >> 32) ^ counter[1] ^ key[0], second & 0xFFFFFFFF,
                (first >> 32) ^ counter[3] ^ key[1], first & 0xFFFFFFFF,
            ]  # fmt: skip
            key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return counter

    expected = np.array([philox(1234567890123, i) for i in range(50)], dtype=np.uint32)
    np.testing.assert_array_equal(out.numpy().view(np.uint32), expected)


SPECIAL = {
    "c10::metal::erf": torch.special.erf,
    "c10::metal::erfinv": torch.special.erfinv,
    "c10::metal::digamma": torch.special.digamma,
    "c10::metal::log_gamma": torch.special.gammaln,
    "c10::metal::i0": torch.special.i0,
    "c10::metal::i1e": torch.special.i1e,
    "c10::metal::sinc": torch.special.sinc,
}


@pytest.mark.parametrize("function", SPECIAL)
def test_special_math(function):
    """To rounding only: a GPU's exp and log are not these."""
    library = metal_host.compile_shader(f"""
        #include <c10/metal/special_math.h>
        using namespace metal;
        kernel void f(device float* out, constant float* in, uint i [[thread_position_in_grid]]) {{
          out[i] = {function}(in[i]);
        }}
    """)
    x = torch.linspace(0.01, 0.99, 200)
    out = torch.zeros(200)
    library.f(out, x)
    torch.testing.assert_close(out, SPECIAL[function](x), rtol=1e-4, atol=1e-5)


def test_the_installed_headers_are_the_default():
    assert (compiler.torch_include() / "c10" / "metal" / "indexing.h").is_file()
