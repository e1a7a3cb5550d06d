"""One grammar: what is written of a method or a detector is what is read again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import InvalidValue
from attention.methods import METHODS
from attention.spec import Spec, merge, parse, paths, setting, split, value, values

TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=8)
SCALARS = (
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["guardian", "mine:Detector", "my.own:Class"])
SPECS = st.builds(
    Spec, NAMES, st.dictionaries(TEXTS, VALUES, max_size=3), st.sampled_from(["", "answer"])
)
ACTIONS = ("stop", "answer")


@given(SPECS)
def test_what_is_written_is_read_again(spec: Spec) -> None:
    assert parse(str(spec), "detector", "guardian(f=250)", ACTIONS, ("guardian",)) == spec


@given(st.lists(SPECS, min_size=1, max_size=3), st.sampled_from(",+;"))
def test_brackets_and_quotes_hold_together(specs: list[Spec], mark: str) -> None:
    assert split(f" {mark} ".join(map(str, specs)), mark) == [*map(str, specs)]


@pytest.mark.parametrize("bad", ["a(b)", "a(b=1", "a(b=1)c", f"a(b={'[' * 3000})"])
def test_other_brackets_are_refused(bad: str) -> None:
    with pytest.raises(InvalidValue, match=r"NAME\(PARAMETER=VALUE\), such as oracle"):
        METHODS.spec(bad)


@pytest.mark.parametrize("bad", ["guardian(f=100}\nrate={x=1)", "guardian(f=1}\r\n#)"])
def test_a_line_break_drops_nothing(bad: str) -> None:
    with pytest.raises(InvalidValue, match="NAME"):
        parse(bad, "detector", "guardian(f=250)")
    assert value("1\nb = 2") == "1\nb = 2"
    assert values("1]\nb = [2") == ["1]\nb = [2"]


def test_a_later_alias_takes_the_place_of_an_earlier_one() -> None:
    assert merge({"f": 1, "rate": 2}, {"f": 3}) == {"f": 3, "rate": 2}
    assert merge({"f": 1, "rate": 2}, {"t": 3}, [("rate", "t")]) == {"f": 1, "t": 3}
    assert METHODS.merge("oracle", {"budget": 8}, {}, {"top_p": 0.5}) == {"top_p": 0.5}
    assert METHODS.merge("oracle", {"top_p": 0.5}, {"budget": 8}) == {"budget": 8}
    assert METHODS.merge("quest", {"budget": 8, "page": 4}, {"page": 2}) == {"budget": 8, "page": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("evil:C", ["evil:C"]),
        ("cycle+m:A(codec='m:B')", ["m:A", "m:B"]),
        ([{"name": "m:A"}, "cycle", 3], ["m:A"]),
        ("a text: with words", []),
        ("broken(", []),
    ],
)
def test_import_paths_wherever_they_stand(text: Any, expected: list[str]) -> None:
    assert [*paths(text)] == expected


def test_the_dots_of_an_import_path_part_nothing() -> None:
    keys = ["detector_params", "my.own:Class", "times"]
    assert setting("detector_params.my.own:Class.times=2") == (keys, "2")
    assert setting("own:Class.times = [1, 2]") == (["own:Class", "times"], " [1, 2]")
    assert setting("times") == ([], "")
