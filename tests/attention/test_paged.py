"""The rung for page summaries: kept up to date in any order, and charged for what it reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import attention
from attention.core.ropes import Rope
from attention.core.step import Step
from attention.layers.layer import Geometry
from attention.layers.paged import Paged

CPU = torch.device("cpu")
Hq, Hkv, D = 4, 2, 3


class Extremes(Paged):
    """The largest of each of D numbers in a page; a score that favours late pages a little."""

    def __init__(self, page: int, sets: int, budget: int = 8, rows: int = 2) -> None:
        shape = {"method": "extremes", "index": 0, "Hq": Hq, "Hkv": Hkv, "D": D}
        where = {"dtype": torch.float64, "device": CPU, "rope": Rope(None)}
        pages = attention.Quest(budget=budget, page=page)
        super().__init__(Geometry(B=rows, **shape, **where), pages)
        self.sets = sets

    def summary(self, k: Tensor, held: Tensor) -> Tensor:
        return k.masked_fill(~held, float("-inf")).amax(3)

    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        score = q @ summaries.transpose(2, 3)
        if self.sets == Hq:
            return score.flatten(1, 2)
        return score.sum(2) if self.sets == Hkv else score.sum((1, 2))[:, None]


class Products(Extremes):
    """The same scores, said to be products: pages are found by the engine."""

    score = Paged.score

    def products(self, q: Tensor) -> Tensor:
        return q.flatten(1, 2)[:, :, None] if self.sets == Hq else q.sum(2, keepdim=True)


class Fed:
    """A layer and all its keys, row by row."""

    def __init__(self, layer: Extremes, rows: int = 2) -> None:
        self.layer, self.rows = layer, rows
        self.keys = [torch.zeros(Hkv, 0, D, dtype=torch.float64) for _ in range(rows)]
        self.random = torch.Generator().manual_seed(0)

    @property
    def seen(self) -> np.ndarray:
        return np.array([k.shape[1] for k in self.keys])

    def feed(self, new: list[int], T: int | None = None) -> Tensor:
        """A left-padded forward that brings new[r] tokens; padding holds something too."""
        T = max(new) if T is None else T
        draw = lambda H: torch.randn(  # noqa: E731
            self.rows, H, T, D, generator=self.random, dtype=torch.float64
        )
        step = Step(self.seen, np.array(new), T, CPU)
        q, k, v = draw(Hq), draw(Hkv), draw(Hkv)
        self.layer.forward(q, k, v, 1.0, step)
        for r in range(self.rows):
            self.keys[r] = torch.cat((self.keys[r], k[r, :, T - new[r] :]), 1)
        return q

    def check(self) -> None:
        page = self.layer.page
        for r, keys in enumerate(self.keys):
            for p in range(-(-keys.shape[1] // page)):
                want = keys[:, p * page : (p + 1) * page].amax(1)
                assert torch.equal(self.layer.summaries.data[r, :, p], want), (r, p)


@settings(max_examples=40, deadline=None)
@given(
    page=st.integers(1, 5),
    first=st.tuples(st.integers(1, 23), st.integers(1, 23)),
    decode=st.integers(0, 9),
    chunk=st.integers(2, 11),
    crop=st.integers(0, 9),
)
@example(page=4, first=(8, 8), decode=0, chunk=2, crop=4)  # to whole pages
@example(page=4, first=(8, 8), decode=3, chunk=2, crop=1)  # into a page
def test_summaries_are_those_of_the_keys_whatever_came(
    page: int, first: tuple[int, int], decode: int, chunk: int, crop: int
) -> None:
    fed = Fed(Extremes(page, Hkv, budget=2 * page))
    fed.feed(list(first))
    fed.check()
    for _ in range(decode):
        fed.feed([1, 1])
        fed.check()
    left = np.maximum(fed.seen - crop, 0)
    fed.layer.crop(np.arange(fed.rows), left)
    fed.keys = [k[:, :n] for k, n in zip(fed.keys, left, strict=True)]
    for T in (1, chunk, 1) if left.all() else (chunk, 1):
        fed.feed([T, T])
        fed.check()


@pytest.mark.parametrize(
    ("kind", "sets"),
    [(Extremes, 1), (Extremes, Hkv), (Extremes, Hq), (Products, Hkv), (Products, Hq)],
)
def test_the_best_pages_and_the_last_are_read_and_charged(kind: type[Extremes], sets: int) -> None:
    page, quota = 2, 4
    fed = Fed(kind(page, sets))
    fed.feed([5, 21])
    for _ in range(12):
        q = fed.feed([1, 1])
        layer, seen = fed.layer, fed.seen
        cost = layer.cost(seen)
        for r, n in enumerate(seen):
            pages = -(-n // page)
            read = layer.read_positions(r, n)
            tops = fed.layer.summaries.data[r, :, :pages]
            per_head = torch.stack([tops[h // 2] @ q[r, h, 0] for h in range(Hq)])
            if sets == Hq:
                scores = per_head
            elif sets == Hkv:
                scores = per_head.view(Hkv, 2, -1).sum(1)
            else:
                scores = per_head.sum(0).expand(Hkv, -1)
            assert len(read) == max(sets, Hkv)
            union = [set() for _ in range(Hkv)]
            for h, positions in enumerate(read.tolist()):
                order = sorted(range(pages - 1), key=lambda p, h=h: -scores[h, p])
                best = {*order[: quota - 1], pages - 1}
                want = [p for p in range(n) if p // page in best]
                assert [p for p in positions if p >= 0] == want
                assert layer.reads(seen)[r] == len(want)
                union[h * Hkv // len(read)] |= set(want)
            # A summary is as large as a key here, so it costs one.
            summaries = pages * Hkv if pages > quota else 0
            assert cost[r] == sum(map(len, union)) + summaries
            held = n * Hkv * 2 * D * 8 + pages * Hkv * D * 8
            assert layer.row_bytes(seen)[r] == held
    assert (layer.measured(seen) is not None) == (sets == Hq)


def test_summaries_may_be_wider_than_keys() -> None:
    class Wide(Extremes):
        def __init__(self) -> None:
            super().__init__(2, Hkv)
            self.summaries = self.slots("summaries", (5,), dtype=torch.float32, unit=2)

        def summary(self, k: Tensor, held: Tensor) -> Tensor:
            return super().summary(k, held)[..., :1].expand(-1, -1, -1, 5)

        def score(self, q: Tensor, summaries: Tensor) -> Tensor:
            return super().score(q, summaries[..., :3].double())

    fed = Fed(Wide())
    fed.feed([20, 20])
    fed.feed([1, 1])
    # 11 pages of 5 numbers, where a key has 3: 19 keys' worth, per KV head.
    assert fed.layer.cost(fed.seen).tolist() == [Hkv * (7 + 19)] * 2
    assert fed.layer.row_bytes(fed.seen).tolist() == [Hkv * (21 * 2 * D * 8 + 11 * 5 * 4)] * 2
