"""Building a small overlay against the installed torch, and the project's own against the reference release."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from overlay.errors import OverlayError
from overlay.paths import REPO
from overlay.wheel_mode import build as wheel_mode
from overlay.wheel_mode import toolchain
from overlay.wheel_mode.target import from_python, from_root
from wheel_mode_helpers import DUMMY, check_python, target_of

KERNEL = (DUMMY / "aten_overlay/aten/src/ATen/native/cpu/DummyKernel.cpp").read_text()
KERNEL_OBJECTS = {
    f"objects/aten/src/ATen/native/cpu/DummyKernel.cpp.{name}.o" for name in ("DEFAULT", "AVX2", "AVX512")
}

pytestmark = pytest.mark.usefixtures("dummy_build")


def changed(before, after):
    return {name for name in after if after[name] != before.get(name)}


def test_operators_compute(dummy_build):
    check_python(
        """
import torch, torch_overlay
F = torch.nn.functional
x = torch.linspace(-2, 2, 64, dtype=torch.double)

assert torch.equal(torch.dummy_cube(x), x**3) and torch.equal(x.dummy_cube(), x**3)
assert torch.equal(torch.dummy_cube(x, out=torch.empty(0, dtype=x.dtype)), x**3)
assert torch.equal(x.clone().dummy_cube_(), x**3)
assert torch.equal(torch.dummy_composite(x), x**3 + 1)
assert torch.equal(torch.func.vmap(torch.dummy_cube)(x.view(8, 8)), x.view(8, 8) ** 3)
y = x.clone().requires_grad_()
assert torch.autograd.gradcheck(torch.dummy_cube, y, check_forward_ad=True)
assert torch.autograd.gradgradcheck(torch.dummy_cube, y)
bias = torch.randn(64, dtype=torch.double, requires_grad=True)
assert torch.autograd.gradcheck(lambda a, b: F.dummy_scale(a, b, alpha=2.0), (y, bias))
assert F.dummy_scale(x.to("meta")).shape == x.shape

state = torch.ones(64, dtype=x.dtype)
assert torch.equal(torch.dummy_update(x, state), 2 * (x + 1)) and torch.equal(state, x + 1)
functional = torch.func.functionalize(lambda a, s: torch.dummy_update(a, s))
state = torch.ones(64, dtype=x.dtype)
assert torch.equal(functional(x, state), 2 * (x + 1)) and torch.equal(state, x + 1)
result, state_out = torch.ops.aten.dummy_update_functional(x, torch.ones_like(x))
assert torch.equal(state_out, x + 1)
compiled = torch.compile(lambda a, s: torch.dummy_update(F.dummy_scale(a), s), backend="aot_eager", fullgraph=True)
state = torch.ones(64, dtype=x.dtype)
assert torch.equal(compiled(x, state), 2 * (x + 1)) and torch.equal(state, x + 1)
traced = torch.jit.trace(torch.dummy_cube, x)
assert "aten::dummy_cube" in str(traced.graph)

try:
    F.dummy_scale(torch.tensor(1.0))
except RuntimeError as error:
    assert "input must have a dimension" in str(error)
else:
    raise AssertionError
""",
        dummy_build.folder,
    )


def test_openmp_is_that_of_torch(dummy_build):
    check_python(
        """
import os, torch, torch_overlay
torch.set_num_threads(2)
assert torch.dummy_threads(torch.ones(1), 1000).item() == 2
with open("/proc/self/maps") as maps:
    runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line or "libomp" in line}
assert len(runtimes) == 1, runtimes
""",
        dummy_build.folder,
    )


@pytest.mark.parametrize("capability", ("default", "avx2"))
def test_cpu_capability_variants(dummy_build, capability):
    os.environ["ATEN_CPU_CAPABILITY"] = capability
    try:
        check_python(
            f"""
import torch, torch_overlay
assert torch.backends.cpu.get_cpu_capability() == {capability.upper()!r}
x = torch.linspace(-2, 2, 77)
torch.testing.assert_close(torch.dummy_cube(x), x**3)
""",
            dummy_build.folder,
        )
    finally:
        del os.environ["ATEN_CPU_CAPABILITY"]


def test_the_library_has_no_path_to_a_torch(dummy_build):
    dynamic = subprocess.run(
        ["readelf", "-d", dummy_build.folder / wheel_mode.LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    assert "libtorch_cpu.so" in dynamic and "libtorch_python" not in dynamic


def test_nothing_is_built_twice(dummy_build):
    before, manifest = dummy_build.times(), dummy_build.folder / wheel_mode.MANIFEST
    time_of_manifest = manifest.stat().st_mtime_ns
    dummy_build.build()
    assert dummy_build.times() == before and manifest.stat().st_mtime_ns == time_of_manifest
    commands = json.loads((dummy_build.folder / "compile_commands.json").read_text())
    assert {command["output"] for command in commands} == before.keys() - {wheel_mode.LIBRARY}


def test_a_changed_kernel_is_all_that_is_compiled(dummy_build):
    before = dummy_build.times()
    dummy_build.write("cpu/DummyKernel.cpp", KERNEL + f"// {time.time()}\n")
    dummy_build.build()
    assert changed(before, dummy_build.times()) == KERNEL_OBJECTS | {wheel_mode.LIBRARY}


def test_a_compile_error(dummy_build, capfd):
    before = dummy_build.times()
    broken = dummy_build.write("Broken.cpp", "int broken( { return 1; }\n")
    with pytest.raises(OverlayError) as error:
        dummy_build.build()
    broken.unlink()
    output = capfd.readouterr().out
    assert re.search(r"Broken\.cpp:1:\d+: error:", output)
    assert error.value.place == "objects/aten/src/ATen/native/Broken.cpp.o"
    assert f"-C {dummy_build.folder} objects/aten/src/ATen/native/Broken.cpp.o" in error.value.hint
    assert not (dummy_build.folder / wheel_mode.MANIFEST).exists()
    dummy_build.build()
    assert changed(before, dummy_build.times()) == set()


def test_an_undefined_symbol_is_an_error(dummy_build, capfd):
    unresolved = dummy_build.write("Unresolved.cpp", "int nowhere();\nint here() { return nowhere(); }\n")
    with pytest.raises(OverlayError, match=wheel_mode.LIBRARY):
        dummy_build.build()
    unresolved.unlink()
    assert "undefined reference to `nowhere()'" in capfd.readouterr().out
    dummy_build.build()


@pytest.mark.parametrize("signal_", (signal.SIGINT, signal.SIGKILL))
def test_an_interrupted_build_goes_on(dummy_build, signal_):
    dummy_build.write("cpu/DummyKernel.cpp", KERNEL + f"// {time.time()}\n")
    before = dummy_build.times()
    code = f"""
import sys
sys.path.insert(0, {str(REPO / "tests")!r})
from wheel_mode_helpers import *
overlay, builds = Path({str(dummy_build.overlay)!r}), Path({str(dummy_build.builds)!r})
wheel_mode.build(from_python(sys.executable), dummy_overlay(overlay), builds)
"""
    environment = {**os.environ, "PYTHONPATH": str(REPO / "scripts")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    while (dummy_build.folder / wheel_mode.MANIFEST).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # into the compilation, which takes seconds
    os.killpg(process.pid, signal_)
    assert process.wait() != 0
    assert changed(before, dummy_build.times()) < KERNEL_OBJECTS, "it was interrupted too late"
    assert not (dummy_build.folder / wheel_mode.MANIFEST).exists()
    dummy_build.build()
    assert changed(before, dummy_build.times()) == KERNEL_OBJECTS | {wheel_mode.LIBRARY}
    check_python("import torch, torch_overlay; torch.dummy_cube(torch.ones(3))", dummy_build.folder)


def test_one_build_at_a_time(dummy_build):
    with (dummy_build.folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OverlayError, match="another is running"):
            dummy_build.build()
    assert (dummy_build.folder / wheel_mode.MANIFEST).exists()


def test_the_reference_release_compiles(tmp_path):
    """The project's own operators against the headers of 2.14.1; there need not be its libraries."""
    folder = wheel_mode.build(target_of("2.14.1"), builds=tmp_path, compile_only=True)
    assert {"autograd.cpp.o", "operators.cpp.o", "CausalConv1d.cpp.o", "CausalConv1dKernel.cpp.AVX2.o"} <= {
        path.name for path in folder.rglob("*.o")
    }
    assert not (folder / wheel_mode.MANIFEST).exists()


def test_what_makes_another_build(monkeypatch):
    target = from_python(sys.executable)
    tools = toolchain.find_toolchain(target)
    key = tools.key(target)
    assert key.startswith(f"torch-{target.version}-{target.git_version[:8]}-{tools.machine}-")
    keys = {
        key,
        tools.key(replace(target, version="2.14.1")),
        tools.key(replace(target, git_version="0" * 40)),
        tools.key(replace(target, cuda="13.0")),
        replace(tools, identity="another compiler").key(target),
        replace(tools, flags=("-O0",)).key(target),
        replace(tools, capabilities={"DEFAULT": ""}).key(target),
    }
    assert len(keys) == 7
    assert tools.key(replace(target, root=target.root.parent)) == key, "every installation of a torch shares a build"


def test_refused_compilers(monkeypatch, tmp_path):
    target = from_python(sys.executable)
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(OverlayError, match="a C[+][+] compiler was expected"):
        toolchain.find_toolchain(target)
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho riscv64-linux-gnu\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(OverlayError, match="not for riscv64"):
        toolchain.find_toolchain(target)


def test_a_folder_that_is_no_wheel(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("")
    with pytest.raises(OverlayError, match="missing: torch/include/ATen/ATen.h, torchgen/gen.py"):
        from_root(tmp_path)


def test_headers_alone_do_not_link(tmp_path):
    with pytest.raises(OverlayError, match="libtorch_cpu.so, which is not there") as error:
        wheel_mode.build(target_of("2.14.1"), builds=tmp_path)
    assert error.value.hint == "add --compile-only"


def test_the_command(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "overlay", "wheel-mode", "--torch-root", tmp_path],
        env={**os.environ, "PYTHONPATH": str(REPO / "scripts")}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.startswith(f"error: {tmp_path}") and "next: name the folder with --torch-root" in run.stderr


@pytest.mark.parametrize("flags, shared", (((), True), (("-static-libstdc++",), False)))
def test_a_runtime_of_its_own_is_refused(tmp_path, flags, shared):
    source, library = tmp_path / "a.cpp", tmp_path / "a.so"
    source.write_text("#include <sstream>\nstd::string text(int i) { return (std::ostringstream() << i).str(); }\n")
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library, *flags], check=True)
    if shared:
        wheel_mode.require_shared_runtime(library, "g++")
    else:
        with pytest.raises(OverlayError, match="shares the C[+][+] runtime that torch has loaded"):
            wheel_mode.require_shared_runtime(library, "g++")
