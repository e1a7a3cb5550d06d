"""Retrieval problems: facts with numbers at known depths of a text that is made up.

`needles` asks for one number, `needles(kind="chain")` for the registers that hold a value, most of
them through others, as RULER's variable tracking does (Hsieh et al., 2024, arXiv 2404.06654), but
with a second chain: no number is right by being the only one. Facts do not depend on the length.
"""

from __future__ import annotations

import random
import re
from bisect import bisect
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from attention.errors import InvalidValue
from attention.spec import Spec, parse
from experiments.grid import schema
from experiments.grid.comparison import compare, read
from experiments.reasoner.words import THEMES

NAME = "needles"
#: How many problems there are, and per cent of a text whose facts reports take together.
PROBLEMS, PART = 1_000, 20
#: Characters of a token where no tokenizer is known, as usual ones have of these texts.
_CHARACTERS = 4.8
#: Filler has no digits, and none of the words that facts and questions are made of.
_FILLER = (
    "quiet|narrow|early|gentle|distant|plain|heavy|pale|tidy|hollow|patient|old",
    "farmer|baker|sailor|tailor|teacher|painter|gardener|miller|potter|weaver",
    "walked past|looked after|thought about|came back to|wrote about|drew a map of",
    "garden|river|window|market|orchard|harbour|valley|kitchen|meadow|bridge|chapel|terrace",
    "before the rain came|while the others slept|as the days grew shorter|on the way home"
    "|long after the harvest|when the lamps were lit|without a word to the neighbours",
)


class NeedleProblem(NamedTuple):
    """A problem of at most `tokens` tokens: facts with their depths in per cent, in order."""

    id: str
    facts: list[tuple[int, str]]
    question: str
    answer: str
    tokens: int

    @property
    def columns(self) -> dict[str, str]:
        """The problem as a row of a data set, with a length by characters."""
        text = self.fit(lambda text: round(len(text) / _CHARACTERS))
        return {"question": text, "answer": self.answer, "id": self.id}

    def fit(self, size: Callable[[str], int]) -> str:
        """The text with the most filler, `size` of which is at most `tokens`."""
        draw, words = random.Random(self.id + self.question), [x.split("|") for x in _FILLER]

        def sentence() -> str:
            old, who, did, where, when = map(draw.choice, words)
            deed = f"the {old} {who} {did} the {draw.choice(words[0])} {where}"
            text = draw.choice((f"{deed} {when}.", f"{when}, {deed}."))
            return text[0].upper() + text[1:]

        filler = [sentence() for _ in range(self.tokens // 10)]  # of more than ten words

        def text(count: int) -> str:
            lines = filler[:count]
            for depth, fact in reversed(self.facts):
                lines.insert(depth * count // 100, fact)
            return f"Read this text.\n\n{' '.join(lines)}\n\n{self.question}"

        count = bisect(range(len(filler)), self.tokens, key=lambda at: size(text(at))) - 1
        if count < 0:
            raise InvalidValue("tokens", self.tokens, f"{size(text(0)):,} for the facts alone")
        return text(count)


class Needles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Problems of one kind and length; `count`: facts that an answer needs, 1 or a chain of 5."""

    kind: Literal["number", "chain"] = "number"
    count: Annotated[int, Meta(ge=1, le=16)] | None = None
    tokens: Annotated[int, Meta(ge=256, le=1 << 20)] = 4096
    seed: schema.Natural = 0

    @classmethod
    def of(cls, name: str) -> Needles:
        """The problems that a name asks for."""
        params = dict(parse(name, "dataset", f"{NAME}(count=4)").params)
        allowed = 'kind="number" or "chain", count to 16, tokens from 256 to 1,048,576, seed'
        needles: Needles = schema.typed(cls, allowed)(f"parameters of {NAME}", params)
        return needles

    def __str__(self) -> str:
        return str(Spec(NAME, msgspec.to_builtins(self)))

    def problem(self, index: int) -> NeedleProblem:
        """Problem `index`, from 0; the parts of the text take turns from one to the next."""
        n = self.count or (1 if self.kind == "number" else 5)
        draw = random.Random(f"{NAME}/{self.kind}/{n}/{self.seed}/{index}")
        depths = [(index + at) * PART % 100 + draw.randrange(PART) for at in range(n)]
        people = draw.sample(THEMES[0].names, 2 * n + 2)
        numbers = [str(number) for number in draw.sample(range(10**6, 10**7), 2 * n + 2)]
        if self.kind == "number":
            facts = [f"The number of {a} is {b}." for a, b in zip(people, numbers, strict=True)]
            question = f"What is the number of {' and of '.join(people[:n])}?"
        else:
            *names, value, other = numbers
            held = [f"what register {name} holds" for name in names[:-1]]
            held = [value, *held[: n - 1], other, *held[n:]]
            facts = [f"Register {a} holds {b}." for a, b in zip(names, held, strict=True)]
            question = f"Which registers hold {value}, by themselves or through other registers?"
            depths.sort()
        question += " Give all the numbers, with commas between them." if n > 1 else ""
        id_ = f"{index}@{','.join(map(str, depths))}"
        depths += [draw.randrange(100) for _ in facts[n:]]
        placed = sorted(zip(depths, facts, strict=True), key=lambda fact: fact[0])
        return NeedleProblem(id_, placed, question, ", ".join(numbers[:n]), self.tokens)


def is_named(name: str) -> bool:
    """Whether a data set is one of these."""
    return name.partition("(")[0].strip() == NAME


def needles_in_answer(item_id: str, gold: str | None, answer: str | None) -> list[tuple[int, bool]]:
    """The depth in per cent of each needle, and whether it is one of several in an answer."""
    depths, golds = re.findall(r"\d\d?", item_id.partition("@")[2]), (gold or "").split(", ")
    members = read(answer or "").members
    items = () if len(golds) == 1 or answer is None else members.items if members else (answer,)
    there = [any(compare(item, needle).same for item in items) for needle in golds]
    return [*zip(map(int, depths), there, strict=False)]
