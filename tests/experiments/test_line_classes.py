"""What lines count as (docs/study/classes.md): by hand, and the same by both programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recomputing_study.texts import UNCLEAR, Reading
from text_readings import read_text

from experiments.reasoner import problem
from experiments.reasoner.judge import pieces, read

DRAWN = problem("easy", "test", 3)  # shoe is cake plus scarf, 34; the cake 21, the scarf 13
THINK, CHECKS, AGAIN = "<think>", "Let me check.", "Check again."
OPEN = "Now shoe, use cake plus scarf, cake is 21, plus scarf is not known."
OPEN_CAKE = "Now shoe, use cake plus scarf, cake is not known."
GUESS = "Back to shoe, cake is not known, guess 21, plus scarf is 13. After cake, shoe is 34."
DERIVE = "Back to shoe, cake is 21, plus scarf is 13. After cake, shoe is 34."
ASKS = "After cake, shoe was 34? The shoe joins the cake with the scarf."
WAITS = f"{ASKS} cake is 21, plus scarf is not known."
CHECK = f"{ASKS} cake is 21, plus scarf is 13 makes 34, fine."
JUDGED = "Back to shoe, cake is 21, plus scarf is 13 gives 34, correct."
GUESSED = f"{ASKS} cake is not known, guess 21, plus scarf is 13 makes 34, fine."
ONLY_WRONG = f"{ASKS} cake is 21, plus scarf is 14 makes 35, off."
MEND = f"{ONLY_WRONG} Wait, so shoe is 35."
OF_ANOTHER = f"{ONLY_WRONG} Wait, so cake is 35."
TORN = "After cake, shoe was 34? the and then."
TWICE = "After cake, shoe wasAfter cake, shoe was 34? fine."
BARE = "After cake, shoe is 34."
ALONE = "Back to shoe, cake is 21, plus scarf is 13."
BROKEN = "Now shoe, and so on. After cake, shoe is 34."
QUOTED = "After cake, shoe was 34? The shoe costs as as Wait, so shoe is 35. Wait, so shoe is 36."
LOST = "Now shoe, not seen. Let me read the facts."

LINES = (
    THINK, CHECKS, AGAIN, OPEN, OPEN_CAKE, GUESS, DERIVE, WAITS, CHECK, JUDGED, GUESSED, ONLY_WRONG,
    MEND, OF_ANOTHER, TORN, TWICE, BARE, ALONE, BROKEN, LOST,
    QUOTED,
)  # fmt: skip


def classes(*lines: str) -> list[str]:
    """Of each line, by the first program."""
    found = read(DRAWN, "".join(f"{one}\n\n" for one in lines))
    return [one.kind for one in found.lines]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([DERIVE, DERIVE], ["derived", "derived again"]),
        ([OPEN, OPEN_CAKE, OPEN], ["derived", "derived", "derived again"]),
        ([GUESS, OPEN_CAKE], ["derived", "derived again"]),
        ([OPEN_CAKE, GUESS], ["derived", "derived"]),
        # A check that waits goes on as the check that it is, whatever comes of it.
        ([WAITS, JUDGED], ["checked", "checked"]),
        ([WAITS, DERIVE, DERIVE], ["checked", "checked", "derived again"]),
        ([WAITS, WAITS, JUDGED, JUDGED], ["checked", "checked", "checked", "checked again"]),
        # What is guessed is not waited for.
        ([GUESSED, JUDGED], ["checked", "checked again"]),
        # The question is what counts, whatever follows it; one that is torn asks nothing.
        ([TORN, CHECK], ["lost", "checked again"]),
        ([TWICE, CHECK], ["unknown", "checked"]),
        ([ONLY_WRONG, MEND, OF_ANOTHER], ["lost", "mended", "lost"]),
        # Passes are counted, not named.
        ([AGAIN, CHECKS], ["checked", "checked again"]),
        ([CHECKS, CHECKS], ["checked", "checked again"]),
        # A value settles behind other words alone.
        ([BARE, DERIVE], ["unknown", "derived"]),
        ([BROKEN, DERIVE], ["lost", "derived again"]),
        ([ALONE, LOST], ["lost", "lost"]),
    ],
)  # fmt: skip
def test_by_hand(lines: list[str], expected: list[str]) -> None:
    assert classes(*lines) == expected


def test_a_quoted_fact_states_nothing() -> None:
    found = read(DRAWN, "".join(f"{one}\n\n" for one in (DERIVE, QUOTED)))
    assert (found.right_to_wrong, found.last_stated) == (1, 36)


@given(
    lines=st.lists(st.sampled_from(LINES), max_size=12),
    cuts=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 60)), max_size=2),
)
def test_both_programs_say_the_same(lines: list[str], cuts: list[tuple[int, int]]) -> None:
    """Lines in any order, some of them torn; the second may leave open what is of no language."""
    for at, kept in cuts:
        if at < len(lines):
            lines[at] = lines[at][:kept]
    text = "".join(f"{one}\n\n" for one in lines if one.strip("\n"))
    parts = pieces(text)
    trace = {
        "prompt_bytes": {"text": f"{DRAWN.prompt}\n\n", "encoding": "utf-8"},
        "pieces": {"text": text, "encoding": "utf-8", "lengths": [*map(len, parts)]},
        "new_ids": list(range(len(parts))),
        "finish": "eos",
    }
    mine = read_text(DRAWN, [one.encode() for one in parts], ended=True)
    second = Reading("a", trace).within(len(parts), {})
    for name, count in second.classes.items():
        assert count <= mine.classes[name] <= count + second.unclear, name
    assert second.mends == {name: getattr(mine, name) for name in second.mends}
    assert UNCLEAR not in second.classes
