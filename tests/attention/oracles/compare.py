"""Runs a backend and its oracle over the same teacher-forced tokens and measures the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from attention.testing.driving import prefill, step

from . import METHODS
from .models import VOCABULARY, tiny_model
from .naive_model import NaiveModel

STEPS = 200
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-9}
SELECTING = ("quest", "infllm", "oracle", "adamas", "lessismore", "kascade")

# Below this relative gap a choice among scores is a coin flip in that dtype: rounding decides
# which slot loses, two correct programs differ, and the comparison is made on other tokens.
# Measured: scores of the two sides differ by some 1e-6 relative in float32.
DECISIVE = {torch.float32: 4e-6, torch.float64: 1e-12}


@dataclass(frozen=True)
class Case:
    """One comparison: a tiny model, a method with its parameters, a prompt length and a seed."""

    family: str
    heads: tuple[int, int]
    method: str
    params: tuple[tuple[str, Any], ...] = ()
    dtype: torch.dtype = torch.float64
    layers: int = 2
    prompt: int = 37
    steps: int = STEPS
    seed: int = 0
    sharp: float = 1.0
    exact: bool = True

    def __str__(self) -> str:
        params = ",".join(f"{name}={value}" for name, value in self.params)
        heads = f"{self.heads[0]}/{self.heads[1]}"
        kind = str(self.dtype).removeprefix("torch.")
        sharp = f"-sharp{self.sharp:g}" if self.sharp != 1 else ""
        model = f"{self.family}-{heads}-L{self.layers}{sharp}-{kind}"
        return f"{self.method}({params})-{model}-P{self.prompt}"

    @property
    def model(self) -> Any:
        return tiny_model(self.family, self.heads, self.layers, self.dtype, self.sharp, self.exact)

    def tokens(self) -> list[int]:
        """Prompt and teacher-forced tokens."""
        generator = np.random.default_rng([self.seed, self.prompt])
        return generator.integers(0, VOCABULARY, self.prompt + self.steps).tolist()


@dataclass
class Run:
    """Logits (1 + steps, vocabulary) after the prompt and after each step; positions by step.

    kept[i][layer][KV head] and read[i][layer][KV head]: sorted positions; i = 0 is the prompt.
    """

    logits: list[np.ndarray] = field(default_factory=list)
    kept: list[list[list[list[int]]]] = field(default_factory=list)
    read: list[list[list[list[int]]]] = field(default_factory=list)
    margin: float = float("inf")


@dataclass(frozen=True)
class Difference:
    """The result of a comparison; `first` describes the first difference in positions."""

    logits: float
    step: int  # where the largest logit difference is; 0 is the prompt
    first: str | None


def oracle(model: Any, method: str, params: Mapping[str, Any], dtype: torch.dtype) -> NaiveModel:
    """An empty oracle with the weights of `model`."""
    make = METHODS[method]
    return NaiveModel(
        model.state_dict(),
        model.config,
        lambda *args: make(*args, **params),
        np.float64 if dtype is torch.float64 else np.float32,
    )


def note(run: Run, naive: NaiveModel, logits: np.ndarray) -> None:
    run.logits.append(logits)
    run.kept.append([layer.kept() for layer in naive.layers])
    run.read.append([layer.read for layer in naive.layers])
    run.margin = min(layer.margin for layer in naive.layers)


@lru_cache(maxsize=512)
def run_oracle(case: Case) -> Run:
    """The oracle on the case's tokens."""
    naive = oracle(case.model, case.method, dict(case.params), case.dtype)
    return follow(naive, case.tokens(), case.prompt)


def follow(naive: NaiveModel, tokens: list[int], prompt: int) -> Run:
    """Prefill the prompt, then step through the rest."""
    run = Run()
    note(run, naive, naive.prefill(tokens[:prompt]))
    for token in tokens[prompt:]:
        note(run, naive, naive.step(token))
    return run


def decisive(case: Case, tries: int = 30) -> Case:
    """The case with the first seed on which no choice is a coin flip."""
    for skipped in range(tries):
        candidate = replace(case, seed=case.seed + skipped)
        if run_oracle(candidate).margin > DECISIVE[case.dtype]:
            return candidate
    raise RuntimeError(f"{case}: every choice of {tries} seeds is a coin flip")


def positions(rows: Sequence[torch.Tensor], row: int, Hkv: int | None = None) -> list[list[int]]:
    """(Hkv, kept) of one row -> sorted positions per KV head.

    (Hq, kept), of query heads which choose for themselves, gives the unions over the groups; -1
    fills up heads that read fewer tokens than others.
    """
    heads = [head.tolist() for head in rows[row]]
    G = len(heads) // (Hkv or len(heads))
    return [
        sorted({p for h in heads[i : i + G] for p in h if p >= 0}) for i in range(0, len(heads), G)
    ]


def run_library(backend: Any, case: Case) -> Run:
    """The backend on the case's prompt, then on its other tokens one by one."""
    run, model, tokens = Run(), case.model, torch.tensor(case.tokens())
    layers, selecting = range(case.layers), case.method in SELECTING
    with backend.on(model) as cache:
        for i in range(case.steps + 1):
            if i:
                logits = step(model, cache, tokens[case.prompt + i - 1][None])
            else:
                logits = prefill(model, cache, [tokens[: case.prompt]])[:, -1]
            # Methods that keep everything are asked now and then: the lists grow long.
            ask = not selecting or i % 20 == 0
            kept = [cache.kept_positions(j) for j in layers if ask]
            read = [cache.read_positions(j) for j in layers if selecting and i]
            run.logits.append(logits[0].numpy())
            run.kept.append([positions(layer, 0) for layer in kept])
            run.read.append([positions(layer, 0, case.heads[1]) for layer in read])
    return run


def compare(expected: Run, got: Run, selecting: bool) -> Difference:
    """Largest logit difference and the first step at which positions differ."""
    gaps = [
        float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
        for a, b in zip(expected.logits, got.logits, strict=True)
    ]
    # A NaN is a difference of any size.
    gaps = [gap if gap == gap else float("inf") for gap in gaps]
    worst = int(np.argmax(gaps))
    first = None
    for i in range(len(gaps)):
        for what in ("kept", "read") if selecting and i else ("kept",):  # empty: not asked
            want, have = getattr(expected, what)[i], getattr(got, what)[i]
            if first is None and have and want != have:
                layer = next(j for j in range(len(want)) if want[j] != have[j])
                first = f"step {i}, layer {layer}: {what} {have[layer]}, the oracle {want[layer]}"
    return Difference(gaps[worst], worst, first)


def difference(case: Case, make_backend: Callable[..., Any]) -> Difference:
    """Oracle against backend; make_backend(method, **params)."""
    got = run_library(make_backend(case.method, **dict(case.params)), case)
    return compare(run_oracle(case), got, case.method in SELECTING)
