"""PyTorch's generators on a reduced yaml, for each release that wheel mode is for."""

from __future__ import annotations

import re
import shutil

import pytest
from overlay.errors import OverlayError
from overlay.model import load_patches
from overlay.wheel_mode import templates
from overlay.wheel_mode.codegen import generate
from overlay.wheel_mode.entries import NATIVE_FUNCTIONS, our_entries
from overlay.wheel_mode.files import sync_folder
from packaging.version import Version
from wheel_mode_helpers import DUMMY_PATCHES, target_of

VERSIONS = ("2.13.0", "2.11.0", "2.14.1")


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=VERSIONS)
def target(request):
    return target_of(request.param)


def test_only_our_operators_are_generated(target, tmp_path):
    generated = generate(target, load_patches(DUMMY_PATCHES), tmp_path / "generated")
    headers = {path.name for path in (generated.include / "ATen/ops").iterdir()}
    assert "dummy_scale_native.h" in headers and "add.h" not in headers
    assert {name.partition(".")[0].removesuffix("_") for name in generated.operators} == {
        "dummy_scale", "_dummy_scale_backward", "dummy_update", "dummy_update_functional", "dummy_cube",
        "dummy_composite", "dummy_threads",
    }  # fmt: skip

    schema = (tmp_path / "generated/src/RegisterSchema.cpp").read_text()
    assert "TORCH_LIBRARY_FRAGMENT(aten, m)" in schema and "get_gradients" not in schema
    autograd = (generated.include / "overlay_generated/autograd/Functions.h").read_text()
    assert "struct TORCH_API DummyCubeBackward0" in autograd and "unpack_list" not in autograd


def test_structured_operators_keep_their_functional_default(target, tmp_path):
    """torchgen drops it without a word if no entry of the yaml has a kernel for that dispatch key."""
    generate(target, load_patches(DUMMY_PATCHES), tmp_path / "generated")
    source = "RegisterCompositeExplicitAutogradNonFunctionalEverything.cpp"
    assert f'#include "{source}"' in (tmp_path / "generated/src/operators.cpp").read_text()
    text = (tmp_path / "generated/src" / source).read_text()
    assert 'm.impl("dummy_cube", TORCH_FN(' in text and 'm.impl("dummy_cube_", TORCH_FN(' in text


def test_headers_extend_those_of_the_wheel(target, tmp_path):
    include = generate(target, load_patches(DUMMY_PATCHES), tmp_path / "generated").include
    for path in include.rglob("*.h"):
        name = path.relative_to(include).as_posix()
        if (target.include / name).exists():
            assert f"#include_next <{name}>" in path.read_text()


def test_the_projects_own_entries(target, tmp_path):
    generated = generate(target, load_patches(), tmp_path / "generated")
    assert "causal_conv1d" in generated.operators
    assert "causal_conv1d" in generated.bindings["module"]["torch._C._nn"]


def test_unchanged_output_is_not_rewritten(target, tmp_path):
    edits = load_patches(DUMMY_PATCHES)
    generate(target, edits, tmp_path / "generated")
    before = times(tmp_path)
    generate(target, edits, tmp_path / "generated")
    assert times(tmp_path) == before


def test_output_of_a_removed_entry_goes(tmp_path):
    edits = load_patches(DUMMY_PATCHES)
    generate(target_of("2.13.0"), edits, tmp_path / "generated")
    [dummy] = [edit for edit in edits if edit.id == "dummy-entries"]
    dummy.arguments["entries"] = re.sub(r"- func: dummy_composite.*\n", "", dummy.arguments["entries"])
    before = times(tmp_path)
    generate(target_of("2.13.0"), edits, tmp_path / "generated")
    gone = {path.name for path in before.keys() - times(tmp_path).keys()}
    assert "dummy_composite.h" in gone and "dummy_cube.h" not in gone


def test_what_torchgen_refuses_is_shown(tmp_path):
    edits = load_patches(DUMMY_PATCHES)
    [dummy] = [edit for edit in edits if edit.id == "dummy-entries"]
    dummy.arguments["entries"] += "\n- func: broken(Tensor self -> Tensor\n"
    with pytest.raises(OverlayError, match="torchgen of torch 2.13.0") as error:
        generate(target_of("2.13.0"), edits, tmp_path / "generated")
    assert "broken(Tensor self" in error.value.rule and "to run it again: cd " in error.value.hint


def test_entries_of_other_releases_are_left_out():
    edits = load_patches(DUMMY_PATCHES)
    assert "dummy_later" not in our_entries(edits, NATIVE_FUNCTIONS, Version("2.14.1"))
    assert "dummy_later" in our_entries(edits, NATIVE_FUNCTIONS, Version("99.0"))


def test_an_edit_of_an_upstream_operator_is_refused():
    edit = load_patches(DUMMY_PATCHES)[0]
    other = type(edit)(**{**edit.__dict__, "operation": "add_dispatch"})
    with pytest.raises(OverlayError, match="operators that torch does not have"):
        our_entries([other], NATIVE_FUNCTIONS, Version("2.14.1"))


@pytest.mark.parametrize("item", templates.REPLACEMENTS, ids=lambda item: f"{item.template}: {item.why}")
@pytest.mark.parametrize("change", ("missing", "twice", "no template"))
def test_every_replacement_happens_exactly_once(item, change):
    packaged = target_of("2.13.0").packaged
    texts = {item.template: (packaged / item.template).read_text() for item in templates.REPLACEMENTS}
    if change == "no template":
        del texts[item.template]
    else:
        place = re.search(item.pattern, texts[item.template])[0]
        texts[item.template] = texts[item.template].replace(place, "" if change == "missing" else place + "\n" + place)
    with pytest.raises(OverlayError) as error:
        templates.replace(texts, "torch 2.13.0")
    assert error.value.place == f"torchgen/packaged/{item.template} of torch 2.13.0"
    if change != "no template":  # which another replacement of the same template may notice first
        assert f"exactly one place that matches `{item.pattern}`" in error.value.rule
    assert f"found {2 if change == 'twice' else 0}" in error.value.rule


def test_sync_folder_keeps_what_is_right(tmp_path):
    sync_folder(tmp_path / "folder", {"a/same": "1", "a/old": "2", "b/gone": "3"})
    before = (tmp_path / "folder/a/same").stat().st_mtime_ns
    sync_folder(tmp_path / "folder", {"a/same": "1", "a/old": "new"})
    assert (tmp_path / "folder/a/same").stat().st_mtime_ns == before
    assert (tmp_path / "folder/a/old").read_text() == "new"
    assert not (tmp_path / "folder/b").exists()
    shutil.rmtree(tmp_path / "folder")
