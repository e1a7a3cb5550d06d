"""Quest beside its properties: bounds, counting, and what is special about pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from zoo import WINDOW, animal

import attention
from attention.core.ropes import Rope
from attention.core.step import Step
from attention.layers.layer import Geometry
from attention.methods.quest import QuestLayer
from attention.testing.driving import decode, follow, prefill, step
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

CPU = torch.device("cpu")


def layer(budget: int, page: int, gqa: str, rows: int = 2, G: int = 2, D: int = 6) -> QuestLayer:
    geometry = Geometry("quest", 0, rows, 2 * G, 2, D, torch.float64, CPU, Rope(None))
    return QuestLayer(geometry, attention.Quest(budget=budget, page=page, gqa=gqa))


def test_counting_right_after_the_longest_row_was_replaced() -> None:
    m = tiny_model()
    backend = attention.Quest(budget=32, dense_layers=0, gqa="query_head")
    with backend.on(m) as cache, torch.no_grad():
        prefill(m, cache, [tokens(200), tokens(70, seed=1)])
        decode(m, cache, tokens(2, 1, seed=2))
        expected = int(cache.row_stats().keys_read[1])
        other = cache.new()
        prefill(m, other, [tokens(5, seed=3)])
        cache.replace_rows([0], other)
        assert cache.row_stats().keys_read.tolist() == [0, expected]


def filled(made: QuestLayer, lengths: list[int], seed: int = 0) -> torch.Tensor:
    """Prefill ragged rows and append one token to each; the query of that token (B, 4, 1, D)."""
    torch.manual_seed(seed)
    g, T = made.geometry, max(lengths)
    n = np.array(lengths)
    k = torch.randn(len(n), 2, T, g.D, dtype=g.dtype)
    q = torch.randn(len(n), g.Hq, T, g.D, dtype=g.dtype)
    made.forward(q, k, k, 1.0, Step(np.zeros_like(n), n, T, CPU))
    k1, q1 = k.new_empty(len(n), 2, 1, g.D).normal_(), q.new_empty(len(n), g.Hq, 1, g.D).normal_()
    made.forward(q1, k1, k1, 1.0, Step(n, np.ones_like(n), 1, CPU))
    return q1


def bound(made: QuestLayer, q: torch.Tensor) -> torch.Tensor:
    """The bound of every page by the definition: sum of max(q max_k, q min_k), (B, Hq, pages)."""
    D, G = made.geometry.D, made.geometry.G
    high = made.summaries.data[..., :D].repeat_interleave(G, 1)
    low = -made.summaries.data[..., D:].repeat_interleave(G, 1)
    return torch.maximum(q * high, q * low).sum(-1)


lengths = st.lists(st.integers(1, 40), min_size=2, max_size=2).filter(lambda n: max(n) > 12)


@settings(max_examples=30, deadline=None)
@given(lengths=lengths, page=st.sampled_from([1, 3, 4]), seed=st.integers(0, 99))
def test_no_key_of_a_page_exceeds_its_bound(lengths: list[int], page: int, seed: int) -> None:
    made = layer(2 * page, page, "sum")
    q = filled(made, lengths, seed)
    upper = bound(made, q)
    for r, n in enumerate(lengths):
        true = (q[r] * made.k.data[r, :, : n + 1].repeat_interleave(2, 0)).sum(-1)
        for p in range(-(-(n + 1) // page)):
            best = true[:, p * page : (p + 1) * page].amax(-1)
            assert (upper[r, :, p] >= best - 1e-12).all()
            keys = made.k.data[r, :, p * page : min((p + 1) * page, n + 1)]
            extremes = torch.cat((keys.amax(1), -keys.amin(1)), dim=-1)
            assert torch.equal(made.summaries.data[r, :, p], extremes)


def test_each_query_head_chooses_among_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with many page bounds come in another order of axes."""
    m, text, later = tiny_model(), [tokens(40)], tokens(1, 6)
    backend = attention.Quest(budget=16, page=4, dense_layers=0, gqa="query_head")
    with backend.on(m, engine="torch") as cache:
        want = follow(m, cache, text, later)
        monkeypatch.setattr("attention.core.kernels.LARGE", 0)
        got = follow(m, cache.new(), text, later)
    assert (got - want).abs().max() < 1e-9


def test_a_page_as_long_as_the_models_own_window() -> None:
    """A paged method without `alone` beside sliding layers: both remember something by a length."""

    class Plain(QuestLayer):
        def alone(self, k: Tensor) -> None:  # noqa: ARG002
            return None

    class Slow(attention.Quest):
        layer_class = Plain

        def layer(self, geometry: Any) -> Any:
            return Plain(geometry, self)

    m, text, later = animal("gemma3"), [tokens(30)], tokens(1, 6)
    params = {"budget": 2 * WINDOW, "page": WINDOW, "dense_layers": 0}
    with attention.Quest(**params).on(m) as cache:
        want = follow(m, cache, text, later)
    with Slow(**params).on(m) as cache:
        got = follow(m, cache, text, later)
    assert (got - want).abs().max() < 1e-9


def test_the_script_reads_three_pages_of_a_smaller_budget() -> None:
    """And says so; the other methods raise when they read more than the budget."""
    m, most = tiny_model(), 0
    script = attention.Quest(budget=8, page=4, dense_layers=0, rule="paper_script")
    with script.on(m) as cache, torch.no_grad():
        prefill(m, cache, [tokens(40), tokens(13, seed=1)])
        for column in tokens(2, 12).T:
            step(m, cache, column)
            stats = cache.row_stats()
            for layer in range(2):
                for r, heads in enumerate(cache.read_positions(layer)):
                    counts = (heads >= 0).sum(-1)
                    assert counts.max() <= 12
                    assert stats.read_max[r] >= counts.max()
            most = max(most, int(stats.read_max.max()))
    assert most == 12
