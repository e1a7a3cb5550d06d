"""Random streams with repetition in them, and batches of them as `generate()` would show them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


def noise(rng: random.Random, V: int, n: int) -> list[int]:
    """Every token alike."""
    return [rng.randrange(V) for _ in range(n)]


def few(rng: random.Random, V: int, n: int) -> list[int]:
    """Two to four different tokens."""
    alphabet = rng.sample(range(V), min(V, rng.randint(2, 4)))
    return [rng.choice(alphabet) for _ in range(n)]


def periodic(rng: random.Random, V: int, n: int) -> list[int]:
    """One block over and over, here and there another token."""
    block = noise(rng, V, rng.randint(1, 60))
    wrong = rng.choice((0, 0, 0.02, 0.1))
    return [rng.randrange(V) if rng.random() < wrong else block[i % len(block)] for i in range(n)]


def copied(rng: random.Random, V: int, n: int) -> list[int]:
    """Fresh tokens and chunks copied from anywhere before, which may run on into themselves."""
    tokens = noise(rng, V, 1)
    while len(tokens) < n:
        if rng.random() < 0.5:
            tokens += noise(rng, V, rng.randint(1, 4))
        else:
            distance = rng.randint(1, len(tokens))
            for _ in range(rng.randint(1, 50)):
                tokens.append(tokens[len(tokens) - distance])
    return tokens[:n]


KINDS: tuple[Callable[[random.Random, int, int], list[int]], ...] = (noise, few, periodic, copied)


def stream(rng: random.Random, V: int, n: int) -> list[int]:
    """n tokens below V, of one kind or of two one after the other."""
    first = rng.choice((n, rng.randint(0, n)))
    return rng.choice(KINDS)(rng, V, first) + rng.choice(KINDS)(rng, V, n - first)


@dataclass(frozen=True)
class Batch:
    """Ragged rows, decoded a token at a time; a row may end before others.

    `padding` fills prompts on the left and ended rows. With None no row ends early, and a mask
    knows padding, which has the id 0.
    """

    prompts: list[list[int]]
    new: list[list[int]]
    padding: int | None

    @property
    def steps(self) -> int:
        """Calls after the first."""
        return max(len(row) for row in self.new)

    @property
    def width(self) -> int:
        """Columns of the padded prompts."""
        return max(len(row) for row in self.prompts)

    def mask(self) -> list[list[int]]:
        """1 at the prompts' tokens, 0 at padding."""
        return [[0] * (self.width - len(row)) + [1] * len(row) for row in self.prompts]

    def ids(self, step: int) -> list[list[int]]:
        """The rows after `step` generated tokens, padded."""
        fill = self.padding or 0
        return [
            [fill] * (self.width - len(prompt)) + prompt + new[:step] + [fill] * (step - len(new))
            for prompt, new in zip(self.prompts, self.new, strict=True)
        ]

    def histories(self, step: int, include_prompt: bool) -> list[list[int]]:
        """What a penalty should see of each row."""
        rows = zip(self.prompts, self.new, strict=True)
        return [(prompt if include_prompt else []) + new[:step] for prompt, new in rows]


def batch(rng: random.Random, V: int, longest: int, rows: int, steps: int) -> Batch:
    """`rows` streams of up to `longest` prompt tokens and `steps` generated ones."""
    padding = rng.choice((None, 0, V, V + 3))
    streams = []
    for _ in range(rows):
        tokens = stream(rng, V - 1 if padding == 0 else V, rng.randint(1, longest) + steps)
        streams.append([token + 1 for token in tokens] if padding == 0 else tokens)
    new = [row[len(row) - steps :] for row in streams]
    if padding is not None:
        new = [row[: rng.choice((steps, rng.randint(1, steps)))] for row in new]
    return Batch([row[: len(row) - steps] for row in streams], new, padding)
