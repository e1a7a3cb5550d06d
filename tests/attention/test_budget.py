"""Budgets are met in every layer and head; what is reported is what the state holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from driving import BACKENDS, FIRST, KEEP_ALL, follow, model, prefill, step, tokens

import attention
from attention.layers.selecting import Choice
from attention.methods.quest import QuestLayer

# Not quest's `paper_script`, whose heads differ and need not read the current token.
SPARSE = tuple(
    b
    for b in BACKENDS
    if b.budget is not None and b.name != "h2o_uniform" and getattr(b, "rule", "") != "paper_script"
)
EVICTING = tuple(b for b in SPARSE if b not in KEEP_ALL and not b.dense_layers)


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_bytes_are_those_of_keys_values_and_state(backend: attention.Backend) -> None:
    """No more than what is allocated, and at least the kept keys and values."""
    m = model()
    with backend.on(m) as cache:
        follow(m, cache, [tokens(50)], tokens(1, 20))
        allocated = sum(s.data.nbytes for layer in cache.layers for s in layer.state.values())
        D, kept = 16, int(cache.stats().kept)
        keys_and_values = (2 - backend.dense_layers) * 2 * kept * 2 * D * 8
        keys_and_values += backend.dense_layers * 2 * 70 * 2 * D * 8
        assert keys_and_values <= cache.row_stats().bytes[0] <= allocated
        bare = backend.name in ("dither", "full", "h2o_uniform", "oracle", "window")
        bare |= backend.name == "sink" and backend.positions != "cache"
        assert (cache.row_stats().bytes[0] == keys_and_values) == bare


def test_after_a_prefill_nothing_was_read() -> None:
    m = model()
    with attention.Quest(budget=32, page=8, dense_layers=1).on(m) as cache:
        prefill(m, cache, [tokens(50)])
        stats = cache.row_stats()
        assert stats.keys_read.tolist() == stats.read_max.tolist() == [0]
        assert cache.stats().read_max is None
        with pytest.raises(RuntimeError, match="decode step"):
            cache.read_positions(0)
        step(m, cache, tokens(1))
        assert stats.keys_read.tolist() == [0]  # a report does not change later
        assert cache.row_stats().keys_read.tolist() == [2 * (51 + 27 + 2 * 7)]


def test_a_read_above_the_budget_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that chooses too much is a defect, and is caught before it attends."""
    honest = QuestLayer.choose

    def greedy(self: QuestLayer, q: torch.Tensor, now: Any) -> Choice:
        choice = honest(self, q, now)
        return Choice(*(torch.cat((x, x[..., :1]), dim=-1) for x in (choice.pages, choice.live)))

    m = model()
    with attention.Quest(budget=32, page=8, dense_layers=0).on(m) as cache:
        prefill(m, cache, [tokens(50)])
        monkeypatch.setattr(QuestLayer, "choose", greedy)
        with pytest.raises(attention.BudgetExceeded, match="40 keys, budget 32") as caught:
            step(m, cache, tokens(1))
        assert (caught.value.read, caught.value.budget, caught.value.layer) == (40, 32, 0)
        monkeypatch.undo()
        # The forward stopped half way, and the cache says so rather than going on.
        with pytest.raises(RuntimeError, match="half way"):
            step(m, cache, tokens(1))


def test_state_grows_by_doubling() -> None:
    m = model()
    with attention.Full().on(m) as cache:
        prefill(m, cache, [tokens(10)])
        sizes = set()
        for column in tokens(1, 140).T:
            step(m, cache, column)
            sizes.add(cache.layers[0].state["k"].capacity)
        assert sizes == {64, 128, 256}
