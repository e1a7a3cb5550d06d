"""The backend `oracle`: the most probable tokens, by number or by share."""

from __future__ import annotations

import pytest
import torch
from driving import Bare, follow, model, tokens

import attention


def reduced(bare: Bare, gqa: str, j: int, row: int = 0) -> torch.Tensor:
    """Reduced probability of every token under the last query, for KV head j, (n,)."""
    G = bare.Hq // bare.Hkv
    heads = range(j * G, (j + 1) * G)
    every = torch.stack([bare.probabilities(bare.n - 1, range(bare.n), h, row) for h in heads])
    return {"sum": every.sum(0), "mean": every.mean(0), "max": every.amax(0)}[gqa]


@pytest.mark.parametrize("gqa", ["sum", "mean", "max"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("budget", [1, 2, 7])
def test_the_most_probable_and_the_current_are_read(
    budget: int, heads: tuple[int, int], gqa: str
) -> None:
    bare = Bare(attention.Oracle(budget=budget, gqa=gqa), heads)
    bare.feed(20)
    for _ in range(8):
        bare.feed()
        for j, read in enumerate(bare.read()):
            weight = reduced(bare, gqa, j)
            weight[-1] = 9.0
            assert read == sorted(weight.topk(budget).indices.tolist())


@pytest.mark.parametrize("gqa", ["sum", "max"])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_is_the_smallest_set_that_reaches_it(top_p: float, gqa: str) -> None:
    bare = Bare(attention.Oracle(top_p=top_p, gqa=gqa), rows=2)
    bare.feed(20)
    sizes = set()
    for _ in range(8):
        bare.feed()
        for row in range(2):
            for j, read in enumerate(bare.read(row)):
                read = [p for p in read if p >= 0]
                weight = reduced(bare, gqa, j, row)
                weight /= weight.sum()
                assert bare.n - 1 in read
                assert weight[read].sum() >= top_p
                others = weight[[p for p in read if p != bare.n - 1]]
                if len(others):
                    assert weight[read].sum() - others.min() < top_p
                    unread = [p for p in range(bare.n) if p not in read]
                    assert weight[unread].max(0).values <= others.min() if unread else True
                sizes.add(len(read))
    assert len(sizes) > 1 or top_p == 0.05


def test_top_p_reports_each_head() -> None:
    m = model()
    with attention.Oracle(top_p=0.7).on(m) as cache:
        follow(m, cache, [tokens(30), tokens(4, seed=1)], tokens(2, 6))
        stats, per_layer = cache.row_stats(), [cache.read_positions(i) for i in range(2)]
        for r in range(2):
            sizes = torch.stack([(layer[r] >= 0).sum(-1) for layer in per_layer])
            assert stats.read_max[r] == sizes.max()
            assert stats.read_mean[r] == pytest.approx(float(sizes.double().mean()))
            assert stats.keys_read[r] == sizes.sum()
            assert sizes.unique().numel() > 1
        cache.select_rows([1])
        assert cache.row_stats().keys_read[0] == stats.keys_read[1]


@pytest.mark.parametrize("gqa", ["sum", "max"])
def test_larger_budgets_and_shares_read_supersets(gqa: str) -> None:
    """Layer 0 only: deeper ones see other inputs."""
    m, text, given = model(), [tokens(40)], tokens(1, 1)

    def read(**how: float) -> list[set[int]]:
        with attention.Oracle(gqa=gqa, **how).on(m) as cache:
            follow(m, cache, text, given)
            return [set(head) - {-1} for head in cache.read_positions(0)[0].tolist()]

    for smaller, larger in (({"budget": 5}, {"budget": 11}), ({"top_p": 0.3}, {"top_p": 0.8})):
        for few, many in zip(read(**smaller), read(**larger), strict=True):
            assert few < many


def test_quest_with_pages_of_one_token_picks_the_same() -> None:
    """Without groups the bound of a page of one key orders as its probability does."""
    m, text, given = model("qwen3", (4, 4)), [tokens(40), tokens(9, seed=1)], tokens(2, 20)
    with attention.Oracle(budget=8).on(m) as cache:
        want = follow(m, cache, text, given)
    with attention.Quest(budget=8, page=1, dense_layers=0).on(m) as cache:
        got = follow(m, cache, text, given)
    assert (got - want).abs().max() < 1e-9


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"budget": 8, "top_p": 0.5},
        {"budget": 0},
        {"top_p": 0.0},
        {"top_p": 1.0},
        {"top_p": "0.5"},
        {"budget": 8, "gqa": "query_head"},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.Oracle(**arguments)
