"""The oracles themselves: against transformers where it can decide, and against sums by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.attention.oracles.by_hand import no_rope, radian
from tests.attention.oracles.compare import (
    TOLERANCE,
    Case,
    run_oracle,
    transformers_logits,
)
from tests.attention.oracles.h2o import H2OLayer
from tests.attention.oracles.infllm import InfLLMLayer
from tests.attention.oracles.layer import Layer, Slot
from tests.attention.oracles.models import HEADS
from tests.attention.oracles.naive_model import FAMILIES
from tests.attention.oracles.quest import QuestLayer
from tests.attention.oracles.sink import SinkLayer


def feed(layer: Layer, q: Any, k: Any, v: Any) -> np.ndarray:
    """One-head (T, D) arrays -> (T, D)."""
    q, k, v = (np.asarray(x, dtype=float)[:, None, :] for x in (q, k, v))
    return layer.forward(q, k, v)[:, 0]


# -- against transformers ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_naive_model_is_transformers(
    family: str, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    case = Case(family, heads, "full", (), dtype, layers=3, prompt=20, steps=60)
    got = np.array(run_oracle(case).logits)
    want = transformers_logits(case.model, case.tokens())[case.prompt - 1 :]
    assert np.abs(want).max() > 1  # a model whose logits are all small would prove little
    assert np.abs(got - want).max() <= TOLERANCE[dtype]


# -- sink -------------------------------------------------------------------------------------


def test_sink_keeps_first_four_and_last() -> None:
    for at_once in (False, True):
        layer = SinkLayer(no_rope, 1, 1, 1.0, budget=6)
        if at_once:
            feed(layer, np.zeros((10, 2)), np.zeros((10, 2)), np.zeros((10, 2)))
        else:
            for n in range(10):
                feed(layer, np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2)))
                if n == 5:
                    assert layer.kept() == [[0, 1, 2, 3, 4, 5]]
        assert layer.kept() == [[0, 1, 2, 3, 8, 9]]


@pytest.mark.parametrize(
    ("positions", "distances"), [("cache", [2, 1, 0]), ("absolute", [5, 1, 0])]
)
def test_sink_distances(positions: str, distances: list[int]) -> None:
    layer = SinkLayer(radian, 1, 1, 1.0, budget=3, sinks=1, positions=positions)
    feed(layer, [[1, 0]] * 5, [[1, 0]] * 5, np.eye(6)[:5])
    out = feed(layer, [[1, 0]], [[1, 0]], np.eye(6)[5:])
    weights = np.exp(np.cos(distances))
    want = np.zeros(6)
    want[[0, 4, 5]] = weights / weights.sum()
    assert layer.read == [[0, 4, 5]]
    assert out[0] == pytest.approx(want)


# -- h2o --------------------------------------------------------------------------------------


def test_h2o_scores_and_evictions_by_hand() -> None:
    # q = 1 and k = log(w), so a slot's probability is its share of the weights w.
    layer = H2OLayer(no_rope, 1, 1, 1.0, budget=4)

    def tokens(*w: float) -> np.ndarray:
        first = layer.n
        values = [[first + i] for i in range(len(w))]
        return feed(layer, [[1.0]] * len(w), [[math.log(x)] for x in w], values)[-1]

    def scores() -> list[float]:
        return [float(slot.score[0]) for slot in layer.slots[0]]

    tokens(4, 1, 3)
    assert layer.kept() == [[0, 1, 2]]
    assert scores() == pytest.approx([1 + 4 / 5 + 4 / 8, 1 / 5 + 1 / 8, 3 / 8])
    assert tokens(8)[0] == pytest.approx((0 * 4 + 1 * 1 + 2 * 3 + 3 * 8) / 16)
    assert layer.read == [[0, 1, 2, 3]]
    assert layer.kept() == [[0, 2, 3]]
    assert scores() == pytest.approx([2.3 + 4 / 16, 3 / 8 + 3 / 16, 8 / 16])
    tokens(1)  # position 4; the shares are 4, 3, 8, 1 of 16
    assert layer.kept() == [[0, 3, 4]]
    assert scores() == pytest.approx([2.8, 1.0, 1 / 16])
    tokens(3)  # position 5 is new and stays, position 4 loses
    assert layer.kept() == [[0, 3, 5]]


def test_h2o_reads_a_long_prompt_whole_then_cuts() -> None:
    layer = H2OLayer(no_rope, 1, 1, 1.0, budget=5)  # heavy 2, recent 3
    out = feed(layer, [[1.0]] * 7, [[0.0]] * 7, [[i] for i in range(7)])
    assert out[-1] == pytest.approx(3.0)
    # Equal keys: whoever was there longer has the larger sum.
    assert layer.kept() == [[0, 1, 5, 6]]


def test_h2o_reduction_over_the_group() -> None:
    for gqa, kept in (("sum", [1]), ("mean", [1]), ("max", [0])):
        layer = H2OLayer(no_rope, 2, 1, 1.0, budget=2, gqa=gqa)  # heavy 1, recent 1
        for position, score in enumerate([(0.9, 0.0), (0.5, 0.5), (0.0, 0.7)]):
            layer.slots[0].append(Slot(position, np.zeros(1), np.zeros(1), np.array(score)))
        layer.cut()
        assert layer.kept() == [kept]


def test_ties_go_to_the_older_token() -> None:
    layer = Layer(no_rope, 1, 1, 1.0)
    assert layer.best(np.array([1.0, 2.0, 2.0, 2.0]), 2) == [1, 2]
    assert layer.margin == 0


# -- quest ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "read"),
    [((1, 1), [0, 1, 4]), ((1, -1), [2, 3, 4]), ((-1, 0.25), [0, 1, 4])],
)
def test_quest_page_choice_by_hand(query: tuple[float, float], read: list[int]) -> None:
    # Bounds: page 0 is (0..1, 0..1), page 1 is the point (1.5, 0). For q = (1, 1) they are 2 and
    # 1.5 although no key of page 0 has q.k > 1; for (1, -1) 1 and 1.5; for (-1, 1/4) 1/4 and -1.5.
    layer = QuestLayer(no_rope, 1, 1, 1.0, budget=4, page=2, dense_layers=0)
    keys = [[1, 0], [0, 1], [1.5, 0], [1.5, 0]]
    feed(layer, [[0, 0]] * 3, keys[:3], [[0.0, 0.0]] * 3)
    feed(layer, [query], keys[3:], [[0.0, 0.0]])
    assert layer.read == [[0, 1, 2, 3]]  # two pages fit
    feed(layer, [query], [[-9, -9]], [[0.0, 0.0]])
    assert layer.read == [read]


def test_quest_groups_and_dense_layers() -> None:
    q = np.array([[[4.0, 0.0], [-1.0, 0.0]]])  # two heads of opposite taste
    keys = np.array([[1.0, 0], [1, 0], [-2, 0], [-2, 0], [0, 0]])[:, None]

    def read(**params: Any) -> list[list[int]]:
        layer = QuestLayer(no_rope, 2, 1, 1.0, budget=4, page=2, **params)
        layer.forward(np.zeros((4, 2, 2)), keys[:4], keys[:4])
        layer.forward(q, keys[4:], keys[4:])
        return layer.read

    assert read(dense_layers=0) == [[0, 1, 4]]  # 4 - 1 against -8 + 2
    assert read(dense_layers=0, gqa="query_head") == [[0, 1, 2, 3, 4]]
    assert read(dense_layers=1) == [[0, 1, 2, 3, 4]]
    assert read(dense_layers=1, index=1) == [[0, 1, 4]]


# -- infllm -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "init", "blocks", "remainder", "local"),
    [
        (4, [], [], [], [0, 1, 2, 3]),
        (6, [0, 1], [], [], [2, 3, 4, 5]),
        (9, [0, 1, 2, 3], [], [4], [5, 6, 7, 8]),
        (12, [0, 1, 2, 3], [], [4, 5, 6, 7], [8, 9, 10, 11]),
        (13, [0, 1, 2, 3], [[4, 5, 6, 7]], [8], [9, 10, 11, 12]),
        (20, [0, 1, 2, 3], [[4, 5, 6, 7], [8, 9, 10, 11]], [12, 13, 14, 15], [16, 17, 18, 19]),
    ],
)
def test_infllm_partition_by_hand(
    n: int, init: list[int], blocks: list[list[int]], remainder: list[int], local: list[int]
) -> None:
    layer = InfLLMLayer(no_rope, 1, 1, 1.0, budget=16)
    layer.n = n
    parts = layer.parts()
    assert list(parts.init) == init
    assert [list(block) for block in parts.blocks] == blocks
    assert list(parts.remainder) == remainder
    assert list(parts.local) == local


def test_infllm_far_tokens_are_all_at_one_distance() -> None:
    layer = InfLLMLayer(radian, 1, 1, 1.0, budget=16)  # n_local 4
    feed(layer, [[1, 0]] * 5, [[1, 0]] * 5, np.eye(6)[:5])
    out = feed(layer, [[1, 0]], [[1, 0]], np.eye(6)[5:])
    weights = np.exp(np.cos([3, 3, 3, 2, 1, 0]))  # the true distances of the first two: 5 and 4
    assert out[0] == pytest.approx(weights / weights.sum())


def test_infllm_mass_representative_and_choice() -> None:
    layer = InfLLMLayer(no_rope, 1, 1, 1.0, budget=64)  # init 4, block 8, top 3, local 28
    keys = np.stack([np.zeros(80), np.arange(80.0)], axis=1)
    feed(layer, [[1, 0]] * 80, keys, np.zeros((80, 2)))
    # q.k = 0 everywhere: token j has 1/(i+1) from each of the queries j .. j + 27.
    mass = sum(1 / (i + 1) for i in range(4, 32))
    assert float(layer.slots[0][4].score[0]) == pytest.approx(mass)
    assert float(layer.slots[0][79].score[0]) == pytest.approx(1 / 80)
    # Shares fall with the query's position: the first four of a block represent it, 4 .. 7.
    feed(layer, [[0, 1]], [[0, 80]], [[0, 0]])
    assert layer.representatives[0, 4] == pytest.approx([0, 5.5])
    # 81 seen, 53 left the window: blocks from 4, 12, 20, 28, 36, 44 and a remainder of one, 52.
    assert layer.read == [[*range(4), *range(28, 52), 52, *range(53, 81)]]


def test_infllm_selects_one_set_for_all_heads() -> None:
    layer = InfLLMLayer(no_rope, 2, 2, 1.0, budget=16)  # block 4, top 1
    k = np.zeros((17, 2, 1))
    k[4:8, 0], k[8:12, 1] = 1.0, 3.0
    layer.forward(np.zeros((16, 2, 1)), k[:16], k[:16])
    layer.forward(np.array([[[2.0], [1.0]]]), k[16:], k[16:])
    # Block 4..7 scores 2 * 1, block 8..11 scores 1 * 3: it is taken for both heads. 12 remains.
    assert layer.read == [[0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16]] * 2
