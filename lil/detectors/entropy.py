"""Entropy: what the model would say behind its thinking is settled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attention.errors import check_choice, check_int, check_number
from lil.detectors.base.asking import Asking, Trial


@dataclass(frozen=True)
class Entropy(Asking):
    """Stops where the entropy of a trial answer no longer changes, or is low.

    EAT (Wang et al., arXiv 2509.26522): of the entropies x, in nats, of the token behind the end of
    thinking a moving mean m is at first x, then (1 - alpha) m + alpha x; a variance v is at first
    0, then (1 - alpha) v + alpha (x - m)^2 with the new m. From the `least`-th x on it stops where
    v < `below`; with `measure="mean"` where m is: at alpha and `least` 1 much as HALT-CoT, whose
    entropy is of whole answers, twice in a row. Of several tokens x is the mean. Both have bits.

    Args:
        measure: "variance" or "mean".
        below: what is low enough, in nats, or their square; 0 never is.
        alpha: share of the newest number, above 0 and at most 1.
        least: numbers before a verdict; EAT's code, at temperature 0.6, has 4 / alpha + 2.
        cue, at, words, tokens, on_stop, and errors: see `Asking`.
    """

    cue: str = "</think>\n"
    at: str | int = "chunk"
    tokens: int = 1
    measure: str = "variance"
    below: float = 1e-4
    alpha: float = 0.2
    least: int = 22

    name: ClassVar[str] = "entropy"
    ladder = ("below", (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0))
    never: ClassVar[float] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("measure", self.measure, ("variance", "mean"))
        check_number("below", self.below, "a number of at least 0", least=0)
        check_number("alpha", self.alpha, "a number above 0, at most 1", above=0, most=1)
        check_int("least", self.least, 1)

    def number(self, trial: Trial) -> float:
        return math.fsum(trial.entropies) / len(trial.entropies)

    def evidence(self, numbers: Sequence[float]) -> dict[str, float]:
        mean, variance = numbers[0], 0.0
        for x in numbers[1:]:
            mean = (1 - self.alpha) * mean + self.alpha * x
            variance = (1 - self.alpha) * variance + self.alpha * (x - mean) ** 2
        state = {"entropy": numbers[-1], "mean": mean, "variance": variance, "asked": len(numbers)}
        enough = len(numbers) >= self.least and state[self.measure] < self.below
        return {**state, "below": self.below} if enough else {}
