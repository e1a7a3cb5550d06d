"""The oracles of the options of h2o, sink, quest and infllm: sums by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.attention.oracles.by_hand import no_rope, radian, shares
from tests.attention.oracles.h2o import H2OLayer
from tests.attention.oracles.infllm import InfLLMLayer
from tests.attention.oracles.quest import QuestLayer
from tests.attention.oracles.sink import SinkLayer

# -- options of h2o ---------------------------------------------------------------------------


def test_h2o_decay_by_hand() -> None:
    layer = H2OLayer(no_rope, 1, 1, 1.0, budget=9, decay=0.5)
    shares(layer, 4, 1, 3)
    want = [(1 / 2 + 4 / 5) / 2 + 4 / 8, (1 / 5) / 2 + 1 / 8, 3 / 8]
    assert [s.score[0] for s in layer.slots[0]] == pytest.approx(want)
    shares(layer, 8)
    want = [want[0] / 2 + 4 / 16, want[1] / 2 + 1 / 16, want[2] / 2 + 3 / 16, 8 / 16]
    assert [s.score[0] for s in layer.slots[0]] == pytest.approx(want)


def test_h2o_age_by_hand() -> None:
    for normalise, kept in ((None, [0, 2]), ("age", [1, 2])):
        layer = H2OLayer(no_rope, 1, 1, 1.0, budget=3, normalise=normalise)  # heavy 1, recent 2
        shares(layer, 4, 8, 1)
        # 1 + 4/12 + 4/13 = 1.641 of three queries against 8/12 + 8/13 = 1.282 of two.
        assert layer.kept() == [kept]
        # Sums are kept raw.
        raw = 1 + 4 / 12 + 4 / 13 if normalise is None else 8 / 12 + 8 / 13
        assert layer.slots[0][0].score[0] == pytest.approx(raw)


def test_h2o_without_scores_from_the_prompt() -> None:
    for scored, kept in ((True, [0, 2, 5, 6]), (False, [0, 1, 5, 6])):
        layer = H2OLayer(no_rope, 1, 1, 1.0, budget=5, score_from_prefill=scored)
        shares(layer, 1, 1, 99, 1, 1, 1, 1)
        assert layer.kept() == [kept]
    shares(layer, 1)
    assert [s.score[0] for s in layer.slots[0]] == pytest.approx([1 / 5] * 4)
    assert layer.kept() == [[0, 1, 6, 7]]


@pytest.mark.parametrize("positions", ["absolute", "rolled"])
def test_h2o_distances(positions: str) -> None:
    layer = H2OLayer(radian, 1, 1, 1.0, budget=3, heavy=1, positions=positions)
    k = np.array([[[1.0, 0.0]]])
    one, values = np.repeat(k, 6, axis=0), np.eye(6)[:, None]
    layer.forward(one, one, values)
    (held,) = layer.kept()
    assert len(held) == 2
    assert held[1] == 5
    assert held[0] < 4  # else both ways give the same distances
    out = layer.forward(k, k, np.zeros((1, 1, 6)))[0, 0]
    distances = [6 - p for p in held] if positions == "absolute" else [2, 1]
    weights = np.exp(np.cos([*distances, 0]))
    want = np.zeros(6)
    want[held] = (weights / weights.sum())[:2]
    assert out == pytest.approx(want)


def test_h2o_heavy_and_dense_layers() -> None:
    def kept(**params: Any) -> list[int]:
        layer = H2OLayer(no_rope, 1, 1, 1.0, budget=4, **params)
        shares(layer, 1, 9, 1, 1, 1, 1)
        return layer.kept()[0]

    assert kept(heavy=0) == [3, 4, 5]
    assert kept(heavy=1) == [1, 4, 5]
    assert kept(heavy=3) == [0, 1, 2]
    assert kept(dense_layers=1) == [0, 1, 2, 3, 4, 5]
    assert kept(dense_layers=1, index=1) == kept()


# -- options of sink, quest, infllm -----------------------------------------------------------


@pytest.mark.parametrize("prompt", [1, 4, 7, 12])
def test_hf_sinkcache_distances(prompt: int) -> None:
    b, sinks = 6, 2
    layer = SinkLayer(radian, 1, 1, 1.0, budget=b, sinks=sinks, positions="hf_sinkcache")
    one = np.array([[[1.0, 0.0]]])
    values = np.eye(30)[:, None]
    layer.forward(np.repeat(one, prompt, 0), np.repeat(one, prompt, 0), values[:prompt])
    for n in range(prompt + 1, 30):
        out = layer.forward(one, one, values[n - 1 : n])[0, 0]
        held = list(range(n)) if n <= b else [*range(sinks), *range(n - b + sinks, n)]
        weights = np.zeros(30)
        for p in held:
            turns = sum(max(b - 1, p + 1) < s <= n for s in range(prompt + 1, n + 1))
            weights[p] = math.exp(math.cos(n - 1 - p + (turns if p >= sinks else 0)))
        assert layer.read == layer.kept() == [held]
        assert out == pytest.approx(weights / weights.sum()), f"n = {n}"


def test_hf_sinkcache_distances_drift_to_twice_the_true_ones() -> None:
    layer = SinkLayer(radian, 1, 1, 1.0, budget=8, sinks=2, positions="hf_sinkcache")
    one = np.array([[[1.0, 0.0]]])
    for _ in range(40):
        layer.forward(one, one, one)
    where = layer.key_positions(layer.slots[0])
    assert (39 - where).tolist() == [39, 38, 10, 8, 6, 4, 2, 0]


def test_quest_paper_script_loses_a_page_below_the_budget() -> None:
    generator = np.random.default_rng(0)
    layer = QuestLayer(
        no_rope, 1, 1, 1.0, budget=1024, page=16, dense_layers=0, rule="paper_script"
    )
    q, k, v = generator.normal(size=(3, 64, 1, 4))
    layer.forward(q[:47], k[:47], v[:47])
    counts = []
    for n in range(48, 65):
        layer.forward(q[n - 1 : n], k[n - 1 : n], v[n - 1 : n])
        counts.append(len(layer.read[0]))
    assert counts[0] == 48
    for n, count in zip(range(49, 64), counts[1:-1], strict=True):
        assert count in (48, 32 + n - 48)  # three of four pages, the last one among them or not
    assert counts[-1] == 64


def test_quest_paper_script_lets_the_last_page_compete_per_query_head() -> None:
    layer = QuestLayer(no_rope, 2, 1, 1.0, budget=4, page=2, dense_layers=0, rule="paper_script")
    keys = np.array([4.0, 4, 3, 3, 2, 2, 1])[:, None, None]
    layer.forward(np.zeros((6, 2, 1)), keys[:6], keys[:6])
    out = layer.forward(np.array([[[1.0], [-1.0]]]), keys[6:], keys[6:])
    # Four pages, and 3 although the budget holds 2. Head 0 likes large keys, head 1 small ones.
    assert layer.read == [[0, 1, 2, 3, 4, 5, 6]]
    for h, (sign, seen) in enumerate([(1, [4, 4, 3, 3, 2, 2]), (-1, [3, 3, 2, 2, 1])]):
        weights = np.exp(sign * np.array(seen, dtype=float))
        assert out[0, h, 0] == pytest.approx(weights @ seen / weights.sum())


def test_infllm_selects_one_set_for_each_kv_head() -> None:
    layer = InfLLMLayer(no_rope, 2, 2, 1.0, budget=16, selection="kv_head")  # block 4, top 1
    k = np.zeros((17, 2, 1))
    k[4:8, 0], k[8:12, 1] = 1.0, 3.0
    layer.forward(np.zeros((16, 2, 1)), k[:16], k[:16])
    layer.forward(np.array([[[2.0], [1.0]]]), k[16:], k[16:])
    ends = [0, 1, 2, 3], [12, 13, 14, 15, 16]
    assert layer.read == [[*ends[0], *range(4, 8), *ends[1]], [*ends[0], *range(8, 12), *ends[1]]]


def test_infllm_with_absolute_positions_sees_far_tokens_where_they_are() -> None:
    layer = InfLLMLayer(radian, 1, 1, 1.0, budget=16, far_position="absolute")
    one = np.array([[[1.0, 0.0]]])
    layer.forward(np.repeat(one, 5, 0), np.repeat(one, 5, 0), np.eye(6)[:5, None])
    out = layer.forward(one, one, np.eye(6)[5:, None])[0, 0]
    weights = np.exp(np.cos([5, 4, 3, 2, 1, 0]))
    assert out == pytest.approx(weights / weights.sum())


# -- a set per query head ---------------------------------------------------------------------


def test_h2o_keeps_a_set_for_each_query_head() -> None:
    layer = H2OLayer(no_rope, 2, 1, 1.0, budget=3, gqa="query_head")  # heavy 1, recent 2
    # Head 0 weighs token 0, head 1 token 1: shares 9, 1, 1, 1 and 1, 30, 1, 1.
    shares(layer, (9, 1), (1, 30), (1, 1), (1, 1))
    assert layer.kept() == [[0, 3], [1, 3]]
    out = shares(layer, (1, 1))
    assert out == pytest.approx([(3 + 4) / 11, (30 + 3 + 4) / 32])
    assert layer.read == [[0, 3, 4], [1, 3, 4]]
    # One set for both would have kept one of the two.
    both = H2OLayer(no_rope, 2, 1, 1.0, budget=3)
    shares(both, (9, 1), (1, 30), (1, 1), (1, 1))
    assert len(both.kept()) == 1
    # A chunk sees what each head holds, and itself.
    out = shares(layer, (1, 1), (1, 1))
    assert out == pytest.approx([(4 + 5 + 6) / 12, (30 + 4 + 5 + 6) / 33])
    assert layer.kept() == [[0, 6], [1, 6]]


def test_h2o_of_query_heads_is_h2o_of_repeated_kv_heads() -> None:
    generator = np.random.default_rng(0)
    for options in ({}, {"positions": "rolled"}, {"decay": 0.8, "normalise": "age"}):
        own = H2OLayer(radian, 4, 2, 1.0, budget=7, gqa="query_head", **options)
        repeated = H2OLayer(radian, 4, 4, 1.0, budget=7, **options)
        for T in (9, *(1,) * 12, 4, 1, 1):
            q, k, v = (generator.normal(size=(T, H, 2)) for H in (4, 2, 2))
            want = repeated.forward(q, k.repeat(2, axis=1), v.repeat(2, axis=1))
            assert own.forward(q, k, v) == pytest.approx(want, abs=1e-12)
            assert own.kept() == repeated.kept()


# -- the published sparse prefill of infllm ---------------------------------------------------


def test_infllm_reference_prefill_sees_tokens_twice() -> None:
    layer = InfLLMLayer(no_rope, 1, 1, 1.0, budget=16, prefill="reference", exc_block=3)
    zeros = np.zeros((9, 1, 1))  # n_init, n_local and block are 4, topk is 1
    out = layer.forward(zeros, zeros, np.eye(9)[:, None])[:, 0]
    for query, (local, far) in enumerate(
        [
            ([0], []),
            ([0, 1], []),
            ([0, 1, 2], []),
            # Together with query 5, outside whose window 0 and 1 are.
            ([0, 1, 2, 3], [0, 1]),
            ([1, 2, 3, 4], [0, 1]),
            ([2, 3, 4, 5], [0, 1]),
            # Together with query 8.
            ([3, 4, 5, 6], [0, 1, 2, 3, 4]),
            ([4, 5, 6, 7], [0, 1, 2, 3, 4]),
            ([5, 6, 7, 8], [0, 1, 2, 3, 4]),
        ]
    ):
        counts = np.bincount(local + far, minlength=9)
        assert out[query] == pytest.approx(counts / counts.sum())
    # Mass is what a token gets in windows: of query 3, token 3 has a sixth, not a quarter.
    assert layer.slots[0][3].score[0] == pytest.approx(1 / 6 + 1 / 6 + 1 / 6 + 1 / 9)


def test_infllm_reference_prefill_sees_far_tokens_at_one_distance() -> None:
    layer = InfLLMLayer(radian, 1, 1, 1.0, budget=16, prefill="reference", exc_block=2)
    one = np.array([[[1.0, 0.0]]]).repeat(6, axis=0)
    out = layer.forward(one, one, np.eye(6)[:, None])[:, 0]
    # Query 4 shares its far tokens with 5: 1 is at distance 3 in its window and, as a far token,
    # at n_local - 1 = 3 too; 0 is far.
    weights = np.exp(np.cos([3, 3, 2, 1, 0]))
    weights[1] *= 2
    assert out[4, :5] == pytest.approx(weights / weights.sum())
    weights = np.exp(np.cos([3, 3, 3, 2, 1, 0]))
    assert out[5] == pytest.approx(weights / weights.sum())


def test_infllm_reference_prefill_chooses_by_the_mean_query() -> None:
    """Two queries at once: the mean of theirs decides, and both read the same block."""
    layer = InfLLMLayer(no_rope, 1, 1, 1.0, budget=16, prefill="reference", exc_block=2)
    k = np.zeros((18, 1, 1))
    k[4:8], k[8:12] = 1.0, -1.0
    q = np.zeros((18, 1, 1))
    q[16:, 0, 0] = 3.0, -2.0  # alone, the second would take the other block
    out = layer.forward(q, k, np.eye(18)[:, None])[:, 0]
    for query in (16, 17):
        assert (out[query, 4:8] > 0).all()
        assert (out[query, 8:12] == 0).all()
