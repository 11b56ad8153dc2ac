"""Operations on native_functions.yaml and derivatives.yaml."""

from __future__ import annotations

import pytest
from edit_helpers import edited, refused

TARGET = "aten/src/ATen/native/native_functions.yaml"
TEXT = """\
# See README.md
- func: add.Tensor(Tensor self, Tensor other) -> Tensor
  structured_delegate: add.out
  dispatch:
    SparseCPU, SparseCUDA: add_sparse

- func: add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)
  structured_delegate: add.out

- func: add.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU, CUDA: add_out  # é
    MPS: add_out_mps  # slow
    # the end of add.out

# of sub
- func: sub(Tensor self) -> Tensor
  dispatch:
    CPU, CUDA: sub
    XLA, MPS: sub_other

- func: sub_(Tensor(a!) self) -> Tensor(a!)
  dispatch:
    CPU: sub_
    CUDA: sub_

- func: implicit(Tensor self) -> Tensor
"""


def replaced(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


ENTRY = "- func: twice(Tensor self) -> Tensor\n  variants: function\n"


def test_add_entries_goes_after_the_last_overload_and_its_comments():
    result = edited(TARGET, TEXT, "add_entries", after="add", entries=ENTRY)
    assert result == replaced("    # the end of add.out\n", f"    # the end of add.out\n\n{ENTRY}")


def test_add_entries_goes_after_one_overload():
    result = edited(TARGET, TEXT, "add_entries", after="add.Tensor", entries=ENTRY)
    assert result == replaced(": add_sparse\n", f": add_sparse\n\n{ENTRY}")


def test_add_entries_at_the_end_of_a_file_without_a_newline():
    result = edited(TARGET, TEXT.rstrip("\n"), "add_entries", after="implicit", entries=ENTRY)
    assert result == f"{TEXT}\n{ENTRY}"


def test_add_entries_to_derivatives():
    text = "- name: a(Tensor self) -> Tensor\n  self: |\n    grad\n\n- name: b(Tensor self) -> Tensor\n  self: grad\n"
    entry = "- name: twice(Tensor self) -> Tensor\n  self: grad * 2\n"
    result = edited("tools/autograd/derivatives.yaml", text, "add_entries", after="a", entries=entry)
    assert result == text.replace("    grad\n\n", f"    grad\n\n{entry}\n")


def test_entries_that_upstream_has_are_refused():
    error = refused(TARGET, TEXT, "add_entries", after="add", entries="- func: sub(Tensor self) -> Tensor")
    assert f"{TARGET}:18 " in error.place and "already upstream: the entry `sub`" in error.rule
    assert "`versions`" in error.hint


def test_entries_after_an_operator_that_is_gone_are_refused():
    assert "missing: no entry `mul`" in refused(TARGET, TEXT, "add_entries", after="mul", entries=ENTRY).rule


def test_entries_that_are_no_list_are_refused():
    assert "not valid YAML" in refused(TARGET, TEXT, "add_entries", after="sub", entries=ENTRY + "- func: [").rule
    assert "a list" in refused(TARGET, TEXT, "add_entries", after="sub", entries="func: x").rule
    assert "`func` or a `name`" in refused(TARGET, TEXT, "add_entries", after="sub", entries="- fun: x").rule
    assert "listed twice: twice" in refused(TARGET, TEXT, "add_entries", after="sub", entries=ENTRY + ENTRY).rule


def test_add_dispatch():
    result = edited(TARGET, TEXT, "add_dispatch", functions=["sub", "sub_"], line="CUDA", key="PrivateUse1")
    assert result == replaced("CPU, CUDA: sub\n", "CPU, CUDA, PrivateUse1: sub\n").replace(
        "    CUDA: sub_\n", "    CUDA, PrivateUse1: sub_\n")


def test_add_dispatch_covers_what_is_structured():
    result = edited(TARGET, TEXT, "add_dispatch", functions=["add.out"], line="CUDA", key="XLA")
    assert result == replaced("CPU, CUDA: add_out ", "CPU, CUDA, XLA: add_out ")


def test_add_dispatch_refuses_overloads_left_behind():
    error = refused(TARGET, TEXT, "add_dispatch", functions=["sub"], line="CUDA", key="PrivateUse1")
    assert error.rule == "overloads left behind: sub_"
    error = refused(TARGET, TEXT, "add_dispatch", functions=["sub_"], line="CUDA", key="PrivateUse1")
    assert error.rule == "overloads left behind: sub"


def test_add_dispatch_counts_an_overload_that_has_the_device():
    edited(TARGET, TEXT, "add_dispatch", functions=["sub_"], line="CUDA", key="MPS")


def test_add_dispatch_refusals():
    arguments = {"line": "CUDA", "key": "MPS"}
    assert "already upstream" in refused(TARGET, TEXT, "add_dispatch", functions=["sub"], **arguments).rule
    assert "no entry `mul`" in refused(TARGET, TEXT, "add_dispatch", functions=["mul"], **arguments).rule
    assert "no `CUDA`" in refused(TARGET, TEXT, "add_dispatch", functions=["implicit"], **arguments).rule


def test_move_dispatch():
    result = edited(TARGET, TEXT, "move_dispatch", functions=["add.out"], key="MPS", to="CUDA")
    old, new = "CPU, CUDA: add_out  # é\n    MPS: add_out_mps  # slow\n", "CPU, CUDA, MPS: add_out  # é\n"
    assert result == replaced(old, new)


def test_move_dispatch_from_a_shared_line():
    text = replaced("\n- func: sub_(Tensor(a!) self) -> Tensor(a!)\n  dispatch:\n    CPU: sub_\n    CUDA: sub_\n", "")
    result = edited(TARGET, text, "move_dispatch", functions=["sub"], key="MPS", to="CPU")
    assert result == text.replace("CPU, CUDA: sub\n    XLA, MPS:", "CPU, CUDA, MPS: sub\n    XLA:")


def test_move_dispatch_refusals():
    error = refused(TARGET, TEXT, "move_dispatch", functions=["sub"], key="MPS", to="CUDA")
    assert error.rule == "overloads left behind: sub_"
    assert "already upstream" in refused(TARGET, TEXT, "move_dispatch", functions=["sub"], key="MPS", to="XLA").rule
    assert "no `MPS`" in refused(TARGET, TEXT, "move_dispatch", functions=["sub_"], key="MPS", to="CUDA").rule


@pytest.mark.parametrize(("functions", "key", "old", "new"), [
    (["sub", "sub_"], "MPS", None, None),
    (["add.out"], "MPS", "MPS: add_out_mps  #", "MPS: ours  #"),
    (["add.out"], "CUDA", "CPU, CUDA: add_out  # é\n", "CPU: add_out  # é\n    CUDA: ours\n"),
    (["add.out"], "XLA", "MPS: add_out_mps  # slow\n", "MPS: add_out_mps  # slow\n    XLA: ours\n"),
])
def test_set_dispatch(functions, key, old, new):
    result = edited(TARGET, TEXT, "set_dispatch", functions=functions, key=key, kernel="ours")
    if old is None:
        new = TEXT.replace("    XLA, MPS: sub_other\n", "    XLA: sub_other\n    MPS: ours\n")
        assert result == new.replace("    CUDA: sub_\n", "    CUDA: sub_\n    MPS: ours\n")
    else:
        assert result == replaced(old, new)


def test_set_dispatch_with_a_device_check():
    result = edited(
        TARGET, TEXT, "set_dispatch", functions=["add.out"], key="MPS", kernel="ours", device_check="NoCheck"
    )
    expected = TEXT.replace("MPS: add_out_mps  #", "MPS: ours  #")
    func = "- func: add.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)\n"
    assert result == expected.replace(func, func + "  device_check: NoCheck\n")
    arguments = {"functions": ["add.out"], "key": "MPS", "kernel": "theirs", "device_check": "NoCheck"}
    assert "already upstream: `device_check`" in refused(TARGET, result, "set_dispatch", **arguments).rule


def test_set_dispatch_refusals():
    error = refused(TARGET, TEXT, "set_dispatch", functions=["sub"], key="PrivateUse1", kernel="ours")
    assert error.rule == "overloads left behind: sub_"
    error = refused(TARGET, TEXT, "set_dispatch", functions=["add.out"], key="MPS", kernel="add_out_mps")
    assert "already upstream" in error.rule
    error = refused(TARGET, TEXT, "set_dispatch", functions=["implicit"], key="MPS", kernel="ours")
    assert "CompositeImplicitAutograd" in error.rule
