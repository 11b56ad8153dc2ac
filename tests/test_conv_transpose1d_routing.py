"""How convolution's CUDA kernels are declared and registered, in both modes, and the rule by which "auto" decides."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from overlay.edits import apply_edits
from overlay.model import load_patches
from overlay.paths import REPO
from overlay.wheel_mode.build import CUDA_REGISTRATIONS
from overlay.wheel_mode.entries import NATIVE_FUNCTIONS
from overlay.wheel_mode.target import from_python
from overlay.wheel_mode.toolchain import find_toolchain

sys.path.insert(0, str(REPO / "benchmarks"))
import conv_transpose1d_rule as rule  # noqa: E402

NATIVE = REPO / "aten_overlay/aten/src/ATen/native"


# ---- Source mode ----------------------------------------------------------------------------


def test_a_build_declares_them(tree_2_13_0, tmp_path):
    """By the installed torchgen, on the tree's native_functions.yaml as the edits leave it."""
    edits = [edit for edit in load_patches() if edit.target == NATIVE_FUNCTIONS and "conv_transpose1d" in edit.id]
    text, outcomes = apply_edits(NATIVE_FUNCTIONS, (tree_2_13_0 / NATIVE_FUNCTIONS).read_bytes(), edits)
    assert len(outcomes) == 2 and not any(outcome.error for outcome in outcomes)
    (tmp_path / "native_functions.yaml").write_bytes(text)
    code = f"""
from pathlib import Path
from torchgen.dest import RegisterDispatchKey, compute_native_function_declaration
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey
from torchgen.selective_build.selector import SelectiveBuilder
from torchgen.utils import Target
tags = Path({str(tree_2_13_0)!r}) / "aten/src/ATen/native/tags.yaml"
parsed = parse_native_yaml({str(tmp_path / "native_functions.yaml")!r}, str(tags))
cuda, any_device = (parsed.backend_indices[key] for key in (DispatchKey.CUDA, DispatchKey.CompositeExplicitAutograd))
for name in ("convolution", "convolution_backward"):
    (function,) = (f for f in parsed.native_functions if str(f.func.name) == name)
    assert cuda.get_kernel(function).kernel == name + "_cuda"
    assert any_device.get_kernel(function).kernel == name
    (declaration,) = compute_native_function_declaration(function, cuda)
    assert f" {{name}}_cuda(const at::Tensor & " in declaration, declaration
    generate = RegisterDispatchKey(
        cuda, Target.ANONYMOUS_DEFINITION, SelectiveBuilder.get_nop_selector(), rocm=False, symint=True,
        class_method_name=None, skip_dispatcher_op_registration=False)
    (wrapper,) = generate(function)
    assert f"at::native::{{name}}_cuda(" in wrapper and "DeviceGuard device_guard" in wrapper
    # Upstream's kernel for any device has no generated check, its CUDA kernel of the backward pass has.
    assert ("check_and_update_common_device" in wrapper) == (name == "convolution_backward"), wrapper
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


CODEGEN_CMAKE = """\
  file(GLOB_RECURSE all_python "${CMAKE_CURRENT_LIST_DIR}/../torchgen/*.py")
"""
PROJECT = """\
cmake_minimum_required(VERSION 3.18)
project(build NONE)
macro(torch_cuda_get_nvcc_gencode_flag variable)
  set(${variable} ${FLAGS})
endmacro()
include(cmake/Codegen.cmake)
foreach(source ConvTranspose1d ConvTranspose1dGradWeight Convolution)
  get_source_file_property(flags "${CMAKE_SOURCE_DIR}/aten/src/ATen/native/cuda/${source}.cu" COMPILE_FLAGS)
  message(STATUS "${source}: ${flags}")
endforeach()
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
@pytest.mark.parametrize("targets, added", [(("80", "90"), True), (("80",), False), (("90", "90a"), False)])
def test_a_build_compiles_the_kernels_for_sm_90a(tmp_path, targets, added):
    edits = [edit for edit in load_patches() if edit.target == "cmake/Codegen.cmake"]
    text, outcomes = apply_edits("cmake/Codegen.cmake", CODEGEN_CMAKE.encode(), edits)
    assert len(outcomes) == 1 and not outcomes[0].error
    sources = tmp_path / "aten/src/ATen/native/cuda"
    sources.mkdir(parents=True)
    (tmp_path / "cmake").mkdir()
    for name in ("ConvTranspose1d.cu", "ConvTranspose1dGradWeight.cu", "Convolution.cu"):
        (sources / name).touch()
    (tmp_path / "cmake/Codegen.cmake").write_bytes(text)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    flags = ";".join(f"-gencode;arch=compute_{target},code=sm_{target}" for target in targets)
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), "-DUSE_CUDA=ON", f"-DFLAGS={flags}"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    ours = "-gencode arch=compute_90a,code=sm_90a" if added else "NOTFOUND"
    for source in ("ConvTranspose1d", "ConvTranspose1dGradWeight"):
        assert f"-- {source}: {ours}\n" in run.stdout
    assert "-- Convolution: NOTFOUND\n" in run.stdout


# ---- Wheel mode -----------------------------------------------------------------------------

STAND_IN = """\
// Kernels that say that they ran, and compute what PyTorch's do.
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <torch/library.h>

namespace at::native {

static int64_t ran = 0;

Tensor convolution_cuda(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  ++ran;
  return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_cuda(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, OptionalIntArrayRef bias_sizes,
    IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> output_mask) {
  ++ran;
  return convolution_backward(
      grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
      output_mask);
}

} // namespace at::native

TORCH_LIBRARY(stand_in, m) {
  m.def("ran() -> int", [] { return at::native::ran; });
}
"""


def build_library(folder: Path, *sources: Path, first: Path | None = None) -> Path:
    """A library of some sources for the installed torch; headers in `first` go before the overlay's."""
    target = from_python(sys.executable)
    toolchain = find_toolchain(target)
    library = folder / "library.so"
    own = [f"-I{path}" for path in (first, REPO / "aten_overlay/aten/src") if path]
    theirs = [f"-isystem{target.include}", f"-isystem{target.include / 'torch/csrc/api/include'}"]
    libraries = [f"-L{target.root / 'torch/lib'}", "-ltorch_cpu", "-lc10"]
    command = [*toolchain.compiler.split(), *toolchain.flags, "-O0", *own, *theirs, "-shared", "-Wl,--no-undefined"]
    run = subprocess.run([*command, *map(str, sources), *libraries, "-o", str(library)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return library


def test_wheel_mode_registers_them(tmp_path):
    """Without a GPU: the dispatcher is asked for the CUDA kernel of tensors on the CPU."""
    (tmp_path / "stand_in.cpp").write_text(STAND_IN)
    library = build_library(tmp_path, CUDA_REGISTRATIONS, tmp_path / "stand_in.cpp")
    code = f"""
import os, sys, torch
aten, CUDA = torch.ops.aten, torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
x, w, b = torch.randn(2, 4, 9), torch.randn(4, 3, 3), torch.randn(3)
arguments = [2], [1], [1], True, [1], 1
expected = aten.convolution(x, w, b, *arguments)
grad = torch.randn_like(expected)
gradients = aten.convolution_backward(grad, x, w, [3], *arguments, [True] * 3)

# As in a torch with CUDA, there is a kernel of the backward pass already.
wheel = torch.library.Library("aten", "IMPL")
wheel.impl("convolution_backward", lambda *args: 1 / 0, "CUDA")
torch.ops.load_library({str(library)!r})
out = aten.convolution.default.redispatch(CUDA, x, w, b, *arguments)
assert torch.equal(out, expected) and torch.ops.stand_in.ran() == 1
results = aten.convolution_backward.default.redispatch(CUDA, grad, x, w, [3], *arguments, [True] * 3)
assert torch.ops.stand_in.ran() == 2 and all(map(torch.equal, results, gradients))
none = aten.convolution_backward.default.redispatch(CUDA, grad, x, w, None, *arguments, [True, True, False])
assert none[2] is None and torch.equal(none[1], gradients[1])
try:
    aten.convolution_backward.default.redispatch(CUDA, grad, x, w.to("meta"), [3], *arguments, [True] * 3)
except RuntimeError as error:
    assert "Expected all tensors to be on the same device" in str(error), error
    assert "wrapper_CUDA__convolution_backward" in str(error), error
else:
    raise AssertionError("tensors of two devices were accepted")
assert torch.equal(aten.convolution(x, w, b, *arguments), expected) and torch.ops.stand_in.ran() == 3
print("another override", file=sys.stderr, flush=True)
torch.library.Library("aten", "IMPL").impl("convolution", lambda *args: 1 / 0, "CUDA")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    ours, others = run.stderr.split("another override")
    # The override that is meant says nothing, and leaves PyTorch's warning, which comes once, to the next.
    assert "Overriding" not in ours and "operator: aten::convolution(" in others, run.stderr


def test_the_registrations_are_those_of_the_edits():
    """Edits that give an operator of PyTorch a CUDA kernel, and what wheel mode registers."""
    edits = [edit for edit in load_patches() if edit.operation == "set_dispatch" and edit.arguments["key"] == "CUDA"]
    declared = {(name, edit.arguments["kernel"]) for edit in edits for name in edit.arguments["functions"]}
    text = CUDA_REGISTRATIONS.read_text()
    registered = {(name, f"{name}_cuda") for name, _ in declared if f'm.impl("{name}", ' in text}
    assert declared == registered and text.count("m.impl(") == len(declared)


# ---- The measured rule ----------------------------------------------------------------------


def csv_file(folder: Path, name: str, rows: list[dict]) -> Path:
    plain = {
        "case": "a", "pass": "forward", "math": "float32", "capability": 90, "N": 4, "Cin": 64, "Cout": 32, "K": 4,
        "stride": 2, "padding": 1, "output_padding": 0, "dilation": 1, "groups": 1, "L": 4096, "who": "native",
        "speedup": 2.0, "speedup_p20": 1.9,
    }  # fmt: skip
    lines = ["# about", ",".join(plain), *(",".join(str(v) for v in {**plain, **row}.values()) for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def test_where_the_native_kernels_are_taken(tmp_path):
    one = csv_file(tmp_path, "one.csv", [
        {},
        {"who": "cudnn"},
        {"pass": "backward"},  # a sum, which nothing asks for
        {"math": "tf32", "speedup": 0.99},
        {"math": "bfloat16", "speedup": 1.1, "speedup_p20": 0.96},
        {"math": "float16", "speedup": 1.1, "speedup_p20": 0.98},
        {"pass": "grad_bias", "math": "bfloat16"},
        {"Cin": 512, "Cout": 512, "groups": 512},
    ])  # fmt: skip
    assert [rule.bits(cells) for cells in rule.read([one]).values()] == [0x8005, 0x0001]
    assert list(rule.read([one]))[1] == (90, 4, 512, 4096, 1, 4, 2, 1, 0, 1, 512)
    # A file that says otherwise, such as one of cuDNN without benchmark=True, takes it back.
    other = csv_file(tmp_path, "other.csv", [{"speedup": 0.9}])
    assert rule.bits(rule.read([one, other])[(90, 4, 64, 4096, 32, 4, 2, 1, 0, 1, 1)]) == 0x8004
    assert "{90, {4, 64, 4096}, {64, 32, 4}, {2, 1, 0, 1, 1}, 0x8005}," in rule.header([one])


def test_the_committed_rule_is_what_was_measured():
    about = re.search(r"from (.+)\.\n// Passes: (.+)\.\n", rule.HEADER.read_text())
    files, passes = about[1], about[2].split(", ")
    paths = [] if files.startswith("nothing") else [REPO / "benchmarks/results" / name for name in files.split(", ")]
    assert rule.HEADER.read_text() == rule.header(paths, passes)


def test_a_pass_can_be_left_out(tmp_path):
    measured = csv_file(tmp_path, "measured.csv", [{}, {"pass": "grad_input"}])
    assert [rule.bits(cells, ["forward"]) for cells in rule.read([measured]).values()] == [0x0001]


def test_near_measured_shapes_decide(tmp_path):
    measured = csv_file(tmp_path, "measured.csv", [
        {"pass": "grad_input"},
        {"math": "bfloat16"},
        {},
        {"L": 1024, "speedup": 0.5},
        {"K": 3, "dilation": 2, "padding": 0, "speedup": 1.5},
        {"capability": 100, "speedup": 0.5},
    ])  # fmt: skip
    (tmp_path / "ATen/native").mkdir(parents=True)
    (tmp_path / "ATen/native" / rule.HEADER.name).write_text(rule.header([measured]))
    # Beside the header, else the one beside the source is taken.
    source = tmp_path / "ConvTranspose1dSwitch.cpp"
    source.write_text((NATIVE / source.name).read_text())
    library = build_library(tmp_path, source, first=tmp_path)
    code = f"""
import torch
torch.ops.load_library({str(library)!r})

def faster(capability=90, name="forward", dtype=torch.float32, tf32=False, n=4, cin=64, cout=32, k=4, length=4096,
           stride=2, dilation=1, groups=1):
    return torch.ops.aten_overlay.conv_transpose1d_was_faster(
        capability, name, dtype, tf32, [n, cin, length], [cin, cout // groups, k], stride, dilation, groups)

assert faster() and faster(name="grad_input") and faster(dtype=torch.bfloat16)
assert not faster(name="grad_weight") and not faster(tf32=True) and not faster(dtype=torch.half)
assert not faster(name="grad_input", dtype=torch.bfloat16)
assert not faster(capability=80) and not faster(capability=100)
assert not faster(n=1) and faster(n=1, length=4 * 4096) and faster(length=4 * 4096), "batch and length together"
assert not faster(cin=65, length=4096) and faster(cin=65, length=4097), "within reach of both, and of one"
assert not faster(length=1024) and not faster(length=1500) and not faster(length=2800), "both near ones have to agree"
assert not faster(length=17 * 1024), "more than two octaves off"
long = {{"length": 4 * 4096}}
assert faster(cin=128, **long) and not faster(cin=129, **long) and faster(cin=32, **long) and not faster(cin=31, **long)
assert faster(cout=64, **long) and not faster(cout=65, **long)
assert faster(k=8, **long) and not faster(k=9, **long) and not faster(k=1, **long)
assert faster(stride=1, **long) and faster(stride=4, **long) and not faster(stride=5, **long)
assert not faster(cin=512, cout=256, groups=8, **long), "groups"
assert faster(k=3, dilation=2) and faster(k=3, dilation=3) and not faster(k=3, dilation=2, dtype=torch.bfloat16)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
