"""Multi-step dependency problems in words: a pure function of (level, split, index)."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from attention.errors import InvalidValue

from . import words

Kind = Literal["given", "plus", "minus", "twice", "sum", "diff"]

DATA_VERSION = 1
SPLITS = ("train", "test", "study", "heldout")


@dataclass(frozen=True)
class Recipe:
    """What problems of a level are made of."""

    steps: tuple[int, int]
    distractors: int
    rivals: int = 0
    retold: float = 0.0


RECIPES = {
    "easy": Recipe((2, 4), 2),
    "medium": Recipe((5, 8), 3),
    "hard": Recipe((11, 16), 4),
    "retold": Recipe((5, 8), 5, 2, retold=0.75),
    "long": Recipe((17, 24), 4, 1, retold=0.5),
}
#: What the shipped model was made for.
LEVELS = ("easy", "medium", "hard")
_MAX_VALUE = 60
# A problem belongs to the split its own text hashes to, so no two splits can share one.
_BUCKETS = {"test": range(5), "study": range(5, 10), "heldout": range(10, 15)}


@dataclass(frozen=True)
class Fact:
    """`name` is given (`number`), or computed from `operands` and perhaps `number`."""

    name: str
    kind: Kind
    operands: tuple[str, ...]
    number: int | None
    sentence: str  # as the prompt states it, with its leading space
    again: str | None = None  # as it states it once more, further on

    @property
    def tellings(self) -> tuple[str, ...]:
        """The sentences that state it, in the order of the prompt."""
        return (self.sentence,) if self.again is None else (self.sentence, self.again)


@dataclass(frozen=True)
class Problem:
    """One problem: facts in the order of the prompt, the question and its answer.

    `steps` counts the computations the answer needs (given facts and distractors do not count).
    """

    id: str
    level: str
    facts: tuple[Fact, ...]
    goal: str
    answer: str
    steps: int
    prompt: str

    @cached_property
    def fact_of(self) -> dict[str, Fact]:
        """Facts by the name they define."""
        return {fact.name: fact for fact in self.facts}


def problem(level: str, split: str, index: int) -> Problem:
    """The `index`-th problem of a level and split."""
    if level not in RECIPES:
        raise InvalidValue("level", level, f"one of {', '.join(RECIPES)}", list(RECIPES))
    if split not in SPLITS:
        raise InvalidValue("split", split, f"one of {', '.join(SPLITS)}", SPLITS)
    if index < 0:
        raise InvalidValue("index", index, "0 or more")
    rng = random.Random(f"reasoner/{DATA_VERSION}/{level}/{split}/{index}")
    recipe = RECIPES[level]
    while True:
        # Shorter ones more often.
        steps = min(rng.randint(*recipe.steps), rng.randint(*recipe.steps))
        candidate = generate(rng, steps, recipe, f"{level}/{split}/{index}", level)
        if split_of(candidate.prompt) == split:
            return candidate


def split_of(prompt: str) -> str:
    """The split that owns a prompt, by the hash of its text."""
    bucket = hashlib.sha256(prompt.encode()).digest()[0] % 100
    return next((split for split, owned in _BUCKETS.items() if bucket in owned), "train")


def generate(
    rng: random.Random, steps: int, recipe: Recipe, problem_id: str, level: str
) -> Problem:
    """Draw a problem with exactly `steps` needed computations, and the rest as the recipe says."""
    while True:
        theme = rng.choice(words.THEMES)
        unit = rng.choice(theme.units)
        names = list(theme.names)
        rng.shuffle(names)
        drawn = _Drawn(rng, names)
        try:
            goal = drawn.needed(steps)
            needed = list(drawn.made)
            for _ in range(recipe.distractors):
                drawn.distractor()
            for _ in range(recipe.rivals):
                drawn.rival(needed)
        except _OutOfNamesError:
            continue
        break

    def tell(fact: Fact, form: str) -> str:
        return form.format(
            X=theme.opening(fact.name),
            y=theme.subject(fact.operands[0]) if fact.operands else "",
            z=theme.subject(fact.operands[1]) if len(fact.operands) > 1 else "",
            n=fact.number,
            u=unit,
            has=theme.verb,
        )

    facts = []
    for name, (kind, operands, number) in drawn.made.items():
        forms = words.FACTS[kind] + (words.MORE_FACTS[kind] if recipe.retold else ())
        fact = Fact(name, kind, operands, number, "")
        form = rng.choice(forms)
        again = None
        if recipe.retold and rng.random() < recipe.retold:
            again = tell(fact, rng.choice([other for other in forms if other != form]))
        facts.append(replace(fact, sentence=tell(fact, form), again=again))
    rng.shuffle(facts)
    sentences = [fact.sentence for fact in facts]
    if recipe.retold:
        sentences, facts = _tell_again(rng, facts)
    question = rng.choice(words.QUESTIONS).format(
        x=theme.subject(goal), u=unit, has=theme.verb, have=theme.infinitive
    )
    prompt = f"{rng.choice(words.INTROS)}{''.join(sentences)}\n{question}\n\n"
    answer = str(drawn.values[goal])
    return Problem(problem_id, level, tuple(facts), goal, answer, steps, prompt)


def _tell_again(rng: random.Random, facts: list[Fact]) -> tuple[list[str], list[Fact]]:
    """All tellings, shuffled, and the facts with theirs in that order."""
    tellings = [(fact.name, sentence) for fact in facts for sentence in fact.tellings]
    rng.shuffle(tellings)
    of: dict[str, list[str]] = {fact.name: [] for fact in facts}
    for name, sentence in tellings:
        of[name].append(sentence)
    ordered = [
        replace(fact, sentence=of[fact.name][0], again=(*of[fact.name], None)[1]) for fact in facts
    ]
    return [sentence for _, sentence in tellings], ordered


class _OutOfNamesError(Exception):
    """A theme has fewer names than were drawn."""


class _Drawn:
    """Facts drawn so far with their values; every value stays within 1..60."""

    def __init__(self, rng: random.Random, names: list[str]) -> None:
        self.rng, self.names = rng, names
        self.values: dict[str, int] = {}
        self.made: dict[str, tuple[Kind, tuple[str, ...], int | None]] = {}

    def _add(self, kind: Kind, operands: tuple[str, ...], number: int | None, value: int) -> str:
        if not self.names:
            raise _OutOfNamesError
        name = self.names.pop()
        self.made[name] = (kind, operands, number)
        self.values[name] = value
        return name

    def leaf(self) -> str:
        number = self.rng.randint(2, 20)
        return self._add("given", (), number, number)

    def needed(self, steps: int) -> str:
        """A variable that takes exactly `steps` computations, built from the leaves upwards."""
        rng = self.rng
        # Loose ends are computed variables nobody uses yet; at the end one must be left: the goal.
        loose = [self.leaf()]
        for done in range(steps):
            left = steps - done
            kind = rng.choices(("plus", "minus", "twice", "sum", "diff"), (34, 31, 14, 12, 9))[0]
            if len(loose) >= left and len(loose) > 1:  # join now or never
                kind = rng.choice(("sum", "diff"))
            if kind in ("sum", "diff"):
                first = loose.pop(rng.randrange(len(loose)))
                if loose and (rng.random() < 0.5 or len(loose) >= left):
                    second = loose.pop(rng.randrange(len(loose)))
                elif len(self.values) > 1 and rng.random() < 0.6:
                    second = rng.choice([n for n in self.values if n != first])
                else:
                    second = self.leaf()
                loose.append(self._binary(first, second, kind == "sum"))
            else:
                if left > len(loose) + 2 and rng.random() < 0.08:
                    loose.append(self.leaf())  # a second branch, joined later
                source = loose.pop(rng.randrange(len(loose)))
                loose.append(self._unary(source, kind))
        assert len(loose) == 1
        return loose[0]

    def _unary(self, source: str, kind: str) -> str:
        value = self.values[source]
        if kind == "twice" and value * 2 <= _MAX_VALUE:
            return self._add("twice", (source,), None, value * 2)
        number = self.rng.randint(1, 9)
        fits_plus, fits_minus = value + number <= _MAX_VALUE, value - number >= 1
        if fits_plus and (kind == "plus" or not fits_minus):
            return self._add("plus", (source,), number, value + number)
        return self._add("minus", (source,), number, value - number)

    def _binary(self, first: str, second: str, add: bool) -> str:
        a, b = self.values[first], self.values[second]
        if (add and a + b <= _MAX_VALUE) or a == b:
            if a + b <= _MAX_VALUE:
                return self._add("sum", (first, second), None, a + b)
            # Equal and too large to add: their gap is 0, which the range allows here alone.
            return self._add("diff", (first, second), None, 0)
        if a < b:
            first, second, a, b = second, first, b, a
        return self._add("diff", (first, second), None, a - b)

    def rival(self, needed: list[str]) -> str:
        """A fact nobody needs that reads like a needed one up to its number or second operand."""
        computed = [self.made[name] for name in needed if self.made[name][1]]
        kind, operands, _ = self.rng.choice(computed)
        if len(operands) == 1:
            return self._unary(operands[0], self.rng.choice(("plus", "minus")))
        second = self.rng.choice([n for n in self.values if n not in operands])
        return self._binary(operands[0], second, kind == "sum")

    def distractor(self) -> str:
        if self.rng.random() < 0.4:
            return self.leaf()
        source = self.rng.choice(list(self.values))
        return self._unary(source, self.rng.choice(("plus", "minus", "twice")))
