"""What one output of the reasoner is made of, at any cap: every token in one class.

The lines are those of `experiments.reasoner.judge`; here a text is cut at a cap first, its exact
loop at the end is a class of its own, and what no line of the language begins is "other".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.reasoner import Problem
from experiments.reasoner.judge import LINE_KINDS, LOOP, read
from experiments.store.samples.repetition import exact

End = Literal["solved", "cut", "gave up", "wrong"]
OTHER = "other"
#: "asked" is the question restated before the answer.
CLASSES = (*(kind for kind in LINE_KINDS if kind != "unknown"), LOOP, OTHER)


@dataclass(frozen=True)
class TextReading:
    """An output under a cap.

    Args:
        tokens: of it.
        end: how it ends; what the cap cuts is unsolved, whatever it says.
        classes: tokens by class; they sum to `tokens`.
        first_right: tokens until the goal's value is first stated right; None where it never is
            before the text ends or is cut.
        first_value, last_value: the goal's value as first and as last stated.
        first_is_right, last_is_right: whether these are the answer.
        right_to_wrong, wrong_to_right, wrong_to_wrong: values that a check changed.
        first_stated: tokens until the goal's value is first stated, right or wrong; None as above.
    """

    tokens: int
    end: End
    classes: Mapping[str, int]
    first_right: int | None
    first_value: int | None
    last_value: int | None
    first_is_right: bool
    last_is_right: bool
    right_to_wrong: int
    wrong_to_right: int
    wrong_to_wrong: int
    first_stated: int | None

    @property
    def solved(self) -> bool:
        """Whether it ends with the right answer."""
        return self.end == "solved"

    @property
    def after(self) -> int | None:
        """Tokens after the goal's value is first right; None where it never is."""
        return None if self.first_right is None else self.tokens - self.first_right


def read_text(
    problem: Problem, pieces: Sequence[bytes], *, ended: bool, cap: int | None = None
) -> TextReading:
    """An output's reading.

    Args:
        problem: what it was asked.
        pieces: the bytes of its tokens, `eos` among them.
        ended: whether it ended by itself.
        cap: most tokens that count; None for all.
    """
    longer = cap is not None and len(pieces) > cap
    cut, kept = longer or not ended, pieces[:cap] if longer else pieces
    reading = read(problem, kept)
    counted = reading.by_kind(exact(kept) if cut else 0)  # type: ignore[arg-type]
    end: End = "cut" if cut else "solved" if reading.solved else "wrong"
    if end == "wrong" and reading.gave_up:
        end = "gave up"
    return TextReading(
        tokens=reading.tokens,
        end=end,
        classes={one: counted["unknown" if one == OTHER else one] for one in CLASSES},
        first_right=reading.first_right_at,
        first_value=reading.first_stated,
        last_value=reading.last_stated,
        first_is_right=str(reading.first_stated) == problem.answer,
        last_is_right=str(reading.last_stated) == problem.answer,
        right_to_wrong=reading.right_to_wrong,
        wrong_to_right=reading.wrong_to_right,
        wrong_to_wrong=reading.wrong_to_wrong,
        first_stated=reading.first_stated_at,
    )
