"""Operations on C++, CUDA, Metal and Objective-C++ files, and their outline."""

from __future__ import annotations

import pytest
from edit_helpers import edited, refused
from overlay.edits import cpp_file
from overlay.edits.source import Source

TARGET = "aten/src/ATen/native/mps/operations/Things.mm"
TEXT = r"""// Copyright { (
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#import <Metal/Metal.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/add.h>
#endif

namespace at::native {
REGISTER_THING(x)

enum class Backend : int8_t {
  Cpu, // the first {
  Cuda = 2,
  Mps
};

static const char* source = R"METAL(
  kernel void f() { ";
)METAL";

template <typename T, int N = 1, typename = std::enable_if_t<(N > 0)>>
static inline T twice(T x) noexcept {
  return x * 2; // }
}

#if X
static void branches(int a) {
  if (a) {
#else
static void branches(long a) {
  {
#endif
  }
}

void Thing::run(const Tensor& self) const {
  @autoreleasepool {
    [encoder setBuffer:buffer(self) offset:1'000 atIndex:'}'];
    dispatch_sync(queue, ^() { work(@"{"); });
  }
}

struct TORCH_API Box final : Base<int> {
 public:
  Box(int size) : Base{size}, size_(size) {}
  bool operator==(const Box& other) const { return true; }
  int size_{0};
};

TORCH_IMPL_FUNC(add_out_mps)
(const Tensor& self, const Tensor& output) {
  auto f = [&](int x) { return x; };
}

REGISTER_OTHER(y)
Tensor& fill(Tensor& self) {
  return self;
}

Tensor& fill(Tensor& self, int value) {
  return self;
}
} // namespace at::native
"""


def replaced(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def test_outline():
    source = Source(TARGET, TEXT.encode())
    functions = [item.names[0] for item in cpp_file.definitions(source) if item.kind == "function"]
    assert functions == [
        "at::native::twice", "at::native::branches", "at::native::Thing::run",
        "at::native::Box::Box", "at::native::Box::operator==", "at::native::TORCH_IMPL_FUNC",
        "at::native::REGISTER_OTHER", "at::native::fill",
    ]
    assert [item.names for item in cpp_file.definitions(source) if item.kind in ("class", "enum")] == [
        ("at::native::Backend",), ("at::native::Box",)
    ]


@pytest.mark.parametrize("text", ["void f() {", "void f() }", "int x[(1];"])
def test_brackets_that_do_not_match_are_not_valid(text):
    with pytest.raises(ValueError, match="line 1: a bracket is not closed|closes nothing"):
        cpp_file.definitions(Source(TARGET, text.encode()))


def test_insert_after_includes():
    result = edited(TARGET, TEXT, "insert_after_includes", text="#include <a.h>\n#include <b.h>")
    assert result == replaced("#endif\n\nnamespace", "#endif\n#include <a.h>\n#include <b.h>\n\nnamespace")


def test_insert_after_includes_stays_out_of_a_block_that_holds_code():
    text = "#pragma once\n#include <a.h>\n#if X\n#include <b.h>\nint b;\n#endif\n"
    result = edited(TARGET, text, "insert_after_includes", text="#include <c.h>\n")
    assert result == text.replace("<a.h>\n", "<a.h>\n#include <c.h>\n")


def test_insert_after_includes_refusals():
    def rule(text, source=TEXT):
        return refused(TARGET, source, "insert_after_includes", text=text).rule

    assert "opens with no #include" in rule("x", "int x;\n#include <a.h>\n")
    assert "already upstream: `#import <Metal/Metal.h>`" in rule("#import <Metal/Metal.h>")
    assert "not valid: line" in rule("namespace {")


@pytest.mark.parametrize(("function", "end"), [
    ("twice", "  return x * 2; // }\n}\n"),
    ("native::twice", "  return x * 2; // }\n}\n"),
    ("Thing::run", '(@"{"); });\n  }\n}\n'),
    ("TORCH_IMPL_FUNC(add_out_mps)", "{ return x; };\n}\n"),
    ("fill(Tensor& self, int value)", "int value) {\n  return self;\n}\n"),
    ("operator==", "const { return true; }\n"),
])
def test_insert_after_function(function, end):
    result = edited(TARGET, TEXT, "insert_after_function", function=function, text="int more;\n")
    assert result == replaced(end, f"{end}\nint more;\n")


def test_insert_after_function_refusals():
    def rule(function):
        return refused(TARGET, TEXT, "insert_after_function", function=function, text="int more;").rule

    assert "no definition of `thrice`" in rule("thrice")
    assert "fits 2 places (lines 59, 64)" in rule("fill")
    assert "no definition of `wice`" in rule("wice")


def test_remove_definition():
    result = edited(TARGET, TEXT, "remove_definition", definition="TORCH_IMPL_FUNC(add_out_mps)")
    assert result == replaced(
        "TORCH_IMPL_FUNC(add_out_mps)\n(const Tensor& self, const Tensor& output) {\n"
        "  auto f = [&](int x) { return x; };\n}\n\n", "")
    result = edited(TARGET, TEXT, "remove_definition", definition="twice")
    start, end = TEXT.index("template <"), TEXT.index("#if X")
    assert result == TEXT[:start] + TEXT[end:]


def test_remove_definition_refusals():
    def rule(definition):
        return refused(TARGET, TEXT, "remove_definition", definition=definition).rule

    assert "no definition of `add_out_mps`" in rule("add_out_mps")
    assert "`REGISTER_OTHER(y)` before the definition may be a statement of its own" in rule("fill(Tensor& self)")
    assert "shares its lines" in refused(TARGET, "int x; void f() {\n}\n", "remove_definition", definition="f").rule


def test_add_enumerator():
    result = edited(TARGET, TEXT, "add_enumerator", enum="Backend", enumerator="Xla = 3", after="Cpu")
    assert result == replaced("first {\n", "first {\n  Xla = 3,\n")
    result = edited(TARGET, TEXT, "add_enumerator", enum="Backend", enumerator="Xla", after="Mps")
    assert result == replaced("  Mps\n", "  Mps,\n  Xla\n")
    result = edited(TARGET, "enum E { A, B };\n", "add_enumerator", enum="E", enumerator="C", after="A")
    assert result == "enum E { A, C, B };\n"


def test_add_enumerator_refusals():
    def rule(enum="Backend", enumerator="Xla", after="Cpu"):
        return refused(TARGET, TEXT, "add_enumerator", enum=enum, enumerator=enumerator, after=after).rule

    assert "no enum `Other`" in rule(enum="Other")
    assert "no enumerator `Hip`" in rule(after="Hip")
    assert "already upstream: the enumerator `Cuda`" in rule(enumerator="Cuda = 3")


def test_real_files(tree_2_6_0):
    """Real files have an outline, also those that tree-sitter makes nothing of, and definitions are found in it."""
    native = tree_2_6_0 / "aten/src/ATen/native"
    for path in [*native.glob("mps/operations/*.mm"), *native.glob("Con*.cpp"), *native.glob("cuda/Unary*.cu")]:
        assert cpp_file.definitions(Source(path.name, path.read_bytes())), path
    for name, definition in {
        "mps/operations/UnaryOps.mm": "TORCH_IMPL_FUNC(cumsum_out_mps)",
        "mps/operations/LossOps.mm": "mse_loss_backward_out_mps",
        "Convolution.cpp": "conv1d_symint",
    }.items():
        text = (native / name).read_text()
        assert len(edited(name, text, "remove_definition", definition=definition)) < len(text)
