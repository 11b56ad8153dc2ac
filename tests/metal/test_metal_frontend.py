"""The front end beside its corpus: what holds across files, what good sources look like, how errors are told."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from metal_host import checks, compiler, frontend, upstream_kernels
from metal_host.__main__ import main
from metal_host.compiler import LEVELS, METAL_3_1
from metal_host.errors import MetalErrors
from metal_host.tokens import tokenize, untokenize
from overlay.errors import OverlayError
from overlay.paths import REPO

KERNEL = "template <typename T>\nkernel void f(device T* out) {\n  out[0] = T(1);\n}\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusals(*paths: Path) -> list[str]:
    return [str(error) for error in checks.check_files(paths)]


# ---- Across files --------------------------------------------------------------------------


def test_a_host_name_in_two_files(tmp_path):
    instantiation = 'template [[host_name("f_float")]] kernel void f<float>(device float* out);\n'
    first = write(tmp_path, "First.metal", KERNEL + instantiation)
    second = write(tmp_path, "Second.metal", "\n" + KERNEL + instantiation)
    assert refusals(first) == refusals(second) == []
    (error,) = refusals(first, second)
    assert error == (
        f'{second}:6: host_name "f_float" is used in another file too, and all are linked into one library '
        f"(first at {first}:5)"
    )


def test_a_name_of_upstreams(tmp_path):
    """Whatever the type: the functor's name is taken."""
    path = write(
        tmp_path,
        "A.metal",
        KERNEL + 'template [[host_name("sin_strided_bfloat_uchar")]] kernel void f<half>(device half* out);\n',
    )
    (error,) = refusals(path)
    assert "PyTorch ships kernels named sin" in error


def test_stems():
    for name, stem in {
        "exp_dense_float_float": "exp",
        "add_alpha_strided_cast_half_half_half": "add_alpha",
        "index_select_i32": "index_select_i32",
        "cumsum_innermost_uchar": "cumsum_innermost",
        "product_dense_ilp4_int_int": "product",
        "causal_conv1d_forward_bfloat": "causal_conv1d_forward",
    }.items():
        assert upstream_kernels.stem(name) == stem
    assert len(upstream_kernels.upstream_stems()) > 500
    assert {"exp", "sin", "cumsum_innermost"} <= upstream_kernels.upstream_stems()


def test_kernel_names_of_a_metallib():
    """The format, made by hand: a header, then a count and tagged entries."""

    def entry(name: bytes) -> bytes:
        body = b"NAME" + struct.pack("<H", len(name) + 1) + name + b"\0" + b"TYPE" + struct.pack("<H", 1) + b"\2ENDT"
        return struct.pack("<I", len(body) + 4) + body

    functions = struct.pack("<I", 2) + entry(b"first_float") + entry(b"second")
    header = b"MTLB" + bytes(12) + struct.pack("<QQ", 88 + len(functions), 88)
    data = b"not MTLB at all" + bytes(200) + header.ljust(88, b"\0") + functions
    assert list(upstream_kernels.kernel_names(data)) == ["first_float", "second"]


# ---- Shared structs ------------------------------------------------------------------------


def test_a_good_shared_struct(tmp_path):
    folder = tmp_path / "native" / "mps" / "kernels"
    folder.mkdir(parents=True)
    write(
        folder,
        "Good.h",
        "#pragma once\n#include <c10/metal/common.h>\n\nstruct Params {\n  unsigned sizes[3];\n"
        "  ::c10::metal::array<int, 5> strides;\n  bool causal, reversed;\n};\n",
    )
    source = (
        '#include "Good.h"\n#include <metal_stdlib>\nusing namespace metal;\n'
        "kernel void f(device float* out, constant Params& p) { out[0] = p.strides[1] + p.sizes[2] + p.causal; }\n"
    )
    assert refusals(write(folder, "Good.metal", source)) == []


def test_a_header_that_the_host_cannot_take(tmp_path):
    folder = tmp_path / "native" / "mps" / "kernels"
    folder.mkdir(parents=True)
    write(folder, "Bad.h", "#pragma once\nstruct Params {\n  unsigned size;\n  half scale;\n};\n")
    path = write(
        folder,
        "Bad.metal",
        '#include "Bad.h"\nkernel void f(device float* out, constant Params& p) { out[0] = p.size; }\n',
    )
    (error,) = refusals(path)
    assert "Bad.h: it does not compile for the host" in error and "half" in error


# ---- Good sources --------------------------------------------------------------------------

GOOD = {
    "attributes": "[[kernel]] void f(device float* out, uint i [[thread_position_in_grid]]) { out[i] = 1; }",
    "namespace": "namespace mine { kernel void f(device float* out) { out[0] = 1; } }",
    "literals": "kernel void f(device float* out) { out[0] = 1e3 + 0x1p3 + 1.5h + 2.bf + 1'000u + .5; }",
    "text": 'constant const char* name() { return "a" "b"; }\nkernel void f(device char* out) { out[0] = name()[1]; }',
    "constant table": "constant constexpr float table[] = {1, 2, 3};\n"
    "kernel void f(device float* out, uint i [[thread_position_in_grid]]) { out[i] = table[i % 3]; }",
    "overloads by address space": "inline float at(device const float* p) { return *p; }\n"
    "inline float at(constant float* p) { return *p; }\ninline float at(threadgroup float* p) { return *p; }\n"
    "kernel void f(device float* out, constant float* in) { out[0] = at(out) + at(in); }",
    "function pointers": "inline float twice(float x) { return 2 * x; }\n"
    "inline float apply(float (*op)(float), float x) { return op(x); }\n"
    "kernel void f(device float* out) { out[0] = apply(twice, out[0]); }",
    "union": "kernel void f(device float* out) { union { uint i; half h[2]; } u; u.i = 0; u.h[1] = 1; out[0] = u.i; }",
    "auto references": "kernel void f(device float4* out) {\n"
    "  device auto& v = out[0];\n  v.x = 1;\n  auto w = v;\n  out[1] = w;\n}",
    "switch": "kernel void f(device float* out, constant uint& n) {\n"
    "  switch (n) {\n    case 0:\n      out[0] = 1;\n      break;\n    default:\n      out[0] = 2;\n  }\n}",
    "array parameters": "inline long sum(constant long sizes[3], thread int at[2]) { return sizes[2] + at[1]; }\n"
    "kernel void f(device float* out, constant long* sizes) {\n  int at[2] = {0, 1};\n  out[0] = sum(sizes, at);\n}",
    "packed vectors": "kernel void f(device float* out, constant packed_uint3* in) {\n"
    "  const ulong3 wide = ulong3(in[1]);\n  const uint3 sum = in[0] + in[1];\n  out[0] = wide.z + sum.x;\n}",
    "literals in an assertion": 'static_assert(1.5h + 0.5h == 2.0h && 1e3 == 1000, "text");\n'
    "kernel void f(device float* out) { out[0] = 1; }",
    "constants": "constant constexpr float2 pair = float2(1, 2);\nconstant bfloat limit = bfloat(3);\n"
    "struct Limits { static constexpr constant half low = -1; };\n"
    "kernel void f(device float* out) { out[0] = pair.y + limit + Limits::low; }",
    "instantiation by decltype": "template <typename T> kernel void g(device T* out) { out[0] = T(1); }\n"
    'template [[host_name("g_half")]] [[kernel]] decltype(g<half>) g<half>;',
    "shift of a template": "template <int n> struct S { float v[n >> 1]; };\n"
    "kernel void f(device float* out) { S<8> s; s.v[3] = 1; out[0] = s.v[3]; }",
    "threadgroup of a template": "template <typename T, uint n> kernel void f(device T* out) {\n"
    "  threadgroup T a[n], b[n][2];\n  a[0] = b[0][1] = 1;\n  out[0] = a[0];\n}\n"
    'template [[host_name("f")]] kernel void f<float, 4>(device float* out);',
    "methods": """
struct Row {
  device float* p;
  uint n;
  float sum() const {
    float result = 0;
    for (uint i = 0; i < n; ++i) {
      result += p[i];
    }
    return result;
  }
};
kernel void f(device float* out) {
  Row row{out, 3};
  out[0] = row.sum();
}
""",
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("level", LEVELS)
def test_good(name, level):
    source = f"#include <metal_stdlib>\nusing namespace metal;\n{GOOD[name]}\n"
    assert frontend.type_check(source, "good.metal", LEVELS[level]).entries


def test_lines_stay_where_they_are():
    """Also behind macros of several lines, threadgroup variables and instantiations."""
    source = (
        "#include <metal_stdlib>\n#define BOTH(a, b) \\\n  a            \\\n  b\n"
        + KERNEL
        + 'template [[host_name("f")]] kernel void f<float>(device float* out);\n'
        + "kernel void g(device float* out) {\n  threadgroup float row[2];\n  BOTH(row[0] = 1;,\n       row[1] = 2;)\n"
        + "  out[0] = nothing;\n}\n"
    )
    with pytest.raises(MetalErrors) as raised:
        frontend.type_check(source, "lines.metal", METAL_3_1)
    assert [error.place for error in raised.value.errors] == ["lines.metal:14"]


def test_all_errors_are_told():
    source = "kernel void f(device float* out) {\n  out[0] = a;\n  out[1] = b;\n}\n"
    with pytest.raises(MetalErrors) as raised:
        frontend.type_check(source, "two.metal", METAL_3_1)
    assert [error.place for error in raised.value.errors] == ["two.metal:2", "two.metal:3"]
    assert raised.value.render().count("error: two.metal:") == 2


def test_an_error_in_a_header_is_told_where_it_was_asked_for():
    """The library's own lines help nobody."""
    source = (
        "#include <metal_stdlib>\nusing namespace metal;\nkernel void f(device float2* out) {\n  out[0] = ~out[1];\n}\n"
    )
    with pytest.raises(MetalErrors, match=r"^asked.metal:4: "):
        frontend.type_check(source, "asked.metal", METAL_3_1)


def test_tokens_give_the_text_back():
    text = '# 1 "a.metal"\nfloat f(int x) {\n  return x >> 2 >= 1.5e-3f ? "a\\"b" : \'c\';\n}\n'
    assert untokenize(tokenize(text, "b")).rstrip() == text.rstrip()
    assert {token.place for token in tokenize(text, "b")} == {f"a.metal:{n}" for n in (1, 2, 3)}


# ---- Commands ------------------------------------------------------------------------------


def test_command(tmp_path, capsys):
    good = write(tmp_path, "Good.metal", "kernel void f(device float* out) { out[0] = 1; }\n")
    bad = write(tmp_path, "Bad.metal", "kernel void g(device float* out) {\n  out[0] = x;\n}\n")
    assert main([str(good)]) == 0
    assert capsys.readouterr().out == "metal: OK\n"
    assert main([str(good), str(bad)]) == 1
    assert f"error: {bad}:2\n  rule: use of undeclared identifier 'x'\n" in capsys.readouterr().err
    assert main([str(tmp_path / "Nothing.metal")]) == 1
    assert "there is no such file" in capsys.readouterr().err
    assert main([]) == 2


def test_without_a_compiler(monkeypatch, tmp_path):
    compiler.clang.cache_clear()
    monkeypatch.delenv("METAL_HOST_CLANG", raising=False)
    monkeypatch.setattr(compiler.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    with pytest.raises(OverlayError, match="ziglang: it is not installed"):
        compiler.clang()
    monkeypatch.undo()
    compiler.clang.cache_clear()


def test_headers_may_be_touched():
    """By git, for one: their content counts."""
    source = "kernel void f(device float* out) { out[0] = 1; }\n"
    frontend.type_check(source, "touched.metal", METAL_3_1)
    for path in compiler.LIBRARY.iterdir():
        path.touch()
    frontend.type_check(source, "touched.metal", METAL_3_1)


def test_what_passed_is_not_compiled_again(tmp_path, monkeypatch):
    path = write(tmp_path, "A.metal", "kernel void once(device float* out) { out[0] = 1; }\n")
    assert refusals(path) == []
    monkeypatch.setattr(compiler, "check", lambda *arguments: pytest.fail("compiled again"))
    assert refusals(path) == []


# ---- docs/metal.md -------------------------------------------------------------------------


def test_the_examples_of_the_page():
    page = (REPO / "docs" / "metal.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    scope: dict = {}
    for example in examples:
        exec(example, scope)


def test_the_page_shows_an_error_as_it_is(tmp_path, capsys):
    page = (REPO / "docs" / "metal.md").read_text()
    shown = re.search(r"^error: MyKernel.metal:7\n(.*?)^metal: 1 errors$", page, re.MULTILINE | re.DOTALL)[1]
    source = "kernel void f(device float* out, constant float* in) {\n  device float* p = in;\n  out[0] = p[0];\n}\n"
    source = "\n" * 5 + source
    path = write(tmp_path, "MyKernel.metal", source)
    assert main([str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == "metal: 1 errors\n"
    assert output.err == f"error: {path}:7\n{shown}"
