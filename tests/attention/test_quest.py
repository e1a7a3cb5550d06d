"""Quest: bounds and the choice of pages."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from driving import decode, follow, model, prefill, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from zoo import WINDOW, animal

import attention
from attention.core.ropes import Rope
from attention.core.step import Step
from attention.layers.layer import Geometry
from attention.methods.quest import QuestLayer

CPU = torch.device("cpu")


def layer(budget: int, page: int, gqa: str, rows: int = 2, G: int = 2, D: int = 6) -> QuestLayer:
    geometry = Geometry("quest", 0, rows, 2 * G, 2, D, torch.float64, CPU, Rope(None))
    return QuestLayer(geometry, attention.Quest(budget=budget, page=page, gqa=gqa))


def test_counting_right_after_the_longest_row_was_replaced() -> None:
    m = model()
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


@settings(max_examples=30, deadline=None)
@given(lengths=lengths, page=st.sampled_from([1, 3, 4]), seed=st.integers(0, 99))
def test_bounds_kept_up_are_bounds_recomputed(lengths: list[int], page: int, seed: int) -> None:
    made = layer(2 * page, page, "sum")
    filled(made, lengths, seed)
    kept = made.summaries.data.clone()
    made.summaries.data.fill_(made.summaries.fill)
    seen = np.array(lengths) + 1
    made.summarise(np.zeros(2, dtype=np.int64), seen)
    for r, begun in enumerate(made.pages(seen).tolist()):
        assert torch.equal(kept[r, :, :begun], made.summaries.data[r, :, :begun])


@settings(max_examples=40, deadline=None)
@given(
    lengths=lengths,
    page=st.sampled_from([1, 3, 4]),
    quota=st.integers(2, 5),
    gqa=st.sampled_from(["sum", "mean", "max", "query_head"]),
    seed=st.integers(0, 99),
)
def test_the_pages_with_the_largest_bounds_are_read(
    lengths: list[int], page: int, quota: int, gqa: str, seed: int
) -> None:
    """By the definition of the bound, page by page; and scaling the query changes nothing."""
    made = layer(quota * page, page, gqa)
    q = filled(made, lengths, seed)
    upper = bound(made, q)
    if gqa != "query_head":
        upper = getattr(upper.unflatten(1, (2, 2)), "amax" if gqa == "max" else "sum")(2)
    for r, n in enumerate(lengths):
        pages = -(-(n + 1) // page)
        for h, head in enumerate(made.read_positions(r, n + 1).tolist()[: upper.shape[1]]):
            others = sorted(range(pages - 1), key=lambda p: -float(upper[r, h, p]))
            want = {*others[: quota - 1], pages - 1} if pages > quota else set(range(pages))
            assert {t // page for t in head} == want
            assert head == [t for t in range(n + 1) if t // page in want]
    if made.chosen is not None:
        now = Step(np.array(lengths), np.ones(2, dtype=np.int64), 1, CPU)
        scaled = made.choose(q.view(2, 2, 2, -1) * 7.5, now)
        assert torch.equal(scaled.pages, made.chosen.pages)


def test_permuting_keys_inside_a_page_changes_no_choice() -> None:
    made, other = layer(8, 4, "sum"), layer(8, 4, "sum")
    q = filled(made, [29, 31])
    order = torch.arange(28).view(7, 4).flip(1).flatten()
    now = Step(np.array([29, 31]), np.ones(2, dtype=np.int64), 1, CPU)
    k = made.k.data[:, :, :32].clone()
    k[:, :, :28] = k[:, :, order]
    other.k.fit(32), other.v.fit(32), other.summaries.fit(32)
    other.k.data[:, :, :32] = k
    other.summarise(np.zeros(2, dtype=np.int64), now.seen)
    q = q.view(2, 2, 2, -1)
    assert torch.equal(other.choose(q, now).pages, made.choose(q, now).pages)


def test_larger_budgets_read_supersets() -> None:
    read = []
    for budget in (8, 12, 20, 32):
        made = layer(budget, 4, "sum")
        filled(made, [45, 50])
        read.append(
            [[set(h) for h in made.read_positions(r, n).tolist()] for r, n in enumerate((46, 51))]
        )
    for small, large in pairwise(read):
        for r in range(2):
            assert all(a < b for a, b in zip(small[r], large[r], strict=True))


@pytest.mark.parametrize("gqa", ["sum", "max"])
def test_pages_of_one_token_are_the_best_tokens(gqa: str) -> None:
    """The bound of a single key is q.k itself."""
    made = layer(6, 1, gqa)
    q = filled(made, [30, 30])
    exact = (q * made.k.data[:, :, :31].repeat_interleave(2, 1)).sum(-1).unflatten(1, (2, 2))
    exact = exact.amax(2) if gqa == "max" else exact.sum(2)
    best = exact[..., :30].topk(5).indices
    for r in range(2):
        for h in range(2):
            want = sorted([*best[r, h].tolist(), 30])
            assert made.read_positions(r, 31)[h].tolist() == want


def test_reductions_agree_without_groups() -> None:
    m, then = model("llama", (4, 4)), tokens(1, 30)
    logits = []
    for gqa in ("sum", "mean", "max", "query_head"):
        with attention.Quest(budget=12, page=4, dense_layers=0, gqa=gqa).on(m) as cache:
            logits.append(follow(m, cache, [tokens(20)], then))
    for other in logits[1:]:
        assert (other - logits[0]).abs().max() < 1e-9


def test_dense_layers_read_everything() -> None:
    m = model()
    with attention.Quest(budget=8, page=4, dense_layers=1).on(m) as cache:
        follow(m, cache, [tokens(20)], tokens(1, 5))
        assert cache.read_positions(0)[0].tolist() == [list(range(25))] * 2
        assert cache.read_positions(1)[0].shape == (2, 5)  # a page of 4 and the last one's token
    with (
        pytest.raises(attention.InvalidValue, match="dense_layers"),
        attention.Quest(budget=8, page=4).on(m),
    ):
        pass


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_cropped_cache_goes_on_as_if_nothing_had_been_there(count: int) -> None:
    m, text, then = model(), [tokens(21), tokens(10, seed=1)], tokens(2, 12)
    with attention.Quest(budget=8, page=4, dense_layers=0).on(m) as cache:
        prefill(m, cache, text)
        decode(m, cache, tokens(2, 5, seed=8))
        cache.crop(-5)
        cache.crop(0)
        got = decode(m, cache, then)
        want = follow(m, cache.new(), text, then)[:, 1:]
        assert (got - want).abs().max() < 1e-9
        cache.crop(-count)
        shorter = then[:, : 12 - count]
        again = decode(m, cache, tokens(2, 6, seed=4))
        want = decode(m, follow_cache(m, cache, text, shorter), tokens(2, 6, seed=4))
        assert (again - want).abs().max() < 1e-9


def follow_cache(m, cache, text, then):
    fresh = cache.new()
    follow(m, fresh, text, then)
    return fresh


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 40},
        {"budget": 16},
        {"budget": 32, "page": 0},
        {"budget": 32, "gqa": "first"},
        {"budget": 32, "dense_layers": -1},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.Quest(**arguments)


def test_each_query_head_chooses_among_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with many page bounds come in another order of axes."""
    m, text, later = model(), [tokens(40)], tokens(1, 6)
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
