"""Penalties compared with their oracles over random streams.

A penalty is given by name to a `build` function, so that nothing of the package is imported here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.lil.oracles import (
    dry,
    frequency,
    lz_penalty,
    no_repeat_ngram,
    nowait,
    presence,
    presence_window,
    repetition,
)
from tests.lil.oracles.streams import Batch, batch

Build = Callable[..., Any]

PENALISE: dict[str, Callable[..., list[float]]] = {
    "dry": dry.penalise,
    "frequency": frequency.penalise,
    "lz": lz_penalty.penalise,
    "no_repeat_ngram": no_repeat_ngram.penalise,
    "nowait": nowait.penalise,
    "presence": presence.penalise,
    "presence_window": presence_window.penalise,
    "repetition": repetition.penalise,
}
KINDS = ("lz derived", "lz printed", "lz rate", *sorted(PENALISE.keys() - {"lz"}))
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}


def draw(kind: str, rng: random.Random, V: int) -> dict[str, Any]:
    """Random parameters of a penalty, its default sizes now and then."""
    if kind.startswith("lz"):
        buffer = rng.choice((1, 2, 3, rng.randint(1, 40), 32))
        window = rng.choice((rng.randint(1, 20), rng.randint(1, 600), 512))
        if kind == "lz rate":
            window = max(window, buffer + 1)  # there the window is the ring and holds the buffer
        exempt = rng.sample(range(V + 5), rng.choice((0, 0, 1, 5)))
        formula = kind.removeprefix("lz ")
        sizes = {"window": window, "buffer": buffer}
        return {"alpha": rng.uniform(0.05, 1), **sizes, "formula": formula, "exempt": exempt}
    if kind == "repetition":
        return {"penalty": rng.choice((0.7, 1.2, 3.0))}
    if kind == "no_repeat_ngram":
        return {"ngram_size": rng.choice((1, 2, 3, 5, 20))}
    if kind == "nowait":
        return {"words": (), "tokens": rng.sample(range(V + 5), rng.randint(1, 4))}
    if kind == "dry":
        allowed = rng.randint(1, 4)
        return {
            "multiplier": rng.uniform(0.1, 2),
            "base": rng.uniform(1, 2),
            "allowed_length": allowed,
            "sequence_breakers": rng.sample(range(V), rng.choice((0, 0, 1, 2))),
            "longest": rng.choice((allowed, allowed + 3, 50)),
        }
    strength = {"strength": rng.uniform(-1, 2)}
    return {**strength, "window": rng.randint(1, 90)} if kind == "presence_window" else strength


@dataclass(frozen=True)
class Case:
    """A batch of streams and a penalty, compared after the `checked` steps."""

    name: str
    params: Mapping[str, Any]
    include_prompt: bool
    V: int
    batch: Batch
    checked: tuple[int, ...]
    dtype: torch.dtype
    seed: int

    def penalty(self, build: Build) -> Any:
        options = {**self.params, "include_prompt": self.include_prompt}
        if self.batch.padding is not None:
            return build(self.name, **options, pad_token_id=self.batch.padding)
        return build(self.name, **options).with_mask(torch.tensor(self.batch.mask()))

    def oracle(self, scores: Tensor, step: int) -> Tensor:
        """Every row by itself."""
        histories = self.batch.histories(step, self.include_prompt)
        rows = zip(scores.tolist(), histories, strict=True)
        return torch.tensor(
            [PENALISE[self.name](row, history, **self.params) for row, history in rows],
            dtype=torch.float64,
        )

    def difference(self, build: Build) -> float:
        """The largest difference over all checked scores; 1 is all that the tolerance allows."""
        penalty, worst = self.penalty(build), 0.0
        generator = torch.Generator().manual_seed(self.seed)
        for step in range(self.batch.steps + 1):
            shape = (len(self.batch.prompts), self.V)
            scores = (torch.randn(shape, generator=generator) * 3).to(self.dtype)
            got = penalty(torch.tensor(self.batch.ids(step)), scores)
            if step in self.checked:
                wanted = self.oracle(scores, step)
                worst = max(worst, between(got.double(), wanted, TOLERANCE[self.dtype]))
        return worst


def between(got: Tensor, wanted: Tensor, tolerance: float) -> float:
    """The largest difference; large scores may differ in proportion, infinite ones not at all."""
    same = got == wanted
    gap = torch.where(same, 0.0, (got - wanted).abs()).nan_to_num(math.inf)
    allowed = tolerance * wanted.abs().clamp(min=1, max=1e300)
    return float((gap / allowed).max())


def cases(kind: str, streams: int, seed: int = 0) -> Iterator[Case]:
    """Random cases of one kind of penalty, `streams` rows in all, batches of 1 to 8 ragged rows."""
    rng = random.Random(f"{kind} {seed}")
    long = kind.startswith("lz")
    while streams:
        rows = min(streams, rng.randint(1, 8))
        streams -= rows
        V = rng.randint(5, 200)
        params = draw(kind, rng, V)
        # Long enough for the window to be full and to move on, where the oracle can afford it.
        reach = params["window"] + params["buffer"] if long else 60
        include_prompt = rng.random() < 0.8
        steps = rng.randint(1, 9) if include_prompt else rng.randint(1, 60)
        made = batch(rng, V, rng.choice((5, 3 * reach // 2 + 5)), rows, steps)
        yield Case(
            name=kind.split()[0],
            params=params,
            include_prompt=include_prompt,
            V=V,
            batch=made,
            checked=tuple(sorted({made.steps, rng.randint(0, made.steps)})),
            dtype=rng.choice((torch.float32, torch.float64)),
            seed=rng.randrange(2**31),
        )
