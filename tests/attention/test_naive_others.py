"""The oracles of the further backends: against full attention, and sums by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.attention.oracles.by_hand import blank, no_rope, shares
from tests.attention.oracles.oracle_topk import TrueTopLayer
from tests.attention.oracles.raas import RaaSLayer
from tests.attention.oracles.random import RandomLayer, mix, number
from tests.attention.oracles.rkv import RKVLayer
from tests.attention.oracles.snapkv import SnapKVLayer
from tests.attention.oracles.tova import TOVALayer
from tests.attention.oracles.window import WindowLayer

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
    free = {"budget": 4, "page": 2, "keep_prompt": False}
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
