"""The oracles of the further backends and options: against full attention, and sums by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from oracles import METHODS, rope_table
from oracles.h2o import H2OLayer
from oracles.infllm import InfLLMLayer
from oracles.layer import Layer
from oracles.oracle_topk import TrueTopLayer
from oracles.quest import QuestLayer
from oracles.raas import RaaSLayer
from oracles.random import RandomLayer, mix, number
from oracles.rkv import RKVLayer
from oracles.sink import SinkLayer
from oracles.snapkv import SnapKVLayer
from oracles.tova import TOVALayer
from oracles.window import WindowLayer


def no_rope(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    del positions
    return x


def radian(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Two components turned by one radian a position, so that (1, 0).(1, 0) = cos(distance)."""
    cos, sin = np.cos(positions.astype(float)), np.sin(positions.astype(float))
    return np.stack([x[:, 0] * cos - x[:, 1] * sin, x[:, 1] * cos + x[:, 0] * sin], axis=1)


def shares(layer: Layer, *w: float) -> np.ndarray:
    """One forward in which a slot's probability is its share of the weights w; values = position.

    A tuple as a weight gives each query head of the layer's one KV head a weight of its own.
    """
    weights = np.array([np.broadcast_to(x, (layer.Hq,)) for x in w], dtype=float)
    q = np.broadcast_to(np.eye(layer.Hq), (len(w), layer.Hq, layer.Hq))
    v = np.arange(layer.n, layer.n + len(w), dtype=float)[:, None, None]
    return layer.forward(q, np.log(weights)[:, None, :], v)[-1, :, 0]


def blank(layer: Layer, T: int) -> None:
    """T tokens without content."""
    zeros = np.zeros((T, layer.Hkv, 1))
    layer.forward(np.zeros((T, layer.Hq, 1)), zeros, zeros)


# -- all of them ------------------------------------------------------------------------------

EXACT = [
    ("window", {"budget": 1}, 1),
    ("window", {"budget": 9}, 9),
    ("tova", {"budget": 2}, 2),
    ("tova", {"budget": 9}, 9),
    ("random", {"budget": 5}, 5),
    ("random", {"budget": 12}, 12),
    ("oracle", {"budget": 1}, 1),
    ("oracle", {"budget": 9}, 9),
    ("raas", {"budget": 8, "page": 4}, 8),
    ("raas", {"budget": 12, "page": 4, "alpha": 0.2}, 12),
    ("rkv", {"budget": 11}, 11),
    ("rkv", {"budget": 20, "window": 4}, 20),
    ("snapkv", {"budget": 4}, 4),
    ("snapkv", {"budget": 20}, 20),
    ("h2o_uniform", {"budget": 9, "dense_layers": 0}, 9),
    ("h2o", {"budget": 8, "positions": "rolled", "decay": 0.9, "normalise": "age"}, 8),
    ("h2o", {"budget": 8, "heavy": 0}, 8),
    ("sink", {"budget": 8, "positions": "hf_sinkcache"}, 7),
    ("quest", {"budget": 64, "page": 4, "dense_layers": 0, "rule": "paper_script"}, 12),
    ("quest", {"budget": 5, "page": 1, "dense_layers": 0, "rule": "paper_script"}, 5),
    ("infllm", {"budget": 64, "far_position": "absolute"}, 64),
    ("infllm", {"budget": 16, "selection": "kv_head"}, 4),
]


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize(("method", "params", "until"), EXACT)
def test_full_attention_until_exact_until_and_not_after(
    method: str, params: dict[str, Any], until: int, heads: tuple[int, int]
) -> None:
    rope = rope_table(10_000.0, 8, np.float64)
    generator = np.random.default_rng(until)
    Hq, Hkv = heads
    made = METHODS[method](rope, Hq, Hkv, 0.5, **params)
    full = Layer(rope, Hq, Hkv, 0.5)
    assert made.exact_until() == until
    for n in range(1, until + 2):
        q = generator.normal(size=(1, Hq, 8))
        k, v = generator.normal(size=(2, 1, Hkv, 8))
        gap = np.abs(made.forward(q, k, v) - full.forward(q, k, v)).max()
        assert (gap < 1e-12) == (n <= until), f"n = {n}: {gap:.1e}"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("window", {"budget": 7}),
        ("tova", {"budget": 7}),
        ("random", {"budget": 9}),
        ("oracle", {"budget": 7}),
        ("raas", {"budget": 12, "page": 3}),
        ("rkv", {"budget": 20, "window": 4}),
        ("snapkv", {"budget": 20}),
        ("h2o", {"budget": 7, "heavy": 2, "positions": "rolled"}),
        ("sink", {"budget": 7, "positions": "hf_sinkcache"}),
    ],
)
def test_a_decode_query_reads_at_most_the_budget_and_itself(
    method: str, params: dict[str, Any]
) -> None:
    rope = rope_table(10_000.0, 8, np.float64)
    generator = np.random.default_rng(1)
    layer = METHODS[method](rope, 4, 2, 0.5, **params)
    most = 0
    for T in (6, *(1,) * 60):
        q = generator.normal(size=(T, 4, 8))
        k, v = generator.normal(size=(2, T, 2, 8))
        before = [set(kept) for kept in layer.kept()]
        layer.forward(q, k, v)
        for j, read in enumerate(layer.read):
            assert layer.n - 1 in read
            assert len(set(read)) == len(read) <= params["budget"]
            assert set(read) <= before[j] | set(range(layer.n - T, layer.n))
            most = max(most, len(read))
    assert most == params["budget"]


# -- window, tova -----------------------------------------------------------------------------


def test_window_keeps_the_last() -> None:
    layer = WindowLayer(no_rope, 1, 1, 1.0, budget=3)
    shares(layer, 1, 1, 1, 1, 1)
    assert layer.kept() == [[2, 3, 4]]
    assert shares(layer, 1)[0] == pytest.approx((3 + 4 + 5) / 3)
    assert layer.read == layer.kept() == [[3, 4, 5]]


def test_tova_drops_what_the_last_query_saw_least() -> None:
    layer = TOVALayer(no_rope, 1, 1, 1.0, budget=3)
    shares(layer, 4, 1, 3)
    assert layer.kept() == [[0, 2]]
    assert shares(layer, 1)[0] == pytest.approx((0 * 4 + 2 * 3 + 3 * 1) / 8)
    assert layer.read == [[0, 2, 3]]
    assert layer.kept() == [[0, 2]]  # the current token is not exempt
    shares(layer, 3)  # as much as token 2: the newer goes
    assert layer.kept() == [[0, 2]]
    shares(layer, 9)
    assert layer.kept() == [[0, 5]]


def test_tova_takes_the_mean_over_all_heads_and_one_set() -> None:
    layer = TOVALayer(no_rope, 2, 2, 1.0, budget=3)
    k = np.log(np.array([[[6.0], [1.0]], [[3.0], [5.0]], [[1.0], [4.0]]]))
    layer.forward(np.ones((3, 2, 1)), k, k)
    # Means of the shares: 7, 8 and 5 of 20. Head 0 alone would keep 0 and 1, head 1 alone 1 and 2.
    assert layer.kept() == [[0, 1]] * 2
    layer.forward(np.ones((1, 2, 1)), np.log([[[1.0], [20.0]]]), np.zeros((1, 2, 1)))
    # 6, 3, 1 of 10 and 1, 5, 20 of 26: sums 0.638, 0.492, 0.869.
    assert layer.kept() == [[0, 3]] * 2


# -- random -----------------------------------------------------------------------------------


def test_random_numbers_are_a_permutation_with_fixed_values() -> None:
    assert mix(0) == 0
    # 1 >> 16 = 0; 1 * 0x7feb352d = 0x7feb352d; ^ (>> 15 = 0xffd6) = 0x7febcafb; and so on.
    x = 0x7FEB352D ^ (0x7FEB352D >> 15)
    assert x == 0x7FEBCAFB
    x = x * 0x846CA68B % 2**32
    assert mix(1) == x ^ (x >> 16)
    assert number(3, 1, 2, 50) == mix(mix(mix(mix(3) + 1) + 2) + 50)
    assert number(-1, 0, 0, 9) == number(2**32 - 1, 0, 0, 9)
    assert len({mix(x) for x in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    ("budget", "sinks", "recent"), [(12, 4, None), (5, 4, 1), (9, 0, 3), (10, 2, 8)]
)
def test_random_keeps_first_newest_and_the_largest_numbers(
    budget: int, sinks: int, recent: int | None
) -> None:
    grown = RandomLayer(
        no_rope, 2, 2, 1.0, index=1, budget=budget, sinks=sinks, recent=recent, seed=5
    )
    newest = (budget - sinks) // 2 if recent is None else recent
    for n in range(1, 80):
        blank(grown, 1)
        at_once = RandomLayer(
            no_rope, 2, 2, 1.0, index=1, budget=budget, sinks=sinks, recent=recent, seed=5
        )
        blank(at_once, n)
        assert grown.kept() == at_once.kept()
        if n < budget:
            assert grown.kept() == [list(range(n))] * 2
            continue
        for j, kept in enumerate(grown.kept()):
            middle = sorted(range(sinks, n - newest + 1), key=lambda p: -number(5, 1, j, p))
            room = budget - 1 - sinks - (newest - 1)
            want = [*range(sinks), *middle[:room], *range(n - newest + 1, n)]
            assert kept == sorted(want)


def test_random_samples_the_middle_evenly() -> None:
    seen = np.zeros(200)
    for seed in range(400):
        layer = RandomLayer(no_rope, 1, 1, 1.0, budget=32, seed=seed)
        blank(layer, 200)
        seen[layer.kept()[0]] += 1
    assert set(seen[:4]) == set(seen[-13:]) == {400}
    middle = seen[4:-13]
    share = (32 - 1 - 4 - 13) / len(middle)
    assert middle.mean() == pytest.approx(400 * share)
    # Binomial: six deviations either side, and the halves alike.
    assert np.abs(middle - 400 * share).max() < 6 * math.sqrt(400 * share)
    assert middle[:91].mean() == pytest.approx(middle[91:].mean(), rel=0.1)


# -- oracle -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "read"),
    [
        ({"budget": 1}, [4]),
        ({"budget": 2}, [0, 4]),
        ({"budget": 3}, [0, 2, 4]),
        ({"budget": 4}, [0, 1, 2, 4]),  # 1 and 3 are equal: the older
        ({"budget": 5}, [0, 1, 2, 3, 4]),
        # Shares of 12: the current one 2, then 5, 3, 1, 1.
        ({"top_p": 0.1}, [4]),
        ({"top_p": 0.2}, [0, 4]),
        ({"top_p": 0.58}, [0, 4]),
        ({"top_p": 0.6}, [0, 2, 4]),
        ({"top_p": 0.9}, [0, 1, 2, 4]),
        ({"top_p": 0.95}, [0, 1, 2, 3, 4]),
    ],
)
def test_true_top_by_hand(params: dict[str, Any], read: list[int]) -> None:
    layer = TrueTopLayer(no_rope, 1, 1, 1.0, **params)
    w = [5, 1, 3, 1, 2]
    shares(layer, *w[:4])
    out = shares(layer, w[4])
    assert sorted(layer.read[0]) == read
    assert out[0] == pytest.approx(sum(p * w[p] for p in read) / sum(w[p] for p in read))
    assert layer.kept() == [[0, 1, 2, 3, 4]]


def test_true_top_reduces_probabilities_over_the_group() -> None:
    for gqa, read in (("sum", [1, 3]), ("mean", [1, 3]), ("max", [2, 3])):
        layer = TrueTopLayer(no_rope, 2, 1, 1.0, budget=2, gqa=gqa)
        shares(layer, (7, 1), (5, 5), (1, 8))
        shares(layer, (3, 2))  # shares of 16: sums 8, 10, 9; maxima 7, 5, 8
        assert layer.read == [read]
    layer = TrueTopLayer(no_rope, 2, 1, 1.0, top_p=0.6, gqa="max")
    shares(layer, (7, 1), (5, 5), (1, 8))
    shares(layer, (3, 2))  # maxima 7, 5, 8, 3 of 23: 3 + 8 = 0.48, + 7 = 0.78
    assert sorted(layer.read[0]) == [0, 2, 3]


# -- raas -------------------------------------------------------------------------------------


def test_raas_drops_the_page_which_mattered_longest_ago() -> None:
    layer = RaaSLayer(no_rope, 1, 1, 1.0, budget=8, page=2)
    for w in (8, 8, 1, 1, 1, 1, 1):
        shares(layer, w)
    assert layer.prompt_pages == {0}
    # n = 7: the top half of four pages is the first and, of three equal ones, the oldest.
    assert layer.stamps == [{0: 7, 1: 7, 2: 6, 3: 7}]
    shares(layer, 1)
    assert layer.read == [list(range(8))]
    assert layer.kept() == [[0, 1, 2, 3, 6, 7]]
    assert layer.stamps == [{0: 8, 1: 8, 3: 8}]
    shares(layer, 1)
    assert layer.kept() == [[0, 1, 2, 3, 6, 7, 8]]
    assert layer.stamps == [{0: 9, 1: 9, 3: 8, 4: 9}]
    shares(layer, 1)
    assert layer.kept() == [[0, 1, 2, 3, 8, 9]]


def test_raas_with_a_threshold() -> None:
    layer = RaaSLayer(no_rope, 1, 1, 1.0, budget=8, page=2, alpha=0.3)
    for w in (8, 8, 1, 1, 1, 1, 1, 1):  # 8 of 22 = 0.36
        shares(layer, w)
    assert layer.stamps == [{0: 8, 2: 6, 3: 8}]  # page 1 mattered last at n = 4
    assert layer.kept() == [[0, 1, 4, 5, 6, 7]]
    # 10 of 30 to 31 is above the threshold, 8 is not: the prompt page stays all the same.
    shares(layer, 10)
    assert layer.stamps == [{0: 8, 2: 6, 3: 8, 4: 9}]
    shares(layer, 1)
    assert layer.kept() == [[0, 1, 6, 7, 8, 9]]
    shares(layer, 1)
    shares(layer, 1)
    assert layer.stamps == [{0: 8, 4: 12, 5: 12}]
    assert layer.kept() == [[0, 1, 8, 9, 10, 11]]


def test_raas_tied_stamps_drop_the_oldest_page() -> None:
    layer = RaaSLayer(no_rope, 1, 1, 1.0, budget=6, page=2)
    for w in (1, 1, 8, 8, 1, 1):
        shares(layer, w)
    # Page 1 was refreshed at n = 6, page 2 holds the current token: both have stamp 6.
    assert layer.kept() == [[0, 1, 4, 5]]


def test_raas_protects_the_prompt_or_does_not() -> None:
    free = {"budget": 4, "page": 2, "protect_prompt": False}
    for T, kept in ((10, [8, 9]), (9, [6, 7, 8]), (4, [2, 3]), (3, [0, 1, 2])):
        layer = RaaSLayer(no_rope, 1, 1, 1.0, **free)
        blank(layer, T)
        assert layer.kept() == [kept]
    layer = RaaSLayer(no_rope, 1, 1, 1.0, budget=6, page=2)
    blank(layer, 3)
    assert layer.prompt_pages == {0, 1}  # the second page holds an answer token as well
    for _ in range(9):
        blank(layer, 1)
    assert layer.kept() == [[0, 1, 2, 3]]  # only the page just filled could go, and went
    layer = RaaSLayer(no_rope, 1, 1, 1.0, budget=6, page=2)
    with pytest.raises(ValueError, match="prompt"):
        blank(layer, 5)


def test_raas_reduces_page_scores_over_the_group() -> None:
    for gqa, refreshed in (("sum", [2]), ("max", [0])):
        layer = RaaSLayer(no_rope, 2, 1, 1.0, budget=20, page=2, gqa=gqa)
        for w in ((7, 1), (1, 1), (1, 1), (1, 1), (4, 6), (2, 6)):  # shares of 16
            shares(layer, w)
        assert layer.refreshed(0) == refreshed


# -- snapkv, rkv ------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "kept"), [(1, [0, 2, 3, 5]), (3, [1, 2, 3, 4])])
def test_snapkv_by_hand(kernel: int, kept: list[int]) -> None:
    layer = SnapKVLayer(no_rope, 1, 1, 1.0, budget=8, kernel=kernel)
    assert (layer.window, layer.stay) == (2, 6)
    # Neighbourhoods of three: 6, 10, 7, 7.5, 6.5, 4.5.
    shares(layer, 5, 1, 4, 2, 1.5, 3, 1, 1)
    assert layer.kept() == [[*kept, 6, 7]]
    shares(layer, 1)
    assert layer.read == layer.kept() == [[*kept, 6, 7, 8]]
    shares(layer, 1)
    assert len(layer.read[0]) == 8
    assert len(layer.kept()[0]) == 6


def test_snapkv_queries_do_not_see_the_future() -> None:
    layer = SnapKVLayer(no_rope, 1, 1, 1.0, budget=20, window=2, kernel=3)
    w = np.array([5, 1, 4, 2, 1, 100.0])
    shares(layer, *w)
    p = w[:4] / 13 + w[:4] / 113
    want = [p[:2].sum() / 3, p[:3].sum() / 3, p[1:].sum() / 3, p[2:].sum() / 3]
    assert layer.scores(0, np.log(w)[:, None]) == pytest.approx(want)


def test_snapkv_reduces_sums_of_the_window_over_the_group() -> None:
    keys = np.log(np.array([(1.0, 1), (5, 1), (1, 8), (1, 1), (1, 1)]))
    for gqa, want in (("sum", [1 / 9 + 1 / 12, 5 / 9 + 1 / 12]), ("max", [1 / 9, 5 / 9])):
        layer = SnapKVLayer(no_rope, 2, 1, 1.0, budget=20, window=1, kernel=1, gqa=gqa)
        shares(layer, *map(tuple, np.exp(keys)))
        assert layer.scores(0, keys)[:2] == pytest.approx(want)


def test_rkv_similarity_forgives_the_newest() -> None:
    layer = RKVLayer(no_rope, 1, 1, 1.0, budget=20, window=1)
    keys = np.array([(2.0, 0), (1, 0), (0, 3), (5, 0)])
    # Rows 0 and 1 forgive 3, row 3 forgives 1, row 2 has nobody.
    want = np.zeros((4, 4))
    want[0, 1] = want[1, 0] = want[3, 0] = 1
    assert layer.similarity(keys) == pytest.approx(want, abs=1e-7)
    # Below the threshold nobody is forgiven, and negative cosines count.
    keys = np.array([(1.0, 0), (0.4, math.sqrt(0.84)), (-1, 0)])
    want = np.array([[0, 0.4, -1], [0.4, 0, -0.4], [-1, -0.4, 0]])
    assert layer.similarity(keys) == pytest.approx(want, abs=1e-7)


def test_rkv_attention_by_hand() -> None:
    for kernel, pooled in ((1, [5, 1, 4, 2]), (3, [5, 5, 4, 4]), (7, [5, 5, 5, 5])):
        layer = RKVLayer(no_rope, 1, 1, 1.0, budget=20, window=2, kernel=kernel)
        shares(layer, 5, 1, 4, 2, 7, 100)
        # Softmax over the candidates alone; both queries see them alike.
        got = layer.attention(0, np.log([[5.0], [1], [4], [2]]))
        assert got == pytest.approx(np.array(pooled) / 12)


def test_rkv_reduces_logits_before_the_softmax() -> None:
    keys = np.log(np.array([(1.0, 4), (9, 1), (2, 2)]))
    for gqa, w in (("max", [4, 9, 2]), ("mean", [2, 3, 2])):
        layer = RKVLayer(no_rope, 2, 1, 1.0, budget=20, window=1, kernel=1, gqa=gqa)
        shares(layer, *map(tuple, np.exp(keys)), (1, 1))
        assert layer.attention(0, keys) == pytest.approx(np.array(w) / sum(w))


def test_rkv_mixes_attention_and_redundancy() -> None:
    layer = RKVLayer(no_rope, 1, 1, 1.0, budget=20, window=1, kernel=1, mix=0.25)
    layer.queries = [np.array([[math.log(2), 0.0]])]
    keys = np.array([(2.0, 0), (1, 0), (0, 3), (5, 0)])
    attention = np.array([4, 2, 1]) / 7
    e = np.exp([2 / 4, 1 / 4, 0, 0])
    want = 0.25 * attention - 0.75 * (e / e.sum())[:3]
    assert layer.scores(0, keys) == pytest.approx(want)


def test_rkv_and_snapkv_compress_at_the_budget_and_keep_the_window() -> None:
    for layer in (
        RKVLayer(no_rope, 2, 2, 1.0, budget=24),
        SnapKVLayer(no_rope, 2, 2, 1.0, budget=24, window=8),
    ):
        generator = np.random.default_rng(3)
        sizes = []
        for T in (5, *(1,) * 60, 30, 1):
            layer.forward(*generator.normal(size=(3, T, 2, 4)))
            sizes.append(len(layer.kept()[0]))
            for kept in layer.kept():
                assert kept[-8:] == list(range(layer.n))[-8:]
        # To 24 and back to 18, every six tokens; a long chunk is cut to 18 at once.
        grown = [5 + i for i in range(19)] + [18 + i % 6 for i in range(42)]
        assert sizes == [*grown, 18, 19]


@pytest.mark.parametrize(
    ("method", "budget", "params"),
    [("rkv", 10, {}), ("snapkv", 3, {}), ("snapkv", 20, {"window": 15})],
)
def test_budgets_too_small_for_the_window(method: str, budget: int, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="too small"):
        METHODS[method](no_rope, 1, 1, 1.0, budget=budget, **params)


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
