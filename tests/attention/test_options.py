"""Options of h2o, quest and infllm: rows against their oracles, and what each option promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from driving import decode, follow, left_pad, model, prefill, step, tokens

import attention
from tests.attention.oracles.compare import oracle
from tests.attention.oracles.models import VOCABULARY

# Small parts, so that there is a choice of blocks from 30 tokens on.
PARTS = {"budget": 32, "n_init": 3, "block": 4, "topk": 2, "n_local": 10, "repr_topk": 2}
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("quest", {"budget": 16, "page": 4, "dense_layers": 0, "rule": "paper_script"}),
    ("quest", {"budget": 8, "page": 4, "dense_layers": 1, "rule": "paper_script"}),
    ("infllm", {**PARTS, "selection": "kv_head"}),
    ("infllm", {**PARTS, "far_position": "absolute"}),
    ("infllm", {**PARTS, "prefill": "reference", "exc_block": 7}),
    ("infllm", {**PARTS, "prefill": "reference", "selection": "kv_head"}),
    ("h2o", {"budget": 9, "gqa": "query_head"}),
)
IDS = [f"{method}-{'-'.join(map(str, params.values()))}" for method, params in OPTIONS]
options = pytest.mark.parametrize(("method", "params"), OPTIONS, ids=IDS)


def random_tokens(seed: int, *lengths: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCABULARY, n).tolist() for n in lengths]


# -- rows -------------------------------------------------------------------------------------


@options
@torch.no_grad()
def test_chunks_and_steps_are_the_oracle(method: str, params: dict[str, Any]) -> None:
    """Behind the first step tokens that come together are read one after the other."""
    m = model("qwen3", (4, 1))
    naive, seen = oracle(m, method, params, torch.float64), 0
    (text,) = random_tokens(8, 75)
    with attention.get(method, **params).on(m) as cache:
        for T in (14, 22, 1, 5, 1, 1, 2, 1, 28):
            chunk = text[seen : seen + T]
            parts = [chunk] if seen < 14 + 22 else [[token] for token in chunk]
            out = m(
                input_ids=torch.tensor([chunk]),
                position_ids=torch.arange(seen, seen + T)[None],
                past_key_values=cache,
            )
            want = np.concatenate([naive.forward(part) for part in parts])
            gap = np.abs(out.logits[0].numpy() - want).max()
            assert gap <= 1e-9, f"{T} tokens after {seen}: {gap:.1e}"
            seen += T


# -- quest, paper_script ----------------------------------------------------------------------


def script(**params: Any) -> attention.Quest:
    return attention.Quest(page=4, dense_layers=0, rule="paper_script", **params)


def test_the_script_loses_a_page_below_the_budget() -> None:
    m, read = model(), []
    with script(budget=1024).on(m) as cache, torch.no_grad():
        prefill(m, cache, [tokens(11)])
        for column in tokens(1, 18).T:
            step(m, cache, column)
            heads = (cache.read_positions(1)[0] >= 0).sum(-1)
            read.append(set(heads.tolist()))
    whole = dict(zip(range(12, 30), read, strict=True))
    assert all(whole[n] == {n} for n in (12, 16, 20, 24, 28))  # whole pages
    # One page of the begun ones is lost: a whole one, or the begun one.
    for n, counts in whole.items():
        if n % 4:
            assert counts <= {n - 4, n - n % 4}
    assert any(n - n % 4 in counts for n, counts in whole.items() if n % 4)  # the last one too


def test_the_script_reads_three_pages_of_a_smaller_budget() -> None:
    """And says so; the other methods raise when they read more than the budget."""
    m, most = model(), 0
    with script(budget=8).on(m) as cache, torch.no_grad():
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


def test_what_the_heads_of_the_script_read_is_what_is_reported() -> None:
    m = model()
    with script(budget=16).on(m) as cache, torch.no_grad():
        prefill(m, cache, [tokens(41), tokens(9, seed=1), tokens(22, seed=2)])
        for column in tokens(3, 15).T:
            step(m, cache, column)
            stats = cache.row_stats()
            for r, n in enumerate(cache.seen.tolist()):
                heads = [cache.read_positions(layer)[r] for layer in range(2)]
                counts = torch.cat([(h >= 0).sum(-1).expand(4) for h in heads]).double()
                assert stats.read_max[r] == counts.max()
                assert stats.read_mean[r] == pytest.approx(float(counts.mean()))
                pages = -(-n // 4)
                bounds = 0 if pages <= max(min(n, 16) // 4, 3) else 2 * pages
                groups = [g.flatten().tolist() for h in heads for g in h.chunk(2)]
                union = sum(len(set(g) - {-1}) for g in groups)
                assert stats.keys_read[r] == union + 2 * 2 * bounds


def test_the_script_knows_no_reduction() -> None:
    assert script(budget=16).params()["gqa"] == "query_head"
    assert attention.Quest(budget=32).params()["gqa"] == "sum"
    with pytest.raises(attention.InvalidValue, match="query_head"):
        script(budget=16, gqa="sum")
    with pytest.raises(attention.InvalidValue, match="did you mean 'paper_script'"):
        attention.Quest(budget=32, rule="paper-script")


def test_pages_of_one_token_are_exact_as_far_as_the_budget() -> None:
    assert script(budget=8).exact_until == 12
    assert script(budget=64).exact_until == 12
    page = {"page": 1, "dense_layers": 0, "rule": "paper_script"}
    assert attention.Quest(budget=2, **page).exact_until == 3
    assert attention.Quest(budget=9, **page).exact_until == 9


# -- infllm -----------------------------------------------------------------------------------


def test_all_blocks_at_their_own_positions_are_full_attention() -> None:
    m, text, then = model("qwen3"), [tokens(50), tokens(7, seed=1)], tokens(2, 40)
    with attention.Full().on(m) as cache:
        want = follow(m, cache, text, then)
    whole = {**PARTS, "budget": 1000, "topk": 40}
    with attention.InfLLM(**whole, far_position="absolute").on(m) as cache:
        assert (follow(m, cache, text, then) - want).abs().max() < 1e-9
    with attention.InfLLM(**whole).on(m) as cache:
        assert (follow(m, cache, text, then) - want).abs().max() > 1e-3


@pytest.mark.parametrize(("budget", "until"), [(16, 16), (64, 64), (1024, 1024)])
def test_absolute_positions_are_exact_until_a_block_is_left_out(budget: int, until: int) -> None:
    assert attention.InfLLM(budget=budget, far_position="absolute").exact_until == until
    assert attention.InfLLM(**PARTS, far_position="absolute").exact_until == 3 + 10 + 3 * 4


def test_kv_heads_choose_for_themselves() -> None:
    m, differ = model(), 0
    backend = attention.InfLLM(**PARTS, selection="kv_head")
    with backend.on(m) as cache, torch.no_grad():
        prefill(m, cache, [tokens(70), tokens(41, seed=1)])
        for column in tokens(2, 10).T:
            step(m, cache, column)
            for r in range(2):
                a, b = cache.read_positions(1)[r].tolist()
                differ += a != b
                assert len(a) == len(b) <= 32
    assert differ
    one = model("llama", (4, 1))
    logits = []
    for selection in ("layer", "kv_head"):
        with attention.InfLLM(**PARTS, selection=selection).on(one) as cache:
            logits.append(follow(one, cache, [tokens(60)], tokens(1, 20)))
    assert torch.equal(*logits)


def reference(exc_block: int, **more: Any) -> attention.InfLLM:
    return attention.InfLLM(**PARTS, prefill="reference", exc_block=exc_block, **more)


@pytest.mark.parametrize("selection", ["layer", "kv_head"])
@torch.no_grad()
def test_one_query_at_once_is_a_prompt_token_by_token(selection: str) -> None:
    """A block of one query sees nothing twice, and is a decode step."""
    m, ids = model("qwen3"), tokens(2, 70)
    with reference(1, selection=selection).on(m) as cache:
        whole = m(input_ids=ids, past_key_values=cache).logits
        stepwise = follow(m, cache.new(), list(ids[:, :1]), ids[:, 1:])
    assert (whole - stepwise).abs().max() < 1e-9


@torch.no_grad()
def test_chunks_that_end_where_blocks_of_queries_do_change_nothing() -> None:
    m, ids = model(), tokens(1, 66)
    with reference(6).on(m) as cache:
        whole = m(input_ids=ids, past_key_values=cache).logits[:, -1]
        then = tokens(1, 10, seed=4)
        want = decode(m, cache, then)
        for chunk, same in ((6, True), (18, True), (8, False)):
            other = cache.new()
            last = prefill(m, other, list(ids), chunk)
            got = decode(m, other, then)
            gap = max((last - whole).abs().max(), (got - want).abs().max())
            assert (gap < 1e-9) == same


@torch.no_grad()
def test_a_sparse_prefill_is_dense_inside_the_window_only() -> None:
    m, texts = model(), [tokens(30), tokens(9, seed=1)]
    ids, mask = left_pad(texts)
    place = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = []
    for backend in (attention.InfLLM(**PARTS), reference(7)):
        with backend.on(m) as cache:
            call = {"input_ids": ids, "attention_mask": mask, "position_ids": place}
            logits.append(m(**call, past_key_values=cache).logits)
    gap = (logits[0] - logits[1]).abs().amax(-1)
    # Queries 7 to 13 are processed together: 0 to 3 are outside the window of the last.
    assert gap[0, :7].max() < 1e-9
    assert (gap[0, 7:] > 1e-6).all()
    assert gap[1, -9:].max() < 1e-9


@torch.no_grad()
def test_representatives_follow_the_sparse_prefill() -> None:
    """The keys with most mass under the probabilities of the sparse prefill, not the dense one."""
    m, ids = model(), tokens(1, 75)
    found = []
    for backend in (attention.InfLLM(**PARTS), reference(10)):
        with backend.on(m) as cache:
            m(input_ids=ids, past_key_values=cache)
            found.append(cache.layers[0].state["means"].data[0, 0, :15].clone())
    same = (found[0] - found[1]).abs().amax(-1) < 1e-9  # the first layer's keys are the same
    assert 0 < same.sum() < 15


def test_exc_block_is_four_blocks_and_within_the_window() -> None:
    def in_force(**params: Any) -> Any:
        return attention.InfLLM(**params).params()["exc_block"]

    assert in_force(budget=1024) is None
    assert in_force(budget=1024, prefill="reference") == 128
    assert in_force(budget=64, prefill="reference") == 28
    assert in_force(budget=64, prefill="reference", exc_block=9) == 9


# -- h2o, a set per query head ----------------------------------------------------------------


def test_query_heads_keep_sets_of_their_own_at_g_times_the_memory() -> None:
    m, texts, then = model("llama", (4, 1)), [tokens(30), tokens(5, seed=1)], tokens(2, 20)
    found = {}
    for gqa in ("sum", "query_head"):
        with attention.H2O(budget=10, gqa=gqa).on(m) as cache:
            follow(m, cache, texts, then)
            found[gqa] = cache.row_stats(), cache.read_positions(1), cache.kv_heads
    (one, _, heads), (own, read, same_heads) = found["sum"], found["query_head"]
    assert heads == same_heads == 2  # keys a dense step reads per token
    assert (own.bytes == 4 * one.bytes).all()
    for r in range(2):
        assert read[r].shape == (4, 10)
        assert len({tuple(head) for head in read[r].tolist()}) > 1
        assert one.keys_read[r] == 2 * 10 < own.keys_read[r] < 2 * 4 * 10
        assert own.read_max[r] == own.read_mean[r] == own.kept_max[r] + 1 == 10


def test_without_groups_a_query_head_is_a_kv_head() -> None:
    m, logits = model("llama", (4, 4)), []
    for gqa in ("sum", "query_head"):
        with attention.H2O(budget=10, gqa=gqa).on(m) as cache:
            logits.append(follow(m, cache, [tokens(30), tokens(3, seed=1)], tokens(2, 20)))
            assert cache.row_stats().keys_read.tolist() == [80, 80]
    assert torch.equal(*logits)


def test_dense_layers_keep_their_own_heads() -> None:
    m = model()
    with attention.H2O(budget=8, dense_layers=1, gqa="query_head").on(m) as cache:
        follow(m, cache, [tokens(20)], tokens(1, 3))
        assert [p[0].shape for p in map(cache.kept_positions, range(2))] == [(2, 23), (4, 7)]
        assert int(cache.row_stats().dense_read_mean) == 23


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("quest", {"rule": "cuda"}, "rule"),
        ("quest", {"rule": "paper_script", "gqa": "max"}, "gqa"),
        ("infllm", {"selection": "head"}, "selection"),
        ("infllm", {"far_position": "true"}, "far_position"),
        ("infllm", {"prefill": "sparse"}, "prefill"),
        ("infllm", {"prefill": "reference", "far_position": "absolute"}, "far_position"),
        ("infllm", {"prefill": "reference", "exc_block": 29}, "n_local = 28"),
        ("infllm", {"prefill": "reference", "exc_block": 0}, "exc_block"),
        ("infllm", {"exc_block": 4}, "prefill is dense"),
        ("h2o", {"gqa": "kv_head"}, "gqa"),
    ],
)
def test_what_contradicts_itself_is_refused(method: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(attention.InvalidValue, match=says):
        attention.get(method, budget=64, **params)
