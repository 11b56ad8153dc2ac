"""`make mps-coverage`: what it counts, and that an overload left behind fails it."""

from __future__ import annotations

import pytest
from overlay import __main__, mps_coverage
from overlay.errors import OverlayError
from overlay.model import Edit
from overlay.mps_coverage import XFAILS
from overlay.plan import Plan, PlannedEdit, PlannedFile, Status
from overlay.trees import NATIVE_FUNCTIONS, Tree
from packaging.specifiers import SpecifierSet
from packaging.version import Version

BEFORE = """
- func: step.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU, CUDA: step_out

- func: step(Tensor self) -> Tensor
  structured_delegate: step.out

- func: _step_backward(Tensor grad) -> Tensor
  dispatch:
    CPU: step_backward_cpu
    CUDA: step_backward_cuda

- func: pool.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  dispatch:
    CUDA: pool_out_cuda
    MPS: pool_out_mps

- func: _pool(Tensor self) -> Tensor
  dispatch:
    CUDA: pool_cuda

- func: mean(Tensor self) -> Tensor
  dispatch:
    CompositeExplicitAutograd, CUDA: mean

- func: sort(Tensor self) -> Tensor
  dispatch:
    CUDA: sort
"""
XFAIL_LISTS = """
def mps_ops_modifier(ops):
    UNIMPLEMENTED_XFAILLIST: dict[str, list | None] = {
        "step": None,
        "pool": [torch.float16],
        "sort": None,
    }
    UNIMPLEMENTED_XFAILLIST_SPARSE: dict[str, list | None] = {
        "step": None,
    }
"""
OURS = "\n- func: ours(Tensor self) -> Tensor\n  dispatch:\n    CUDA: ours\n"


def planned(before: str, after: str, edits: tuple[Edit, ...] = (), xfails: str = XFAIL_LISTS) -> Plan:
    files = [
        PlannedFile(path, old.encode(), old.encode(), new.encode(), 0o644)
        for path, old, new in ((NATIVE_FUNCTIONS, before, after), (XFAILS, XFAIL_LISTS, xfails))
    ]
    tree = Tree(None, "wheel", Version("2.13.0"), "a test")
    return Plan(tree, None, [PlannedEdit(edit, Status.TO_APPLY) for edit in edits], files)


def measure(*arguments, **options):
    return mps_coverage.measure(planned(*arguments, **options), roots=())


def test_what_lacks_a_kernel():
    coverage = measure(BEFORE, BEFORE + OURS)
    assert coverage.lacking_before == ["step.out", "_step_backward", "_pool", "sort"]  # not what is composed
    assert coverage.lacking_after == [*coverage.lacking_before, "ours"]
    assert coverage.left_behind == [] and coverage.label == "simulated"


def test_an_overload_that_is_left_behind():
    half = BEFORE.replace("CPU, CUDA: step_out", "CPU, CUDA, MPS: step_out")
    coverage = measure(BEFORE, half)
    assert coverage.lacking_after == ["_step_backward", "_pool", "sort"]
    assert coverage.left_behind == ["_step_backward"]
    whole = half.replace("CUDA: step_backward_cuda", "CUDA: step_backward_cuda\n    MPS: step_backward_mps")
    assert measure(BEFORE, whole).left_behind == []


def test_a_kernel_in_the_place_of_pytorchs_takes_its_overloads_along():
    definition, target = "pool_out_mps", "aten/src/ATen/native/mps/operations/Pooling.mm"
    arguments = {"definition": definition}
    edit = Edit("pool", "why", "not proposed", SpecifierSet(), 1, "remove_definition", arguments, target, "pool")
    assert measure(BEFORE, BEFORE, (edit,)).left_behind == ["_pool"]


@pytest.mark.parametrize(("times", "removed"), ((1, []), (2, ["step"])))
def test_expected_failures(times, removed):
    coverage = measure(BEFORE, BEFORE, xfails=XFAIL_LISTS.replace('"step": None,', "", times))
    assert coverage.xfails_before == ["sort", "step"]
    assert coverage.xfails_removed == removed  # from all lists, or it is still expected to fail


def test_a_release_without_metal_is_refused():
    plan = planned(BEFORE, BEFORE)
    del plan.files[1]
    with pytest.raises(OverlayError, match="common_mps.py"):
        mps_coverage.measure(plan)


@pytest.mark.parametrize("version", ("2.13.0", "2.14.1"))
def test_the_overlay(version, request, capfd):
    tree = request.getfixturevalue(f"tree_{version.replace('.', '_')}")
    assert __main__.main(["mps-coverage", str(tree)]) == 0
    out = capfd.readouterr().out
    assert "\noverloads left behind: 0\n" in out
    assert "  9 removed: frexp, heaviside, nn.functional.adaptive_avg_pool1d, " in out
    assert "  10 gained: " in out and f"label: {'simulated' if version == '2.13.0' else 'compiled'}" in out
    assert "  Heaviside: float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool\n" in out
