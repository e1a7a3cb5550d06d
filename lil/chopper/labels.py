"""Which chunks of a finished trace are word salad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention.errors import InvalidValue
from lil.chopper.embedders import Embedder, TextMatch


@dataclass(frozen=True)
class Labeller:
    """Marks a trace's chopping point, after the Word Salad Chopper's curation (section 3.1).

    A chunk is a repeat if its embedding's cosine with one of the `window` chunks before it is at
    least `similarity`. The first run of `run` repeats marks the chopping point: every chunk before
    it is sound (0), that run and everything after it is word salad (1).

    Where the paper is silent: a blank chunk is a chunk, and similar to other blank ones.

    Args:
        embedder: what makes two chunks similar; without one, `TextMatch`, which needs no model.
        similarity: least cosine of a repeat, 0 to 1.
        window: chunks before a chunk that it is compared with.
        run: repeats in a row that mark the chopping point.

    Raises:
        InvalidValue: a value outside its range.
    """

    embedder: Embedder = field(default_factory=TextMatch)
    similarity: float = 0.99
    window: int = 100
    run: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise InvalidValue("similarity", self.similarity, "a cosine above 0, at most 1")
        for name, value in (("window", self.window), ("run", self.run)):
            if value < 1:
                raise InvalidValue(name, value, "at least 1 chunk")

    def params(self) -> dict[str, Any]:
        """The parameters, JSON-able."""
        return {
            "embedder": {"name": self.embedder.name, **self.embedder.params()},
            "similarity": self.similarity,
            "window": self.window,
            "run": self.run,
        }

    def repeats(self, texts: Sequence[str]) -> list[bool]:
        """Of each chunk whether it repeats one of those before it."""
        if not texts:
            return []  # models cannot be asked for no vectors at all
        vectors = self.embedder.embed(texts)
        # Equal texts have a cosine of 1 but for rounding.
        least = self.similarity - 1e-9
        found = []
        for i in range(len(texts)):
            before = vectors[max(0, i - self.window) : i]
            found.append(bool(len(before) and np.max(before @ vectors[i]) >= least))
        return found

    def salad_from(self, texts: Sequence[str]) -> int | None:
        """The first chunk that is word salad; None where none is.

        Args:
            texts: a trace's chunks, in order.
        """
        in_a_row = 0
        for i, repeats in enumerate(self.repeats(texts)):
            in_a_row = in_a_row + 1 if repeats else 0
            if in_a_row == self.run:
                return i - self.run + 1
        return None
