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
    "unseen": "lost",
    "restart": "lost",
    "gave up": "gave up",
    "not known": "gave up",
    "end": "answer",
    "answer": "answer",
}
#: Lines that open a pass of checks.
PASSES = ("check", "recheck")
#: Of tokens of lines that the language does not have: they may be of any class.
UNCLEAR = "unclear"
#: What settles a value, or mends one.
STATING = re.compile(
    r" (?:(?P<mend>Wait,(?: so| rather| in fact| instead| really)?)"
    r"|(?:First|After [A-Za-z]+|Again),)"
    r" (?P<name>[A-Za-z]+) is (?P<value>\d+)(?:\.|\Z)"
)
#: An operand that is not known, and not guessed.
LACKS = re.compile(rf" ({language.NAME}) is {language.NOT_KNOWN}(?!, guess)")
#: What only a check does: it computes again, and finds right or wrong.
JUDGES = re.compile(
    r"(?:\d|twice),? (?:makes|gives|is|yields|means|equals) \d+"
    r"| (?:right|good|fine|correct|yes|agreed|wrong|bad|off|false|no|mistaken)\b"
)
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
            start = text.rfind("\n", 0, one.start()) + 1
            line = text[start:].partition("\n")[0]
            if one.start() - start < language.quoted(line):
                continue
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
    """What was settled and checked so far, line by line, as `docs/study/classes.md` has it."""

    def __init__(self, right: Mapping[str, int]) -> None:
        self.right = right
        self.held: dict[str, int] = {}
        self.checked: set[str] = set()
        self.waiting: dict[str, str] = {}
        self.lacked: set[tuple[str, str]] = set()
        self.passes = 0
        self.mends = dict.fromkeys(("right_to_wrong", "wrong_to_right", "wrong_to_wrong"), 0)

    def line(self, line: str) -> str:
        """The class of the next line."""
        read = language.read(line)
        if read.kind in PLAIN:
            return PLAIN[read.kind]
        if read.kind in PASSES:
            self.passes += 1
            return "checked" if self.passes == 1 else "checked again"
        head = language.head(line)
        mend = MEND.search(line)
        said = {read.part("settled"), mend[1] if mend else None} - {None}
        whole = read.name is not None and said <= {read.name}
        name = UNCLEAR
        if head is not None:
            name = self._of(*head, line, read if whole else None, mends=mend is not None)
        self._state(line)
        return name

    def _of(
        self, kind: str, name: str, line: str, read: language.Line | None, *, mends: bool
    ) -> str:
        """The class of a line that begins as one does.

        Args:
            kind: how it begins.
            name: whom it speaks of.
            line: all of it.
            read: what it is; None for a line that the language does not have.
            mends: it replaces a value.
        """
        lacks = LACKS.search(line, language.quoted(line))
        judges = mends or bool(JUDGES.search(line))
        if kind == "question" or (kind == "back" and (name in self.waiting or judges)):
            again = "checked again" if name in self.checked else "checked"
            again = self.waiting.pop(name, again)
            if lacks:
                self.waiting[name] = again
            if kind == "question":
                self.checked.add(name)
            return UNCLEAR if read is None else "mended" if mends else again
        if read is None:
            return UNCLEAR
        again = name in self.held
        if lacks:
            again |= (name, lacks[1]) in self.lacked
            self.lacked.add((name, lacks[1]))
        return "derived again" if again else "derived"

    def _state(self, line: str) -> None:
        """Take what a line settles and mends, in the order in which it says so."""
        for said in STATING.finditer(line, language.quoted(line)):
            name, value = said["name"], int(said["value"])
            if said["mend"] and name in self.held and name in self.right:
                before = self.held[name] == self.right[name]
                after = value == self.right[name]
                way = {(True, False): "right_to_wrong", (False, True): "wrong_to_right"}
                if not (before and after):
                    self.mends[way.get((before, after), "wrong_to_wrong")] += 1
            self.held[name] = value
