"""Budgets are met in every layer and head; what is reported is what the state holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from driving import BACKENDS, KEEP_ALL, follow, model, prefill, step, tokens

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


@pytest.mark.parametrize("backend", SPARSE, ids=str)
def test_no_head_of_a_layer_reads_more_than_the_budget(backend: attention.Backend) -> None:
    m, given = model(), tokens(3, 50)
    with backend.on(m) as cache:
        prefill(m, cache, [tokens(40), tokens(1, seed=1), tokens(9, seed=2)])
        most = 0
        for column in given.T:
            step(m, cache, column)
            stats, seen = cache.row_stats(), cache.seen.tolist()
            for layer in range(backend.dense_layers, 2):
                for r, read in enumerate(cache.read_positions(layer)):
                    heads, n = read.shape
                    most = max(most, n)
                    assert n <= backend.budget
                    assert n == stats.read_max[r] == stats.read_mean[r]
                    assert read.min() >= 0
                    assert read.max() == seen[r] - 1  # the current token is read
                    assert (read.diff(dim=-1) > 0).all()  # in order, so no token twice
                    assert heads == (4 if getattr(backend, "gqa", "") == "query_head" else 2)
                    kept = cache.kept_positions(layer)[r]
                    assert kept.shape[1] == stats.kept_max[r]
                    if backend in EVICTING:
                        assert kept.shape[1] <= backend.budget
        # And the bound is reached, so that a smaller budget would have shown.
        assert most > backend.budget - (10 if backend.name == "infllm" else 1)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_row_stats_agree_with_the_state(backend: attention.Backend) -> None:
    m = model()
    with backend.on(m) as cache:
        follow(m, cache, [tokens(40), tokens(7, seed=1)], tokens(2, 33))
        rows, whole = cache.row_stats(), cache.stats(per_layer=True)
        assert whole.backend == backend.name
        assert whole.params == backend.params()
        assert whole.seen == [73, 40]
        assert whole.kept == rows.kept_max.max()
        assert whole.read_max == rows.read_max.max()
        assert whole.read_mean == pytest.approx(float(rows.read_mean.mean()))
        assert whole.bytes == rows.bytes.sum() == sum(x.bytes for x in whole.layers)
        assert [x.dense for x in whole.layers] == [i < backend.dense_layers for i in range(2)]
        if backend.dense_layers:
            assert rows.dense_read_mean is not None
            assert rows.dense_read_mean.tolist() == [73, 40]
            assert whole.layers[0].read_max == 73
        else:
            assert rows.dense_read_mean is None
        # Keys read: the union over each group, counted from positions.
        union = torch.zeros(2, dtype=torch.long)
        for layer in range(2):
            for r, read in enumerate(cache.read_positions(layer)):
                groups = read.reshape(2, -1)
                union[r] += sum(len(set(g.tolist()) - {-1}) for g in groups)
        extra = rows.keys_read - union
        if backend.name == "quest":
            pages = -(-cache.seen // backend.page)
            assert extra.tolist() == (2 * pages * 2 * (2 - backend.dense_layers)).tolist()
        elif backend.name == "infllm":
            p = backend.parts
            blocked = cache.seen - p.n_local - p.n_init
            full = -(-blocked // p.block) - 1
            assert extra.tolist() == (full * (full > p.topk) * 2 * 2).tolist()
        else:
            assert extra.tolist() == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
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
        bare = backend.name in ("full", "h2o_uniform", "oracle", "window")
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


@pytest.mark.parametrize("backend", EVICTING, ids=str)
def test_evicting_methods_hold_constant_memory(backend: attention.Backend) -> None:
    m = model("llama", (4, 1))
    with backend.on(m) as cache:
        prefill(m, cache, [tokens(100), tokens(2, seed=1)])

        def held() -> list[tuple[int, ...]]:
            return [s.data.shape for layer in cache.layers for s in layer.state.values()]

        sizes, given = held(), tokens(2, 150, seed=3)
        assert max(shape[2] for shape in sizes) <= backend.budget
        follow_on = [step(m, cache, column) for column in given.T]
        assert held() == sizes
        assert torch.stack(follow_on).isfinite().all()
        assert cache.get_seq_length() == 250


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        attention.Sink(budget=64),
        attention.H2O(budget=64),
        attention.TOVA(budget=64),
        attention.Random(budget=64),
        attention.RaaS(budget=64, protect_prompt=False),
        attention.RKV(budget=64),
        attention.SnapKV(budget=64),
    ],
    ids=str,
)
def test_twenty_thousand_steps_hold_constant_memory(backend: attention.Backend) -> None:
    m = model("llama", (4, 1))
    with backend.on(m) as cache:
        prefill(m, cache, [tokens(100)])
        sizes = [s.data.shape for layer in cache.layers for s in layer.state.values()]
        for column in tokens(1, 20_000).T:
            assert step(m, cache, column).isfinite().all()
        assert sizes == [s.data.shape for layer in cache.layers for s in layer.state.values()]
        assert cache.seen.tolist() == [20_100]


def test_state_grows_by_doubling() -> None:
    m = model()
    with attention.Full().on(m) as cache:
        prefill(m, cache, [tokens(10)])
        sizes = set()
        for column in tokens(1, 140).T:
            step(m, cache, column)
            sizes.add(cache.layers[0].state["k"].capacity)
        assert sizes == {64, 128, 256}
