"""Short names are short, unique, and say what tells them apart."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from experiments.report.names import WIDTH, short_names


def test_files_are_their_stems_and_models_the_end_of_their_id() -> None:
    names = ["/a/b/mine.jsonl", "gsm8k", "org/Model-1.5B", "./here"]
    assert list(short_names(names).values()) == ["here", "mine", "gsm8k", "Model-1.5B"]


def test_folders_stand_before_where_stems_are_equal() -> None:
    assert short_names(["/a/x/p.jsonl", "/b/x/p.jsonl", "p.jsonl", "q.jsonl"]) == {
        "/a/x/p.jsonl": "a/x/p",
        "/b/x/p.jsonl": "b/x/p",
        "p.jsonl": "p",
        "q.jsonl": "q",
    }
    assert set(short_names(["a.json", "a.jsonl"]).values()) == {"a.json", "a.jsonl"}


def test_a_long_name_keeps_its_ends() -> None:
    (short,) = short_names(["x" * 30 + "/competition-mathematics-2024.jsonl"]).values()
    assert short == "competitio…tics-2024"
    assert len(short) == WIDTH


NAMES = st.text(st.sampled_from("ab/.jsonl"), min_size=1, max_size=40)


@example([".json"])
@given(st.lists(NAMES | st.sampled_from(["a" * 40 + x + "b" * 40 for x in "xyz"]), max_size=8))
def test_no_two_are_equal_and_none_is_long(names: list[str]) -> None:
    found = short_names(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(found)
    assert all(0 < len(short) <= WIDTH for short in found.values())
