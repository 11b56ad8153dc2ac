"""Edits together: their arguments, counts, conflicts, and what they leave alone."""

from __future__ import annotations

import pytest
from edit_helpers import edited, make_edit, refused
from hypothesis import given
from hypothesis import strategies as st
from overlay.edits import apply_edits
from overlay.errors import OverlayError

LIST = "docs/source/nn.rst"
TEXT = "one\n    two\nthree\n    two\n"


def test_insert_text():
    def inserted(**arguments):
        return edited(LIST, TEXT, "insert_text", text="new\n", **arguments)

    assert inserted(after="three\n") == TEXT.replace("three\n", "three\nnew\n")
    assert inserted(before="three\n") == TEXT.replace("three\n", "new\nthree\n")
    assert inserted(after="two\n", count=2) == TEXT.replace("two\n", "two\nnew\n")


def test_insert_text_refusals():
    def rule(**arguments):
        return refused(LIST, TEXT, "insert_text", **arguments).rule

    assert "the anchor is missing: the text `four`" in rule(after="four\n", text="new")
    assert "the anchor is ambiguous: it fits 2 places (lines 2, 4), and `count` is 1" in rule(after="two\n", text="new")
    assert "fits 1 places (lines 3), and `count` is 2" in rule(after="three\n", text="new", count=2)
    assert "already upstream: the text `three`" in rule(after="one\n", text="three\n")
    assert "one of `after` and `before`" in rule(after="one\n", before="three\n", text="new")
    assert "one of `after` and `before`" in rule(text="new")


def test_replace_text():
    assert edited(LIST, TEXT, "replace_text", from_="three", to="3") == TEXT.replace("three", "3")
    assert "missing" in refused(LIST, TEXT, "replace_text", from_="four", to="4").rule
    assert "already upstream" in refused(LIST, TEXT, "replace_text", from_="3", to="three").rule


def test_a_refusal_names_the_line_and_the_edit():
    error = refused(LIST, TEXT, "insert_text", after="one\n", text="three\n")
    assert error.place == "docs/source/nn.rst:3 [patches/docs/source/nn.rst.yaml: an-edit]"
    assert error.hint == "end the edit's `versions` before this release"


def test_edits_see_the_file_as_upstream_has_it_and_keep_their_order():
    edits = [make_edit(LIST, "insert_text", id=name, after="one\n", text=f"{name}\n") for name in ("first", "second")]
    result, outcomes = apply_edits(LIST, TEXT.encode(), edits)
    assert result.decode() == TEXT.replace("one\n", "one\nfirst\nsecond\n")
    assert [outcome.lines for outcome in outcomes] == [(1,), (1,)]


def test_edits_that_touch_the_same_text_are_refused():
    edits = [make_edit(LIST, "replace_text", id=name, from_="three", to=name) for name in ("first", "second")]
    result, (first, second) = apply_edits(LIST, TEXT.encode(), edits)
    assert first.error is None and "changes what the edit `first` changes" in second.error.rule


def test_an_edit_that_breaks_the_file_is_named_and_others_are_not():
    text = "x = [\n    1,\n]\n"
    good = make_edit("a.py", "add_element", id="good", to="x", elements=["2"])
    bad = make_edit("a.py", "replace_text", id="bad", from_="]\n", to="\n")
    result, (first, second) = apply_edits("a.py", text.encode(), [good, bad])
    assert result == text.encode() and first.error is None
    assert "not valid: line" in second.error.rule and second.error.place.startswith("a.py:3 ")


def test_edits_that_only_break_the_file_together_are_all_refused():
    text = "x = [\n    1\n]\n"
    edits = [make_edit("a.py", "add_element", id=name, to="x", elements=[f'"{name}"']) for name in ("one", "two")]
    result, outcomes = apply_edits("a.py", text.encode(), edits)
    assert result == text.encode() and all("not valid" in outcome.error.rule for outcome in outcomes)


@pytest.mark.parametrize(("target", "operation", "arguments", "rule"), [
    ("a.py", "add_stuff", {}, "no operation `add_stuff`"),
    ("a.cpp", "add_import", {"statement": "import x", "after": "y"}, "works on .py"),
    ("a.py", "add_import", {"statement": "import x"}, "missing a required argument: 'after'"),
    ("a.py", "remove_key", {"key": "x"}, "missing a required argument: 'from'"),
    ("a.py", "add_import", {"statement": "import x", "after": "y", "at": "z"}, "unexpected keyword argument 'at'"),
    ("a.py", "add_to_all", {"names": "x"}, "`names` of `add_to_all` is a list of texts, not `x`"),
    ("a.py", "add_to_all", {"names": []}, "is a list of texts"),
    ("a.py", "add_to_all", {"names": [1]}, "is a list of texts"),
    ("a.py", "remove_key", {"from_": 1, "key": "x"}, "`from` of `remove_key` is text, not `1`"),
    ("a.py", "remove_decorator", {"opinfo": "x", "decorator": "y"}, "is a mapping of texts"),
])
def test_edits_that_no_file_could_take_are_refused(target, operation, arguments, rule):
    with pytest.raises(OverlayError) as error:
        make_edit(target, operation, **arguments)
    assert rule in error.value.rule and error.value.place == f"patches/{target}.yaml: an-edit"


def test_a_dispatch_edit_counts_its_functions():
    assert make_edit("native_functions.yaml", "add_dispatch", functions=["a", "b"], line="CUDA", key="MPS").count == 2
    assert make_edit("a.py", "add_import", statement="import x", after="y").count == 1


@given(st.text("ab\n", max_size=12), st.text("ab\n", min_size=1, max_size=3), st.text("c\n", min_size=1, max_size=3))
def test_inserting_leaves_all_other_bytes_alone(text, anchor, new):
    places = sum(text.startswith(anchor, start) for start in range(len(text)))
    edit = make_edit(LIST, "insert_text", after=anchor, text=new, count=max(places, 1))
    result, (outcome,) = apply_edits(LIST, text.encode(), [edit])
    if outcome.error:
        assert places == 0 or new in text
    else:
        assert result.count(b"c") == places * new.count("c") and len(result) == len(text) + places * len(new)
        assert result.replace(b"c", b"").replace(b"\n", b"") == text.encode().replace(b"\n", b"")
