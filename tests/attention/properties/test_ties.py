"""Ties: of tokens with an equal claim the older one is kept or read.

Keys come from an alphabet of two or three vectors, so that most tokens tie. All numbers are small
integers and D is 4, so that equal logits are equal bit by bit, in whatever order they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from properties.backends import gkv, h2o, rkv, snapkv, tova
from properties.cases import Case, cases, each, shapes
from properties.feeding import Text, session
from properties.holding import holds


def tied(case: Case) -> tuple[list[Text], list[np.ndarray]]:
    """Texts of integers, and which vector of the alphabet each token's key is."""
    texts, letters = [], []
    for r, plain in enumerate(case.texts()):
        random = np.random.default_rng(case.seed + r)
        letter = random.integers(0, 2 + case.seed % 2, len(plain))
        s = case.shape
        size = s.layers, s.Hkv, 3, s.D
        alphabet = random.integers(-2, 3, size).astype(float)
        q = torch.from_numpy(random.integers(-2, 3, tuple(plain.q.shape)).astype(float))
        k = torch.from_numpy(alphabet[:, :, letter])
        texts.append(Text(s, q, k, plain.v, turned=False))
        letters.append(letter)
    return texts, letters


def older_win(chosen: Iterable[int], others: Iterable[int], claim: Callable[[int], Any]) -> None:
    """No chosen one is newer than another of the same claim."""
    oldest: dict[Any, int] = {}
    for i in others:
        oldest[claim(i)] = min(i, oldest.get(claim(i), i))
    for i in chosen:
        assert i < oldest.get(claim(i), i + 1)


SIZE = {
    "rows": 3,
    "prompt": 40,
    "steps": 20,
    "shape": st.integers(1, 8).flatmap(lambda G: shapes(D=4, G=G)),
}


def evicting(method: str) -> st.SearchStrategy[Case]:
    """Options under which equal keys have equal scores."""
    backend = {
        "tova": tova(),
        "h2o": h2o(score_from_prefill=False),
        "snapkv": snapkv(kernel=1),
        "rkv": rkv(kernel=1, mix=1.0),
        "gkv": gkv(mix=1.0),
    }[method]
    return cases(backend, **SIZE, least_chunk=40)


@holds(4, *each(("tova", "h2o", "snapkv", "rkv", "gkv"), evicting))
def test_the_newer_of_equals_is_dropped(case: Case) -> None:
    """Ties: of tokens with equal scores the newer are dropped, at a cut and step by step."""
    texts, letters = tied(case)
    b = case.backend
    before_step: list[list[list[int]]] = []
    with session(b, texts) as s:
        for number, counts in enumerate(case.whole):
            s.feed(counts)
            for r, n in enumerate(s.at):
                safe = n - b.params().get("window", 0)
                if b.name == "h2o":
                    # Those whose scores began together, and do not count as recent.
                    safe = min(case.prompts[r], n - b.budget + b.params()["heavy"] + 1)
                for j, kept in enumerate(s.kept()[r]):
                    before = {*before_step[r][j], n - 1} if number else set(range(n))
                    gone = {i for i in before - set(kept) if i < safe}
                    stay = {i for i in kept if i < safe}
                    older_win(stay, gone, letters[r].__getitem__)
            before_step = s.kept()
