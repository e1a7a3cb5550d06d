"""Every token of an output in one class: by hand for each class, then for any text whatever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_readings import CLASSES, TextReading, read_text

from experiments.reasoner import problem
from experiments.reasoner.judge import pieces

DRAWN = problem("easy", "test", 3)  # the shoe costs 34
THINK = "<think>\n\n"
RIGHT = "So shoe, cake is 21, plus scarf is 13. After cake, shoe is 34.\n\n"
WRONG = "So shoe, cake is 20, plus scarf is 13. After cake, shoe is 33.\n\n"
CHECK = "After cake, shoe was {}? The shoe joins the cake with the scarf. cake is 21, plus scarf is"
GOOD = CHECK.format(34) + " 13 is 34, yes.\n\n"
MEND = CHECK.format(33) + " 13 is 34, no. Wait, in fact shoe is 34.\n\n"
SPOIL = CHECK.format(34) + " 13 is 33, no. Wait, in fact shoe is 33.\n\n"
ASKED = "The thing we want is shoe, shoe is {}.\n\n"
END = "</think>\n\nThe answer is \\boxed{{{}}}.<eos>"
GIVE_UP = "I can not find it, I give up.\n\n"
NOT_KNOWN = "</think>\n\nThe answer is not known.<eos>"
STRANGE = "The moon is green.\n\n"


def n(text: str) -> int:
    return len(pieces(text))


def reading(text: str, *, ended: bool = True, cap: int | None = None) -> TextReading:
    return read_text(DRAWN, [one.encode() for one in pieces(text)], ended=ended, cap=cap)


def classes(found: TextReading) -> dict[str, int]:
    """Those that have any."""
    assert sum(found.classes.values()) == found.tokens
    return {name: count for name, count in found.classes.items() if count}


def test_derived_checked_and_answered() -> None:
    found = reading(RIGHT + GOOD + GOOD + ASKED.format(34) + END.format(34))
    assert classes(found) == {
        "derived": n(RIGHT), "checked": n(GOOD), "checked again": n(GOOD),
        "asked": n(ASKED.format(34)), "answer": n(END.format(34)),
    }  # fmt: skip
    until = n(RIGHT.removesuffix(".\n\n"))
    assert (found.end, found.first_right) == ("solved", until)
    assert found.after == found.tokens - until
    assert (found.first_value, found.last_value) == (34, 34)


def test_derived_again_and_mended_from_wrong_to_right() -> None:
    found = reading(WRONG + MEND + RIGHT + ASKED.format(34) + END.format(34))
    told = classes(found)
    assert (told["derived"], told["mended"]) == (n(WRONG), n(MEND))
    assert told["derived again"] == n(RIGHT)
    assert (found.right_to_wrong, found.wrong_to_right) == (0, 1)
    assert (found.first_value, found.first_is_right, found.last_is_right) == (33, False, True)
    assert found.first_right == n(WRONG + MEND.removesuffix(".\n\n"))


def test_a_check_that_spoils_a_right_value() -> None:
    found = reading(RIGHT + SPOIL + ASKED.format(33) + END.format(33))
    assert (found.right_to_wrong, found.wrong_to_right, found.end) == (1, 0, "wrong")
    assert (found.first_is_right, found.last_is_right) == (True, False)


def test_given_up_and_other() -> None:
    found = reading(GIVE_UP + STRANGE + NOT_KNOWN)
    told = classes(found)
    assert told["other"] == n(STRANGE)
    assert told["gave up"] >= n(GIVE_UP)
    assert (found.end, found.first_right, found.after) == ("gave up", None, None)
    assert (found.first_value, found.last_value, found.first_is_right) == (None, None, False)


def test_facts_not_found_are_lost() -> None:
    from experiments.reasoner import words

    line = f"So shoe,{words.UNSEEN[0]}\n\n"
    assert classes(reading(line + NOT_KNOWN))["lost"] == n(line)


def test_a_loop_counts_only_where_the_text_is_cut() -> None:
    line = "Let me check.\n\n"
    text = RIGHT + line * 9
    found = reading(text, ended=False)
    # The full stop before the first round is one that every round ends with: it begins the loop.
    shared = n(".\n\n")
    assert classes(found) == {
        "derived": n(RIGHT), "checked": n(line) - shared, "loop": 8 * n(line) + shared,
    }  # fmt: skip
    assert found.end == "cut"
    # The same tokens, as a text that ended by itself.
    assert classes(reading(text)) == {
        "derived": n(RIGHT), "checked": n(line), "checked again": 8 * n(line),
    }  # fmt: skip


def test_caps_cut_a_text_and_what_is_cut_is_unsolved() -> None:
    text = RIGHT + GOOD + ASKED.format(34) + END.format(34)
    whole = n(text)
    assert reading(text, cap=whole).end == "solved"
    short = reading(text, cap=whole - 1)
    assert (short.end, short.tokens, short.solved) == ("cut", whole - 1, False)
    # Cut in the number itself: the value is not stated yet.
    until = n(RIGHT.removesuffix(".\n\n"))
    assert reading(text, cap=until - 1).first_right is None
    assert reading(text, cap=until).first_right == until
    assert sum(reading(text, cap=until - 1).classes.values()) == until - 1


def test_an_empty_output_has_nothing() -> None:
    for ended in (True, False):
        found = reading("", ended=ended)
        assert (found.tokens, classes(found), found.first_right) == (0, {}, None)
    assert reading("", ended=True).end == "wrong"


@given(
    st.lists(
        st.sampled_from([RIGHT, WRONG, GOOD, MEND, SPOIL, GIVE_UP, STRANGE, THINK, "\n", "."])
    ),
    st.binary(max_size=12),
    st.booleans(),
    st.integers(1, 120),
)
def test_classes_sum_to_the_length(lines: list[str], tail: bytes, ended: bool, cap: int) -> None:
    parts = [one.encode() for one in pieces("".join(lines))]
    parts += [tail[at : at + 1] for at in range(len(tail))]
    found = read_text(DRAWN, parts, ended=ended, cap=cap)
    assert found.tokens == min(len(parts), cap)
    assert sum(found.classes.values()) == found.tokens
    assert tuple(found.classes) == CLASSES
    assert found.first_right is None or 0 < found.first_right <= found.tokens


@pytest.mark.slow
@pytest.mark.parametrize("level", ["medium", "hard", "retold"])
def test_full_attention_leaves_no_token_unclassified(level: str) -> None:
    import lil
    from attention import Full
    from experiments.grid import data, models
    from experiments.grid.data import ProblemChoice

    loaded = models.load(models.find("reasoner"), "float32", "cpu")
    asked = data.load_set(level, "test", 40, ProblemChoice(offset=900)).items
    traces = lil.decode(
        loaded.model,
        loaded.tokenizer,
        [one.prompt_ids(loaded.tokenizer) for one in asked],
        backend=Full(),
        max_new_tokens=4096,
    )
    for at, trace in enumerate(traces):
        found = read_text(
            problem(level, "test", 900 + at), trace.pieces, ended=trace.finish == "eos"
        )
        assert found.classes["other"] == 0, trace.text
