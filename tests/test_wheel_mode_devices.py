"""Operators of PyTorch that gain a device: wheel mode passes over them, the simulated device registers them."""

from __future__ import annotations

import re

import pytest
import yaml
from overlay.errors import OverlayError
from overlay.model import Edit
from overlay.wheel_mode.codegen import generate_registrations
from overlay.wheel_mode.entries import DERIVATIVES, NATIVE_FUNCTIONS, entries_with_device, our_entries
from overlay.wheel_mode.manifest import python_edits
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from wheel_mode_helpers import target_of

RELEASE = Version("2.14.1")
POOLING = "aten/src/ATen/native/mps/operations/Pooling.mm"
TEXT = b"""
- func: step.out(Tensor self, Tensor values, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  structured_inherits: TensorIteratorBase
  dispatch:
    CPU, CUDA: step_out

- func: step(Tensor self, Tensor values) -> Tensor
  structured_delegate: step.out

- func: step_(Tensor(a!) self, Tensor values) -> Tensor(a!)
  structured_delegate: step.out

- func: stepwise(Tensor self) -> Tensor

- func: pool.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  dispatch:
    CPU: pool_out_cpu
    MPS: pool_out_mps

- func: pool(Tensor self) -> Tensor
  dispatch:
    CPU, MPS: pool_any
    CUDA: pool_cuda
"""


def edit(operation: str, target: str = NATIVE_FUNCTIONS, versions: str = "", **arguments) -> Edit:
    count = len(arguments.get("functions", [None]))
    id = f"{operation} {arguments}"
    return Edit(id, "why", "not proposed", SpecifierSet(versions), count, operation, arguments, target, id)


def with_mps(function: str, **more) -> Edit:
    return edit("add_dispatch", functions=[function], line="CPU", key="MPS", **more)


def entries(*edits: Edit, device: str = "MPS") -> dict[str, dict]:
    loaded = yaml.safe_load(entries_with_device(TEXT, list(edits), RELEASE, device))
    return {entry["func"].partition("(")[0]: entry for entry in loaded}


def test_wheel_mode_passes_over_an_operator_that_gains_a_device():
    edits = [
        with_mps("step.out"),
        edit("set_dispatch", functions=["convolution", "convolution_backward"], key="CUDA", kernel="ours"),
        edit("move_dispatch", functions=["pool"], key="MPS", to="CPU"),
    ]
    assert yaml.safe_load(our_entries(edits, NATIVE_FUNCTIONS, RELEASE)) == []


@pytest.mark.parametrize(
    "refused",
    (
        edit("set_dispatch", functions=["pool"], key="CPU", kernel="ours"),
        edit("add_dispatch", functions=["pool"], line="CPU", key="XPU"),
        edit("replace_text", to="", **{"from": "x"}),
        edit("replace_text", target=DERIVATIVES, to="", **{"from": "x"}),
    ),
    ids=lambda refused: refused.id,
)
def test_what_changes_an_operator_of_the_wheel_is_refused(refused):
    with pytest.raises(OverlayError, match="operators that torch does not have"):
        our_entries([refused], refused.target, RELEASE)


def test_all_overloads_come_along():
    found = entries(with_mps("step.out"))
    assert set(found) == {"step.out", "step", "step_"}
    assert found["step.out"]["dispatch"] == {"CPU, CUDA, MPS": "step_out"}
    assert found["step.out"]["structured_inherits"] == "TensorIteratorBase"


@pytest.mark.parametrize("definition", ("TORCH_IMPL_FUNC(pool_out_mps)", "at::native::pool_out_mps", "pool_out_mps"))
def test_a_kernel_that_replaces_one_of_pytorchs_is_ours(definition):
    found = entries(edit("remove_definition", target=POOLING, definition=definition))
    assert set(found) == {"pool.out", "pool"}
    assert found["pool.out"]["dispatch"]["MPS"] == "pool_out_mps"
    assert found["pool"]["dispatch"] == {"CPU": "pool_any", "CUDA": "pool_cuda"}  # whose kernel for MPS is PyTorch's


def test_edits_of_other_devices_and_releases_are_left_out():
    assert entries() == {}
    assert entries(with_mps("step.out"), device="CUDA") == {}
    assert entries(with_mps("step.out", versions="<2.14")) == {}


def test_an_edit_that_does_not_fit_is_refused():
    with pytest.raises(OverlayError, match="no entry `walk.out`"):
        entries(with_mps("walk.out"))


def test_what_suites_expect_of_mps_is_not_replayed():
    edits = [
        edit("remove_key", target="torch/testing/_internal/common_mps.py", key="step", **{"from": "XFAIL"}),
        edit("add_element", target="torch/testing/_internal/common_mps.py", to="X", elements=["1"]),
        edit("remove_decorator", target="torch/testing/_internal/opinfo/definitions/special.py", opinfo="step"),
        edit("replace_text", target="torch/testing/_internal/opinfo/definitions/special.py", to="", **{"from": "x"}),
    ]
    assert python_edits(edits, RELEASE) == {}
    with pytest.raises(OverlayError, match="it cannot replay `remove_key`"):
        python_edits([edit("remove_key", target="torch/overrides.py", key="step", **{"from": "IGNORED"})], RELEASE)


# The five ways that the overlay's Metal operators are wired.
WIRED = [
    edit("add_dispatch", functions=["heaviside.out"], line="CUDA", key="MPS"),
    edit("add_dispatch", functions=["frexp.Tensor_out"], line="CUDA", key="MPS"),
    edit("add_dispatch", functions=["take", "take.out"], line="CUDA", key="MPS"),
    edit("add_dispatch", functions=["put_"], line="CUDA", key="MPS"),
    edit("set_dispatch", functions=["_adaptive_avg_pool3d"], key="MPS", kernel="adaptive_avg_pool3d_mps"),
    edit("remove_definition", target=POOLING, definition="at::native::adaptive_avg_pool2d_out_mps"),
]


@pytest.mark.parametrize("version", ("2.13.0", "2.14.1"))
def test_torchgen_registers_them_for_the_device(version, tmp_path):
    generate_registrations(target_of(version), WIRED, tmp_path / "made", "MPS")
    text = (tmp_path / "made/src/RegisterMPS.cpp").read_text()
    assert set(re.findall(r'm\.impl\("([^"]+)"', text)) == {
        "heaviside", "heaviside_", "heaviside.out", "frexp.Tensor_out", "take", "take.out", "put_",
        "_adaptive_avg_pool3d", "adaptive_avg_pool2d.out",
    }  # fmt: skip
    assert "public at::native::structured_heaviside_out" in text and "TORCH_LIBRARY_IMPL(aten, MPS, m)" in text
    headers = {path.name for path in (tmp_path / "made/include/ATen/ops").iterdir()}
    assert {"heaviside_native.h", "put_mps_dispatch.h"} <= headers and "heaviside_ops.h" not in headers
    pooling = (tmp_path / "made/include/ATen/ops/_adaptive_avg_pool3d_native.h").read_text()
    assert "adaptive_avg_pool3d_mps(const at::Tensor & self" in pooling
