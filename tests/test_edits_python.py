"""Operations on Python files."""

from __future__ import annotations

import ast

import pytest
from edit_helpers import edited, refused
from hypothesis import given
from hypothesis import strategies as st

TARGET = "torch/functional.py"
TEXT = """\
import os, sys
from . import conv  # one
from torch.nn import (
    a,
    b,
)

if True:
    import late

__all__ = [
    'conv',
    # the next
    'mean'
]
db: list = ["a", "b"]  # é
db += [
    "c",  # of db
    "e",
]
empty = []
table = dict.fromkeys([
    "x", "y",
    "z"], 0)


def overrides(self, *, flag=False, **kwargs):
    ret = {
        torch.a: lambda x: -1,
        torch.b: (
            lambda y: -1  # (
        ),
    }
    known = {"p", "q"}
    lone = {"r"}
    pair = ("p", "q")
    return call(ret, known, device="cpu")


class Conv:
    def __init__(
        self,
        x: int = (1),  # )
    ) -> None:
        super().__init__(
            x,
            device=None,
        )
"""


def replaced(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


@pytest.mark.parametrize(("after", "old"), [
    (".", "from . import conv  # one\n"),
    ("torch.nn", "    b,\n)\n"),
    ("sys", "import os, sys\n"),
])
def test_add_import(after, old):
    result = edited(TARGET, TEXT, "add_import", statement="from .x import y  # noqa: F401", after=after)
    assert result == replaced(old, old + "from .x import y  # noqa: F401\n")


def test_add_import_refusals():
    def rule(**arguments):
        return refused(TARGET, TEXT, "add_import", **arguments).rule

    assert "no module-level import of `late`" in rule(statement="import x", after="late")
    assert "already upstream: `from torch.nn import b`" in rule(statement="from torch.nn import b", after="sys")
    assert "is not an import" in rule(statement="x = 1", after="sys")
    twice = refused(TARGET, TEXT + "import sys\n", "add_import", statement="import x", after="sys")
    assert "ambiguous: it fits 2 places (lines 1, 49)" in twice.rule


def test_add_to_all():
    result = edited(TARGET, TEXT, "add_to_all", names=["fold", "glu"], after="conv")
    assert result == replaced("    'conv',\n", "    'conv',\n    'fold',\n    'glu',\n")
    result = edited(TARGET, TEXT, "add_to_all", names=["fold"], before="mean")
    assert result == replaced("    'conv',\n", "    'conv',\n    'fold',\n")
    result = edited(TARGET, TEXT, "add_to_all", names=["bce"], before="conv")
    assert result == replaced("    'conv',\n", "    'bce',\n    'conv',\n")
    result = edited(TARGET, TEXT, "add_to_all", names=["one"])
    assert result == replaced("    'mean'\n", "    'mean',\n    'one'\n")


def test_add_to_all_keeps_it_sorted():
    """PyTorch 2.6 asserts so of torch.nn.modules."""
    assert "Bilinear would stand out" in refused(TARGET, TEXT, "add_to_all", names=["Bilinear"], after="conv").rule
    unsorted = TEXT.replace("    'mean'\n", "    'mean',\n    'add',\n")
    assert "'mean',\n    'one',\n" in edited(TARGET, unsorted, "add_to_all", names=["one"], after="mean")


def test_add_to_all_refusals():
    assert "already upstream: `'conv'`" in refused(TARGET, TEXT, "add_to_all", names=["conv"], after="mean").rule
    assert "no `'sum'`" in refused(TARGET, TEXT, "add_to_all", names=["one"], after="sum").rule
    assert "no list" in refused(TARGET, "x = 1\n", "add_to_all", names=["one"], after="sum").rule


@pytest.mark.parametrize(("to", "after", "elements", "old", "new"), [
    ("db", '"a"', ['"n"', "*m"], '["a", "b"]', '["a", "n", *m, "b"]'),
    ("db", "'b'", ['"n"'], '["a", "b"]', '["a", "b", "n"]'),
    ("db", '"c"', ['"n"'], '    "c",  # of db\n', '    "c",  # of db\n    "n",\n'),
    ("empty", None, ["1", "2"], "empty = []", "empty = [1, 2]"),
    ("table", '"x"', ['"n"'], '"x", "y"', '"x", "n", "y"'),
    ("table", '"y"', ['"n"'], '"y",\n', '"y",\n    "n",\n'),
    ("table", '"z"', ['"n"'], '    "z"]', '    "z",\n    "n"]'),
    ("overrides.known", '"p"', ["n(\n    1,\n)"], '{"p", "q"}', '{"p", n(\n    1,\n), "q"}'),
    ("overrides.pair", None, ['"n"'], '("p", "q")', '("p", "q", "n")'),
])
def test_add_element(to, after, elements, old, new):
    arguments = {"after": after} if after else {}
    assert edited(TARGET, TEXT, "add_element", to=to, elements=elements, **arguments) == replaced(old, new)


def test_add_element_of_several_lines_is_indented():
    result = edited(TARGET, TEXT, "add_element", to="db", after='"c"', elements=['Info(\n    "n",\n)'])
    assert result == replaced("# of db\n", '# of db\n    Info(\n        "n",\n    ),\n')


@pytest.mark.parametrize(("after", "old"), [
    ("torch.a", "torch.a: lambda x: -1,\n"),
    ("torch.b", "lambda y: -1  # (\n        ),\n"),
    (None, "lambda y: -1  # (\n        ),\n"),
])
def test_add_key(after, old):
    arguments = {"after": after} if after else {}
    result = edited(TARGET, TEXT, "add_element", to="overrides.ret", key="torch.n", value="lambda: -1", **arguments)
    assert result == replaced(old, old + "        torch.n: lambda: -1,\n")


def test_add_element_refusals():
    def rule(**arguments):
        return refused(TARGET, TEXT, "add_element", **arguments).rule

    assert "assigned to `ret`" in rule(to="ret", key="a", value="b")
    assert "assigned to `overrides.other`" in rule(to="overrides.other", elements=["a"])
    assert "`db` has no `'z'`" in rule(to="db", elements=["'n'"], after="'z'")
    assert "already upstream: `'c'`" in rule(to="db", elements=["'c'"], after="'a'")
    assert "already upstream: `torch.b`" in rule(to="overrides.ret", key="torch.b", value="1")
    assert "fits 2 places (lines 16, 19)" in rule(to="db", elements=["'n'"])
    assert "it takes `elements`, or `key` and `value`" in rule(to="db", elements=["'n'"], key="'n'")
    assert "no dict" in rule(to="overrides.known", key="a", value="b")
    assert "a dict" in rule(to="overrides.ret", elements=["a"])
    assert "not an expression" in rule(to="empty", elements=["a b"])
    assert "not one expression" in rule(to="empty", elements=["a, b"])


def test_an_element_twice_in_a_list_is_ambiguous_with_all_lines():
    error = refused(TARGET, 'x = [\n    "a",\n    "a",\n]\n', "add_element", to="x", after='"a"', elements=['"n"'])
    assert "ambiguous: it fits 2 places (lines 2, 3), and `count` is 1" in error.rule
    text = edited(TARGET, 'x = ["a", "a"]\n', "add_element", to="x", after='"a"', elements=['"n"'], count=2)
    assert text == 'x = ["a", "n", "a", "n"]\n'


@pytest.mark.parametrize(("from_", "key", "old", "new"), [
    ("overrides.ret", "torch.a", "        torch.a: lambda x: -1,\n", ""),
    ("overrides.ret", "torch.b", "        torch.b: (\n            lambda y: -1  # (\n        ),\n", ""),
    ("overrides.known", '"p"', '{"p", "q"}', '{"q"}'),
    ("overrides.known", '"q"', '{"p", "q"}', '{"p"}'),
    ("overrides.pair", '"p"', '("p", "q")', '("q",)'),
    ("overrides.pair", '"q"', '("p", "q")', '("p",)'),
    ("__all__", '"mean"', "    'mean'\n", ""),
    ("table", '"z"', '"y",\n    "z"]', '"y"]'),
])
def test_remove_key(from_, key, old, new):
    assert edited(TARGET, TEXT, "remove_key", from_=from_, key=key) == replaced(old, new)


def test_remove_key_leaves_the_comment_of_another():
    text = 'x = [\n    "a",  # of a\n    "b"]\n'
    assert edited(TARGET, text, "remove_key", from_="x", key='"b"') == text.replace('"b"', "")


def test_remove_key_refusals():
    assert "`overrides.ret` has no `torch.z`" in refused(
        TARGET, TEXT, "remove_key", from_="overrides.ret", key="torch.z").rule
    assert "the last element of a set" in refused(TARGET, TEXT, "remove_key", from_="overrides.lone", key='"r"').rule


@pytest.mark.parametrize(("after", "within", "statement", "old", "new"), [
    ("overrides", None, "x = 1", '    return call(ret, known, device="cpu")\n', "x = 1\n"),
    ("empty", None, "x: int", "empty = []\n", "x: int\n"),
    ("conv", None, "x = 1", "from . import conv  # one\n", "x = 1\n"),
    ("__init__", "Conv", "x = 1", "            device=None,\n        )\n", "    x = 1\n"),
    ("__init__", "Conv", "x = (\n    1,\n)\n", "    )\n", "    x = (\n        1,\n    )\n"),
    ("Conv", None, "x = 1", "            device=None,\n        )\n", "x = 1\n"),
])
def test_add_statement(after, within, statement, old, new):
    arguments = {"after": after, "statement": statement} | ({"within": within} if within else {})
    assert edited(TARGET, TEXT, "add_statement", **arguments) == replaced(old, old + new)


def test_add_statement_goes_after_the_last_binding():
    text = "a = 1\na: int\nb = 2\n"
    assert edited(TARGET, text, "add_statement", after="a", statement="x = 1") == "a = 1\na: int\nx = 1\nb = 2\n"


def test_add_statement_refusals():
    def error(**arguments):
        return refused(TARGET, TEXT, "add_statement", **arguments).rule

    assert "the module binds no `mean`" in error(after="mean", statement="x = 1")
    assert "`Conv` binds no `empty`" in error(after="empty", statement="x = 1", within="Conv")
    assert "no class `Linear`" in error(after="x", statement="x = 1", within="Linear")
    assert "no class `overrides`" in error(after="ret", statement="x = 1", within="overrides")
    assert "already upstream: `empty = [  ]`" in error(after="db", statement="empty = [  ]")
    assert "not valid Python" in error(after="db", statement="x =")
    assert "not valid Python" in error(after="db", statement="x = 1\ny = 2")


@pytest.mark.parametrize(("arguments", "old", "new"), [
    ({"function": "overrides", "argument": "n=0", "after": "flag"}, "flag=False,", "flag=False, n=0,"),
    ({"function": "overrides", "argument": "n", "after": "self"}, "(self,", "(self, n,"),
    ({"function": "Conv.__init__", "argument": "n: int = 0", "after": "x"}, "# )\n", "# )\n        n: int = 0,\n"),
    ({"function": "Conv.__init__", "argument": "n: int = 0"}, "# )\n", "# )\n        n: int = 0,\n"),
    ({"call": "call", "argument": "n=0", "after": "device"}, '"cpu")', '"cpu", n=0)'),
    ({"call": "call", "argument": "n", "after": "ret"}, "(ret,", "(ret, n,"),
    ({"call": "super().__init__", "within": "Conv.__init__", "argument": "n=n"},
     "device=None,\n", "device=None,\n            n=n,\n"),
])
def test_add_argument(arguments, old, new):
    assert edited(TARGET, TEXT, "add_argument", **arguments) == replaced(old, new)


def test_add_argument_to_empty_parentheses():
    text = "def f() -> int:\n    return g()\n"
    assert edited(TARGET, text, "add_argument", function="f", argument="n") == text.replace("f()", "f(n)")
    assert edited(TARGET, text, "add_argument", call="g", argument="n=1") == text.replace("g()", "g(n=1)")


def test_add_argument_refusals():
    def rule(**arguments):
        return refused(TARGET, TEXT, "add_argument", **arguments).rule

    assert "no definition of `other`" in rule(function="other", argument="n")
    assert "no call of `call`" in rule(call="call", within="Conv.__init__", argument="n")
    assert "has no argument `z`" in rule(function="overrides", argument="n", after="z")
    assert "already upstream: the argument `flag`" in rule(function="overrides", argument="flag=True")
    assert "already upstream: the argument `device`" in rule(call="call", argument="device=1")
    assert "`argument` is not valid Python" in rule(function="overrides", argument="n n")
    assert "not valid" in rule(function="overrides", argument="n", after="kwargs")


OPINFOS = """\
op_db = [
    OpInfo(
        "conv",
        skips=(
            # Why
            DecorateInfo(unittest.expectedFailure, "TestCommon", "test_out"),
            DecorateInfo(unittest.skip("slow"), "TestMPS", device_type="mps"),
        ),
        decorators=[DecorateInfo(slow, "TestGrad"), skipIf(DecorateInfo)],
    ),
    UnaryUfuncInfo(
        "conv",
        variant_test_name="two",
        skips=(DecorateInfo(unittest.expectedFailure, "TestCommon"), DecorateInfo(slow, "TestGrad")),
    ),
]
"""


@pytest.mark.parametrize(("variant", "decorator", "old", "new"), [
    (None, {"class": "TestCommon", "test": "test_out"},
     '            DecorateInfo(unittest.expectedFailure, "TestCommon", "test_out"),\n', ""),
    (None, {"device_type": "mps"},
     '            DecorateInfo(unittest.skip("slow"), "TestMPS", device_type="mps"),\n', ""),
    (None, {"decorator": "slow"}, '[DecorateInfo(slow, "TestGrad"), ', "["),
    ("two", {"class": "TestCommon"},
     '(DecorateInfo(unittest.expectedFailure, "TestCommon"), DecorateInfo(slow, "TestGrad"))',
     '(DecorateInfo(slow, "TestGrad"),)'),
])
def test_remove_decorator(variant, decorator, old, new):
    arguments = {"variant": variant} if variant else {}
    result = edited(TARGET, OPINFOS, "remove_decorator", opinfo="conv", decorator=decorator, **arguments)
    assert OPINFOS.count(old) == 1 and result == OPINFOS.replace(old, new)


def test_remove_decorator_refusals():
    def rule(text=OPINFOS, **arguments):
        return refused(TARGET, text, "remove_decorator", **arguments).rule

    grad = {"class": "TestGrad"}
    assert "no OpInfo `sum`" in rule(opinfo="sum", decorator=grad)
    assert "no OpInfo `conv.three`" in rule(opinfo="conv", variant="three", decorator=grad)
    assert "no such DecorateInfo" in rule(opinfo="conv", decorator={"class": "TestJit"})
    assert "names any of class" in rule(opinfo="conv", decorator={"name": "TestGrad"})
    twice = OPINFOS.replace('variant_test_name="two"', "dtypes=()")
    assert "`conv` stands in lines 2, 11" in rule(twice, opinfo="conv", decorator=grad)


def test_a_template_is_parsed_with_its_placeholders():
    text = "from .types import (\n    a,\n)\n\n${hints}\n"
    result = edited("torch/f.pyi.in", text, "add_import", statement="from .x import y", after=".types")
    assert result == text.replace(")\n", ")\nfrom .x import y\n")


ATOMS = st.sampled_from(
    ["a", "b.c", '"d"', "(e)", "(\n    f\n)", "lambda x: (x, y)", "g[1, 2]", '"é, ("', "h(1, k=[2])"]
)
GAPS = st.sampled_from(["", " ", "\n", "  # x, )\n    ", "\n\n    "])


@given(st.lists(st.tuples(ATOMS, GAPS, GAPS), min_size=1, max_size=5), st.data())
def test_any_layout_takes_an_element_and_gives_it_up_again(items, data):
    """In any layout of a list, adding and removing changes the one element and no other text."""
    text = "x = [" + "".join(f"{before}{atom}{after}," for atom, before, after in items)[:-1] + "]\n"
    if data.draw(st.booleans()):
        text = text[:-2] + ",]\n"
    elements = [ast.unparse(element) for element in ast.parse(text).body[0].value.elts]
    index = data.draw(st.integers(0, len(elements) - 1))
    count = elements.count(elements[index])

    added = edited(TARGET, text, "add_element", to="x", after=elements[index], elements=["new"], count=count)
    expected = [part for one in elements for part in ([one, "new"] if one == elements[index] else [one])]
    assert [ast.unparse(element) for element in ast.parse(added).body[0].value.elts] == expected
    assert is_subsequence(text, added)

    removed = edited(TARGET, text, "remove_key", from_="x", key=elements[index], count=count)
    expected = [element for element in elements if element != elements[index]]
    assert [ast.unparse(element) for element in ast.parse(removed).body[0].value.elts] == expected
    assert is_subsequence(removed, text)


def is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)
