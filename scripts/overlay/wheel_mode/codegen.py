"""PyTorch's own generators on our entries alone, and a folder of their output that fits beside the wheel's headers.

    include/   comes before the wheel's headers. A header that both have is extended, never shadowed: it includes the
               wheel's and adds our operators.
    src/       the generated sources, and two units that include those which register something
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OverlayError
from ..model import Edit
from .entries import DERIVATIVES, NATIVE_FUNCTIONS, entries_with_device, our_entries
from .files import sync_folder
from .target import Target
from .templates import replace

_DRIVER = Path(__file__).with_name("torchgen_driver.py")
# Functions that the generated code calls and libtorch_cpu does not export.
_UNPACK = Path(__file__).with_name("cpp") / "variable_type_unpack.cpp"
_VMAP_CHECK = Path(__file__).with_name("cpp") / "vmap_check_escaped.h"

# Registrations for devices that have dispatch keys of their own, and kernels that a build may lack.
_DEVICES = ("CUDA", "MPS", "XPU", "HPU", "MTIA")

# Headers that list all operators: what ours adds to the wheel's, per operator.
_OPERATOR_LISTS = {
    "ATen/Functions.h": "ATen/ops/{}.h",
    "ATen/Operators.h": "ATen/ops/{}_ops.h",
    "ATen/NativeFunctions.h": "ATen/ops/{}_native.h",
}
# Headers whose generated text comes after the wheel's: where it is in the generators' output.
_EXTENSIONS = {
    "ATen/VmapGeneratedPlumbing.h": "ATen/VmapGeneratedPlumbing.h",
    "torch/csrc/autograd/generated/Functions.h": "autograd/Functions.h",
    "torch/csrc/autograd/generated/ViewFuncs.h": "autograd/ViewFuncs.h",
}
# Headers that PyTorch's build has and a wheel lacks.
_UNPACKAGED = ("ATen/ViewMetaClasses.h", "ATen/FunctionalInverses.h")

_AUTOGRAD_SOURCES = (
    "VariableTypeEverything.cpp",
    "Functions.cpp",
    "ViewFuncs.cpp",
    "ADInplaceOrViewTypeEverything.cpp",
    "TraceTypeEverything.cpp",
)


@dataclass(frozen=True)
class Generated:
    include: Path
    units: tuple[Path, ...]  # what to compile, the slowest first
    operators: list[str]  # "causal_conv1d", "causal_conv1d_update.out"
    bindings: dict[str, Any]  # the Python names a build would give them; see torchgen_driver.py


def generate(target: Target, edits: list[Edit], folder: Path, devices: tuple[str, ...] = ()) -> Generated:
    """Brings `folder` up to date. A file that stays the same keeps its time. `devices` beside the CPU have kernels."""
    scratch = folder.with_name(folder.name + ".scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    _write_source(target, edits, scratch / "source")
    _run_torchgen(target, scratch, devices)
    output = scratch / "out"
    description = json.loads((output / "operators.json").read_text())
    files = {f"include/{name}": text for name, text in _headers(target, output).items()}
    files |= {f"src/{name}": text for name, text in _sources(output, devices).items()}
    sync_folder(folder, files)
    shutil.rmtree(scratch)
    units = (folder / "src" / "autograd.cpp", folder / "src" / "operators.cpp")
    return Generated(folder / "include", units, description["operators"], description["bindings"])


def generate_registrations(target: Target, edits: list[Edit], folder: Path, device: str) -> None:
    """The registrations of our kernels for operators that torch has and that lack this device there.

    include/   the headers of these operators that differ from the wheel's, or that it lacks
    src/       Register<device>.cpp
    """
    scratch = folder.with_name(folder.name + ".scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    native_functions = (target.packaged / "ATen" / "native" / "native_functions.yaml").read_bytes()
    entries = entries_with_device(native_functions, edits, target.release, device)
    _sync_source(target, scratch / "source", {"native/native_functions.yaml": entries})
    _run_torchgen(target, scratch, (device,))
    output = scratch / "out" / "ATen"
    suffixes = ("_native.h", f"_{device.lower()}_dispatch.h")
    headers = [path for path in sorted((output / "ops").iterdir()) if path.name.endswith(suffixes)]
    files = {f"include/ATen/ops/{path.name}": path.read_text() for path in headers}
    files[f"src/Register{device}.cpp"] = (output / f"Register{device}Everything.cpp").read_text()
    sync_folder(folder, files)
    shutil.rmtree(scratch)


def _write_source(target: Target, edits: list[Edit], source: Path) -> None:
    entries = {
        "native/native_functions.yaml": our_entries(edits, NATIVE_FUNCTIONS, target.release),
        "autograd/derivatives.yaml": our_entries(edits, DERIVATIVES, target.release),
    }
    _sync_source(target, source, entries)


def _sync_source(target: Target, source: Path, entries: dict[str, str]) -> None:
    """What the generators read: like aten/src/ATen, with tools/autograd beside it."""
    packaged = target.packaged
    places = {"ATen/templates": "templates", "autograd/templates": "autograd/templates"}
    templates = {
        f"{folder}/{path.name}": path.read_text() for folder in places for path in sorted((packaged / folder).iterdir())
    }
    files = {**entries, "native/tags.yaml": (packaged / "ATen" / "native" / "tags.yaml").read_text()}
    for name, text in replace(templates, f"torch {target.version}").items():
        folder, _, file = name.rpartition("/")
        files[f"{places[folder]}/{file}"] = text
    sync_folder(source, files)


def _run_torchgen(target: Target, scratch: Path, devices: tuple[str, ...]) -> None:
    """From inside `scratch`, since the generated comments name the templates by a path relative to here."""
    environment = {**os.environ, "PYTHONPATH": str(target.root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(_DRIVER), "source", "out", *(["--mps"] if "MPS" in devices else [])]
    run = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        raise OverlayError(
            f"torchgen of torch {target.version}",
            "it generates code for the entries of patches/aten/src/ATen/native/native_functions.yaml.yaml and "
            f"patches/tools/autograd/derivatives.yaml.yaml; it said:\n{run.stderr.rstrip()}",
            f"mend the entry; to run it again: cd {scratch} && PYTHONPATH={target.root} {' '.join(command)}",
        )


def _headers(target: Target, output: Path) -> dict[str, str]:
    headers = {f"ATen/ops/{path.name}": path.read_text() for path in sorted((output / "ATen/ops").iterdir())}
    for header, pattern in _OPERATOR_LISTS.items():
        headers[header] = f"{_extension(header)}{_includes(pattern, output)}"
    for header, place in _EXTENSIONS.items():
        ours = f"overlay_generated/{place}"
        headers[ours] = (output / place).read_text()
        headers[header] = f"{_extension(header)}#include <{ours}>\n"
    headers[f"overlay_generated/{_VMAP_CHECK.name}"] = _VMAP_CHECK.read_text()
    headers["ATen/VmapGeneratedPlumbing.h"] += f"#include <overlay_generated/{_VMAP_CHECK.name}>\n"
    for header in _UNPACKAGED:
        if not (target.include / header).exists():
            headers[header] = (output / header).read_text()
    return headers


def _extension(header: str) -> str:
    return f"// The wheel's {header}, then ours.\n#pragma once\n#include_next <{header}>\n"


def _includes(pattern: str, output: Path) -> str:
    """One include per operator."""
    names = sorted(path.name[: -len("_ops.h")] for path in (output / "ATen/ops").glob("*_ops.h"))
    return "".join(f"#include <{pattern.format(name)}>\n" for name in names)


def _sources(output: Path, devices: tuple[str, ...]) -> dict[str, str]:
    """One unit for the operators and one for autograd: parsing PyTorch's headers is nearly all the work, and in two
    units it is done twice instead of a dozen times. (A precompiled header of them is 0.5 GB and slower to load.)"""
    autograd = {name: (output / "autograd" / name).read_text() for name in _AUTOGRAD_SOURCES}
    operators = {
        path.name: path.read_text()
        for path in sorted((output / "ATen").glob("*.cpp"))
        if path.name in ("OperatorsEverything.cpp", "CompositeViewCopyKernels.cpp") or _registers(path, devices)
    }
    return {
        **autograd,
        **operators,
        "RedispatchFunctions.h": (output / "ATen/RedispatchFunctions.h").read_text(),
        "OurOperators.h": "#pragma once\n" + _includes("ATen/ops/{}_ops.h", output),
        _UNPACK.name: _UNPACK.read_text(),
        "autograd.cpp": _unit([*autograd, _UNPACK.name]),
        "operators.cpp": _unit(list(operators)),
    }


def _registers(path: Path, devices: tuple[str, ...]) -> bool:
    """A registration file that is not a shard of another, and not empty."""
    name = path.stem
    absent = set(_DEVICES) - set(devices)
    if not name.startswith("Register") or name[-2:-1] == "_" or any(device in name for device in absent):
        return False
    return any(call in path.read_text() for call in ("m.impl(", "m.def("))


def _unit(names: list[str]) -> str:
    lines = ["// The generated sources in one translation unit."]
    for name in names:
        # See the replacement in RegisterDispatchKey.cpp.
        namespace = Path(name).stem
        lines += [f"#define DISPATCH_KEY_NAMESPACE {namespace}", f'#include "{name}"', "#undef DISPATCH_KEY_NAMESPACE"]
    return "\n".join(lines) + "\n"
