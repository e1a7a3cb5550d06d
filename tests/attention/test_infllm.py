"""InfLLM: the parts that tokens fall into, rows that repeat themselves, and chunks."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attention
from attention.core.ropes import Rope
from attention.layers.layer import Geometry
from attention.methods.infllm.method import InfLLMLayer, Parts
from attention.testing.driving import decode, follow, prefill
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

CPU = torch.device("cpu")
SMALL = attention.InfLLM(budget=32, n_init=5, block=4, topk=2, n_local=12, repr_topk=2)


@settings(max_examples=200, deadline=None)
@given(budget=st.integers(16, 5000))
def test_every_budget_is_used_up(budget: int) -> None:
    p = attention.InfLLM(budget=budget).parts
    assert p.n_init + p.n_local + (p.topk + 1) * p.block == budget
    assert min(p.n_local, p.topk, p.repr_topk) >= 1


def parts_of(seen: int, p: Parts) -> list[list[int]]:
    """Init, window, remainder and full blocks, token by token from the words of the method."""
    left = list(range(max(seen - p.n_local, 0)))
    init, rest = left[: p.n_init], left[p.n_init :]
    blocks = [rest[i : i + p.block] for i in range(0, len(rest), p.block)]
    window = list(range(len(left), seen))
    return [init, window, blocks[-1] if blocks else [], *blocks[:-1]]


@settings(max_examples=100, deadline=None)
@given(
    seen=st.integers(1, 120),
    n_init=st.integers(0, 9),
    n_local=st.integers(1, 20),
    block=st.integers(1, 8),
    topk=st.integers(0, 4),
)
def test_every_token_is_in_exactly_one_part(
    seen: int, n_init: int, n_local: int, block: int, topk: int
) -> None:
    parts = Parts(n_init, n_local, block, topk, 1)
    geometry = Geometry("infllm", 0, 1, 2, 1, 4, torch.float64, CPU, Rope(None))
    layer = InfLLMLayer(geometry, attention.InfLLM(budget=10_000, **parts._asdict()))
    init, window, remainder, *blocks = parts_of(seen, parts)
    n = np.array([seen])
    assert sorted([*init, *window, *remainder, *chain(*blocks)]) == list(range(seen))
    assert not init + blocks or len(window) == n_local
    assert len(remainder) in range(block + 1)
    assert layer.left(n)[0] == seen - len(window)
    assert layer.full_blocks(n)[0] == len(blocks)
    assert layer.reads(n)[0] == seen - block * max(len(blocks) - topk, 0)
    # Slots: the first tokens in their own pages, each block in one page, no slot twice.
    gone = np.arange(seen - len(window))
    slot = layer.far_slot(gone)
    assert (np.diff(slot) > 0).all()
    assert layer.far_position(torch.from_numpy(slot)).tolist() == gone.tolist()
    for number, tokens_of in enumerate(blocks):
        page = slot[tokens_of] // block
        assert (page == layer.init_pages + number).all()
    empty = sorted(set(range(layer.init_pages * block)) - set(slot.tolist()))
    if len(gone) >= n_init:
        assert (layer.far_position(torch.tensor(empty, dtype=torch.long)) > seen).all()


def test_rows_with_repeating_text_do_not_depend_on_their_batch() -> None:
    """Equal tokens tie; the older block wins however products are rounded."""
    m = tiny_model()
    period = tokens(5).repeat(40)
    with SMALL.on(m) as cache:
        texts = [period[:100], period[:37], tokens(90, seed=2)]
        given = torch.stack([period[100:140], period[37:77], tokens(40, seed=3)])
        got = follow(m, cache, texts, given)
        read = [x for i in range(2) for x in cache.read_positions(i)[:2]]
        for r in range(2):
            alone = cache.new()
            want = follow(m, alone, [texts[r]], given[r : r + 1])[0]
            assert (got[r] - want).abs().max() < 1e-9
            for i in range(2):
                assert torch.equal(alone.read_positions(i)[0], read[2 * i + r])


@torch.no_grad()
def test_chunks_that_end_where_blocks_of_queries_do_change_nothing() -> None:
    m, ids = tiny_model(), tokens(1, 66)
    backend = attention.InfLLM(**SMALL.params() | {"prefill": "reference", "exc_block": 6})
    with backend.on(m) as cache:
        whole = m(input_ids=ids, past_key_values=cache).logits[:, -1]
        then = tokens(1, 10, seed=4)
        want = decode(m, cache, then)
        for chunk, same in ((6, True), (18, True), (8, False)):
            other = cache.new()
            last = prefill(m, other, list(ids), chunk)[:, -1]
            got = decode(m, other, then)
            gap = max((last - whole).abs().max(), (got - want).abs().max())
            assert (gap < 1e-9) == same
