"""A text within a cap: how it ends, what its lines do, and when it states its goal's value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from recomputing.answers import boxed

from recomputing_study import facts, language

CLASSES = (
    "asked", "derived", "derived again", "checked", "checked again", "mended", "lost", "gave up",
    "answer", "loop", "other",
)  # fmt: skip

#: Lines that do the same for whomever they speak of.
PLAIN = {
    "think": "asked",
    "asked": "asked",
    "check": "checked",
    "recheck": "checked again",
    "unseen": "lost",
    "restart": "lost",
    "gave up": "gave up",
    "not known": "gave up",
    "end": "answer",
    "answer": "answer",
}
DERIVING = ("derived", "wanting", "back", "back wanting")
#: Of tokens of lines that the language does not have: they may be of any class.
UNCLEAR = "unclear"
SETTLED = re.compile(r"\b(?:First|After [A-Za-z]+|Again), ([A-Za-z]+) is (\d+)\.")
MEND = re.compile(r"Wait,(?: so| rather| in fact| instead| really)? ([A-Za-z]+) is (\d+)\b")


@dataclass(frozen=True)
class Text:
    """One run within a cap."""

    problem: str
    tokens: int
    end: str
    classes: Mapping[str, int]
    unclear: int  # tokens whose class cannot be told
    stated: tuple[tuple[int, int], ...]  # of the goal: after how many tokens, which value
    answer: int
    mends: Mapping[str, int]  # right_to_wrong and its like
    cost: Mapping[str, float]

    @property
    def solved(self) -> bool:
        """Whether it ends with the right answer."""
        return self.end == "solved"

    @property
    def cut(self) -> bool:
        """Whether its cap, or its own run's, came before its end."""
        return self.end == "cut"

    @property
    def until(self) -> int | None:
        """Tokens until the goal's value is first right; None if it never is."""
        return next((at for at, value in self.stated if value == self.answer), None)


class Reading:
    """A stored trace, to be read within caps.

    Args:
        problem: which problem it is of.
        trace: as the store has it.
    """

    def __init__(self, problem: str, trace: Mapping[str, Any]) -> None:
        self.problem, self.trace = problem, trace
        prompt = trace["prompt_bytes"]["text"]
        if trace["prompt_bytes"]["encoding"] != "utf-8":
            prompt = prompt.encode(trace["prompt_bytes"]["encoding"]).decode()
        self.goal, answer = facts.asked(prompt)
        if answer is None:
            raise ValueError(f"{problem}: its facts do not say the answer")
        self.answer = answer
        self.right = facts.values(prompt)
        pieces = trace["pieces"]
        self.raw = pieces["text"].encode(pieces["encoding"])
        self.ends = list(accumulate(pieces["lengths"]))
        self.whole = len(self.ends)
        self.ended = trace["finish"] == "eos"

    def within(self, cap: float, cost: Mapping[str, float]) -> Text:
        """The text of the first `cap` tokens.

        Args:
            cap: how many at most.
            cost: what they cost.
        """
        tokens = int(min(self.whole, cap))
        cut = self.whole > cap or not self.ended
        ends = self.ends[:tokens]
        text = self.raw[: ends[-1] if ends else 0].decode(errors="replace")
        classes, mends = self._lines(text, ends)
        if cut:
            loop = loop_at_end(self.trace["new_ids"][:tokens])
            classes[tokens - loop :] = ["loop"] * loop
        counts = Counter(classes)
        return Text(
            problem=self.problem,
            tokens=tokens,
            end=self._end(text, cut),
            classes={name: counts[name] for name in CLASSES},
            unclear=counts[UNCLEAR],
            stated=self._stated(text, ends),
            answer=self.answer,
            mends=mends,
            cost=cost,
        )

    def _end(self, text: str, cut: bool) -> str:
        if cut:
            return "cut"
        box = boxed(text)
        if box is not None and box.strip() == str(self.answer):
            return "solved"
        lines = [language.read(line).kind for line in text.split("\n\n")]
        return "gave up" if "not known" in lines else "wrong"

    def _stated(self, text: str, ends: Sequence[int]) -> tuple[tuple[int, int], ...]:
        found = []
        for one in re.finditer(rf"\b{self.goal} is (\d+)(?![\w%])", text):
            behind = len(text[: one.end()].encode())
            found.append((int(np.searchsorted(ends, behind)) + 1, int(one[1])))
        return tuple(found)

    def _lines(self, text: str, ends: Sequence[int]) -> tuple[list[str], dict[str, int]]:
        """The class of every token, and how often a mend made what of a value."""
        classes: list[str] = []
        walk = _Walk(self.right)
        at = 0
        lines = text.split("\n\n")
        for number, line in enumerate(lines):
            at += len(line.encode()) + (2 if number < len(lines) - 1 else 0)
            name = walk.line(line)
            while len(classes) < len(ends) and ends[len(classes)] <= at:
                classes.append(name)
        return classes, walk.mends


def loop_at_end(ids: Sequence[int]) -> int:
    """How many tokens at the end only repeat, exactly, what stands before them."""
    each, most = np.array(ids), 0
    for period in range(1, len(each) // 2 + 1):
        differ = np.flatnonzero(each[period:] != each[:-period])
        alike = len(each) - period - (int(differ[-1]) + 1 if len(differ) else 0)
        most = max(most, alike if alike >= period else 0)
    return most


class _Walk:
    """What was settled and checked so far, line by line."""

    def __init__(self, right: Mapping[str, int]) -> None:
        self.right = right
        self.held: dict[str, int] = {}
        self.checked: set[str] = set()
        self.wanted: set[tuple[str, str | None]] = set()
        self.mends = dict.fromkeys(("right_to_wrong", "wrong_to_right", "wrong_to_wrong"), 0)

    def line(self, line: str) -> str:
        """The class of the next line."""
        read = language.read(line)
        if read.kind in PLAIN:
            return PLAIN[read.kind]
        mend = MEND.search(line)
        if mend and mend[1] in self.right:
            self._mend(mend[1], int(mend[2]))
        name = read.name
        if name is None or read.part("settled") not in (None, name):
            for settled, value in SETTLED.findall(line):
                self.held[settled] = int(value)
            return UNCLEAR
        if read.kind in DERIVING:
            # Without a value so far it is again the same step where the same operand is wanting.
            wants = (name, read.part("wants"))
            again = name in self.held or (wants[1] is not None and wants in self.wanted)
            self.wanted.add(wants)
            self._settle(read)
            return "derived again" if again else "derived"
        if read.kind == "unfinished" or (mend and mend[1] != name):
            return "lost"
        again = name in self.checked
        self.checked.add(name)
        self._settle(read)
        return "mended" if mend else "checked again" if again else "checked"

    def _settle(self, read: language.Line) -> None:
        value = read.part("value")
        if value is not None:
            self.held[str(read.part("settled"))] = int(value)

    def _mend(self, name: str, value: int) -> None:
        known = name in self.held
        before = self.held.get(name) == self.right[name]
        after = value == self.right[name]
        self.held[name] = value
        if known and not (before and after):
            way = {(True, False): "right_to_wrong", (False, True): "wrong_to_right"}
            self.mends[way.get((before, after), "wrong_to_wrong")] += 1
