"""The reasoner's language: names, facts and questions.

Every list of surface forms has at least six entries.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """A setting: how variables are called in facts and what is counted."""

    key: str
    names: tuple[str, ...]
    phrase: str
    verb: str
    infinitive: str
    units: tuple[str, ...]

    def subject(self, name: str) -> str:
        """The name as facts and questions write it: 'the red box'."""
        return self.phrase.format(name)

    def opening(self, name: str) -> str:
        """The same at the start of a sentence: 'The red box'."""
        subject = self.subject(name)
        return subject[0].upper() + subject[1:] if self.phrase != "{}" else subject


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


THEMES = (
    Theme(
        "people",
        _names(
            "Anna Ben Carl Dora Emil Fay Gus Hana Ivan Jane Karl Lena Max Nora Otto Paul Rosa "
            "Sam Tina Uma Vera Walt Xena Yuri Zoe Alan Beth Cleo Dirk Ella Finn Greta Hugo "
            "Iris Jack Kate"
        ),
        "{}",
        "has",
        "have",
        ("apples", "coins", "books"),
    ),
    Theme(
        "shops",
        _names(
            "pear plum bread milk soup cake lamp chair vase knife spoon plate towel shirt "
            "scarf hat shoe belt ring clock pen brush rope drum flute kite doll ball bowl jar "
            "mug basket ladder hammer saw broom"
        ),
        "the {}",
        "costs",
        "cost",
        ("coins", "euros", "tokens"),
    ),
    Theme(
        "boxes",
        _names(
            "red blue green black white brown pink grey gold silver violet orange yellow "
            "ivory olive amber coral navy teal beige copper maroon lilac mint ruby sand rose "
            "lemon peach cream steel bronze cherry jade pearl rust"
        ),
        "the {} box",
        "holds",
        "hold",
        ("stones", "marbles", "beads"),
    ),
    Theme(
        "journeys",
        _names(
            "Oslo Rome Paris Cairo Lima Delhi Tokyo Quito Dakar Accra Sofia Riga Turin Lyon "
            "Porto Split Basel Bonn Kiel Graz Ghent Leeds Perth Osaka Kyoto Hanoi Seoul Tunis "
            "Malmo Bergen Vilnius Tallinn Zagreb Geneva Milan Naples"
        ),
        "{}",
        "takes",
        "take",
        ("hours", "days", "stops"),
    ),
)

# {X} opens the sentence with the subject of the fact, {y} and {z} are other subjects, {n} a number,
# {u} the unit. Facts begin with what they define: a form that ends with it ("Add 3 to the pear for
# the lamp.") must be read by another circuit, and a model this small learnt both too slowly.
FACTS: dict[str, tuple[str, ...]] = {
    "given": (
        " {X} {has} {n} {u}.",
        " {X} {has} exactly {n}.",
        " {X} surely {has} {n}.",
        " {X} {has} just {n} {u}.",
        " {X} only {has} {n}.",
        " {X} {has} {n} {u} in all.",
    ),
    "plus": (
        " {X} {has} {n} more than {y}.",
        " {X} {has} {n} {u} above {y}.",
        " {X} {has} what {y} {has} and {n} extra.",
        " {X} tops {y} by {n}.",
        " {X} {has} {n} on top of {y}.",
        " {X} goes {n} {u} beyond {y}.",
    ),
    "minus": (
        " {X} {has} {n} less than {y}.",
        " {X} {has} {n} {u} below {y}.",
        " {X} {has} what {y} {has} but {n} short.",
        " {X} trails {y} by {n}.",
        " {X} {has} {n} under {y}.",
        " {X} falls {n} {u} short of {y}.",
    ),
    "twice": (
        " {X} {has} twice what {y} {has}.",
        " {X} {has} double the {u} of {y}.",
        " {X} {has} two times {y}.",
        " {X} doubles {y}.",
        " {X} is twice {y}.",
        " {X} {has} as much as two of {y}.",
    ),
    "sum": (
        " {X} {has} as much as {y} and {z} together.",
        " {X} {has} the sum of {y} and {z}.",
        " {X} joins {y} with {z}.",
        " {X} adds {y} to {z}.",
        " {X} {has} both {y} and {z}.",
        " {X} equals {y} and {z} combined.",
    ),
    "diff": (
        " {X} {has} as much as {y} without {z}.",
        " {X} {has} the rest of {y} after {z}.",
        " {X} is {y} with {z} removed.",
        " {X} {has} what {y} leaves over {z}.",
        " {X} equals {y} less {z}.",
        " {X} {has} the gap from {y} to {z}.",
    ),
}

# The same facts in more words, for levels that tell a fact twice.
MORE_FACTS: dict[str, tuple[str, ...]] = {
    "given": (
        " {X} {has} a total of {n}.",
        " {X} {has} {n} {u} altogether.",
        " {X} comes to {n}.",
        " {X} stands at {n} {u}.",
        " {X} never {has} other than {n}.",
        " {X} reaches {n} {u}.",
    ),
    "plus": (
        " {X} beats {y} by {n}.",
        " {X} exceeds {y} by {n} {u}.",
        " {X} comes to {y} plus {n}.",
        " {X} stays {n} ahead of {y}.",
        " {X} lies {n} {u} over {y}.",
        " {X} passes {y} with {n} to spare.",
    ),
    "minus": (
        " {X} lags {y} by {n}.",
        " {X} misses {y} by {n} {u}.",
        " {X} comes to {y} minus {n}.",
        " {X} stays {n} behind {y}.",
        " {X} lies {n} {u} beneath {y}.",
        " {X} lacks {n} to reach {y}.",
    ),
    "twice": (
        " {X} comes to {y} times two.",
        " {X} counts {y} two times over.",
        " {X} matches two of {y}.",
        " {X} stands at {y} doubled.",
        " {X} reaches double {y}.",
        " {X} {has} {y} and as much again.",
    ),
    "sum": (
        " {X} comes to {y} plus {z}.",
        " {X} unites {y} and {z}.",
        " {X} merges {y} with {z}.",
        " {X} counts {y} along with {z}.",
        " {X} matches {y} and {z} taken together.",
        " {X} reaches {y} and {z} added up.",
    ),
    "diff": (
        " {X} comes to {y} minus {z}.",
        " {X} counts {y} except {z}.",
        " {X} keeps of {y} what {z} spares.",
        " {X} matches {y} once {z} is gone.",
        " {X} reaches {y} cut by {z}.",
        " {X} stands at {y} with {z} taken off.",
    ),
}

QUESTIONS = (
    "How many {u} does {x} {have}?",
    "What number of {u} does {x} {have}?",
    "Tell how many {u} {x} {has}.",
    "Find the number of {u} that {x} {has}.",
    "Say how many {u} {x} must {have}.",
    "Work out what {x} {has} in {u}.",
)
INTROS = (
    "Here is a list of facts.",
    "Read these facts.",
    "The following is known.",
    "These facts are given.",
    "Someone wrote this down.",
    "Think about these facts.",
)
