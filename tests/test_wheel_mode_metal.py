"""Wheel mode on a Mac, as far as Linux can tell: what it would run, and that its generated sources are right."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from metal_host import checks, compiler, frontend, host_code
from overlay.errors import OverlayError
from overlay.model import load_patches
from overlay.paths import OVERLAYS
from overlay.wheel_mode import build as wheel_mode
from overlay.wheel_mode import toolchain
from overlay.wheel_mode.metal import HOST_FLAGS, REGISTRATIONS, metallib_header, write_metal
from overlay.wheel_mode.target import from_python
from wheel_mode_helpers import target_of

KERNELS = checks.metal_files(OVERLAYS)
HEAVISIDE = next(path for path in host_code.host_files(OVERLAYS) if path.stem == "Heaviside")


@pytest.fixture
def mac(monkeypatch):
    """Apple's compiler, and no ninja."""
    answers = {"--version": "Apple clang version 21.0.0\n", "-dumpmachine": "arm64-apple-darwin25.0.0\n"}
    monkeypatch.setattr(toolchain, "_ask", lambda compiler, option: answers[option])
    for name in ("run_ninja", "has_work", "write_compile_commands"):
        monkeypatch.setattr(wheel_mode, name, lambda *arguments: False)


def test_what_is_built_on_a_mac(mac, tmp_path, capfd):
    folder = wheel_mode.build(target_of("2.14.1"), builds=tmp_path, compile_only=True)
    assert f"with Metal: {len(host_code.host_files(OVERLAYS))} sources" in capfd.readouterr().out
    ninja = (folder / "build.ninja").read_text()
    assert re.search(r"^flags = .* -Xpreprocessor -fopenmp ", ninja, re.MULTILINE)
    link = re.search(r"^  command = \$cxx (.*) -o \$out \$in \$libraries$", ninja, re.MULTILINE)[1]
    assert "-dynamiclib" in link and "-weak_framework MetalPerformanceShadersGraph" in link and "-shared" not in link
    assert "libtorch_cpu.dylib" in ninja and ".so" not in re.sub(wheel_mode.LIBRARY, "", ninja)
    for path in host_code.host_files(OVERLAYS):
        assert f"build objects/mps/{path.name}.o: compile {path}\n" in ninja
    assert ninja.count("-fno-objc-arc") == len(host_code.host_files(OVERLAYS))
    assert "metal_host" not in ninja
    registrations = (folder / "generated-metal/registrations/src/RegisterMPS.cpp").read_text()
    assert 'm.impl("heaviside.out"' in registrations and f"{folder}/generated-metal/registrations/src" in ninja
    ours = (folder / "generated/src/operators.cpp").read_text()
    assert "RegisterMPSEverything.cpp" in ours and "RegisterCUDA" not in ours


def test_nothing_of_it_is_built_elsewhere(tmp_path, monkeypatch):
    for name in ("run_ninja", "has_work", "write_compile_commands"):
        monkeypatch.setattr(wheel_mode, name, lambda *arguments: False)
    folder = wheel_mode.build(target_of("2.14.1"), builds=tmp_path, compile_only=True)
    assert ".mm" not in (folder / "build.ninja").read_text() and not (folder / "generated-metal").exists()
    assert "RegisterMPS" not in (folder / "generated/src/operators.cpp").read_text()


@pytest.mark.parametrize("level", compiler.LEVELS.values(), ids=lambda level: level.name)
@pytest.mark.parametrize("kernels", KERNELS, ids=lambda path: path.stem)
def test_kernels_to_compile_as_they_run_stand_alone(kernels, level):
    folders = [OVERLAYS[0] / "aten" / "src", target_of("2.14.1").include]
    source = re.search(r'R"SHDR\((.*)\)SHDR"', metallib_header(kernels, folders), re.DOTALL)[1]
    assert not re.search(r"#\s*include\s*[<\"](c10|ATen)/", source)
    alone = frontend.type_check(source, str(kernels), level)
    within = frontend.rewrite(kernels.read_text(), str(kernels), level, target_of("2.14.1").include)
    assert [entry.host_name for entry in alone.entries] == [entry.host_name for entry in within.entries]


def test_a_header_that_is_nowhere_is_refused(tmp_path):
    (tmp_path / "X.metal").write_text("#include <metal_stdlib>\n#include <c10/metal/nothing.h>\n")
    with pytest.raises(OverlayError, match="c10/metal/nothing.h"):
        metallib_header(tmp_path / "X.metal", [])


def test_host_code_with_kernels_to_compile_as_they_run(tmp_path):
    target = target_of("2.14.1")
    metal = write_metal(target, load_patches(), OVERLAYS, tmp_path)
    flags = ("-O0", *HOST_FLAGS, *(f"-I{folder}" for folder in metal.include))
    symbols = host_code.compile_object(HEAVISIDE, target.include, flags).read_bytes()
    assert b"heaviside_functor" in symbols  # the source of the kernels


OVERRIDE = """
#include <torch/library.h>
static at::Tensor& put_nowhere(at::Tensor& self, const at::Tensor&, const at::Tensor&, bool) { return self; }
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("put_", TORCH_FN(put_nowhere)); }
"""


def test_kernels_that_take_the_place_of_torchs_own_do_so_quietly(tmp_path):
    """On the CPU, whose kernels can be overridden here; the next library's override is warned of."""
    target = from_python(sys.executable)
    (tmp_path / "RegisterMPS.cpp").write_text(OVERRIDE)
    found = toolchain.find_toolchain(target)
    libraries = []
    for source in (REGISTRATIONS, tmp_path / "RegisterMPS.cpp"):
        libraries.append(str(tmp_path / f"lib{source.stem}.so"))
        includes = [f"-I{tmp_path}", f"-isystem{target.include}"]
        command = [*found.compiler.split(), *found.flags, "-O0", "-w", "-shared", *includes, str(source)]
        torch_libraries = [f"-L{target.root / 'torch' / 'lib'}", "-ltorch_cpu", "-lc10"]
        subprocess.run([*command, "-o", libraries[-1], *torch_libraries], check=True)
    load = "import sys, torch\nfor path in sys.argv[1:]: torch.ops.load_library(path); print(path, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", load, *libraries], capture_output=True, text=True, check=True)
    quiet, _, warned = run.stderr.partition(libraries[0])
    assert quiet == "" and "Overriding a previously registered kernel" in warned, run.stderr


def test_the_simulated_device_is_no_part_of_the_package():
    script = "import sys, torch, torch_overlay; print([name for name in sys.modules if 'metal_host' in name])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
