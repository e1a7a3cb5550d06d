"""Budgets, reports and positions, against what the outputs show to have been read.

The value of token i is the unit vector i, so an output is the probability of every token: what has
some was read, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

import attention
from properties.backends import BACKENDS, EVICTING, METHODS, NOISELESS, h2o, oracle
from properties.cases import Case, cases, each
from properties.feeding import Session, Shape, session
from properties.holding import holds

# The retrieval heads of duo read all; its oracle has its positions.
BUDGETED = tuple(x for x in METHODS if x not in ("full", "noise", "duo"))


def support(out: Tensor) -> list[list[list[int]]]:
    """Tokens with some probability by [layer][query head] of one output (L, 1, Hq, D)."""
    return [[head.nonzero().flatten().tolist() for head in layer] for layer in out[:, 0]]


def layered(method: str) -> st.SearchStrategy[Case]:
    """Two or three layers, the first ones dense where the method leaves some so."""
    backend = BACKENDS[method]()
    if method in ("h2o", "quest"):
        dense = st.integers(0, 1)
        backend = st.builds(lambda b, n: dataclasses.replace(b, dense_layers=n), backend, dense)
    return cases(backend, layers=st.integers(2, 3), reveal=True, prompt=40, steps=20, rows=3)


@holds(1, *each(BUDGETED, layered))
def test_budgets_are_met_in_every_layer_and_head(case: Case) -> None:
    """Budgets are met: no query head of a sparse layer gives probability to more tokens.

    And each gives some to the current one; methods that evict keep no more than the budget.
    """
    b = case.backend
    with session(b, case.texts()) as s:
        for counts in case.forwards:
            s.feed(counts)
        for _ in range(case.steps):
            for r, out in enumerate(s.feed()):
                for index, heads in enumerate(support(out)):
                    for tokens in heads:
                        assert tokens[-1] == s.at[r] - 1
                        if index < b.dense_layers or s.cache.layers[index].reads_all:
                            assert tokens == list(range(s.at[r]))
                        elif b.budget is not None:
                            assert len(tokens) <= b.budget
            if b.name in EVICTING:
                for index in range(b.dense_layers, case.shape.layers):
                    assert max(len(head) for row in s.kept(index) for head in row) <= b.budget


@st.composite
def uneven(draw: Callable[..., Any], method: str) -> Case:
    """Layers of unlike budgets."""
    case = draw(cases(BACKENDS[method](), layers=st.integers(2, 4), prompt=40, steps=20, rows=3))
    assume(not getattr(case.backend, "keep_prompt", False))  # the longest prompts do not fit
    assume(not getattr(case.backend, "shared", False))
    try:
        pyramid = draw(st.sampled_from((0.4, 1.3, 2.5)))
        backend = dataclasses.replace(case.backend, dense_layers=0, pyramid=pyramid)
    except attention.InvalidValue:
        assume(False)
    return dataclasses.replace(case, backend=backend)


@holds(2, *each([x for x in BUDGETED if x not in ("kascade", "lessismore")], uneven))
def test_layers_of_unlike_budgets_do_what_each_does_alone(case: Case) -> None:
    layers, texts = range(case.shape.layers), case.texts()
    budgets = case.backend.layer_budgets([None] * len(layers))
    assert sum(budgets.values()) == len(layers) * case.backend.budget
    alone = [case.backend.of_budget(budgets[i]) for i in layers]
    with session(case.backend, texts) as s, contextlib.ExitStack() as stack:
        others = [stack.enter_context(session(backend, texts)) for backend in alone]
        for counts in case.whole:
            outs = s.feed(counts)
            for i, other in enumerate(others):
                for out, want in zip(outs, other.feed(counts), strict=True):
                    assert torch.equal(out[i], want[i])
                assert s.kept(i) == other.kept(i)
        stats = [other.cache.row_stats() for other in others]
        most = torch.stack([x.read_max for x in stats]).amax(0)
        assert s.cache.row_stats().read_max.tolist() == most.tolist()
        means = torch.stack([x.read_mean for x in stats]).mean(0)
        assert s.cache.row_stats().read_mean.tolist() == pytest.approx(means.tolist())


@st.composite
def growing(draw: Callable[..., Any], method: str) -> Case:
    """A share of a text that is short of the least at first and beyond the most in the end."""
    case = draw(cases(BACKENDS[method](), prompt=40, steps=20, rows=3))
    assume(case.backend.budget is not None)
    page = getattr(case.backend, "page", 1)
    how = {"dense_layers": 0, "share": draw(st.sampled_from((0.3, 0.5))), "least": 2 * page}
    return dataclasses.replace(
        case, backend=dataclasses.replace(case.backend, budget=12 // page * page, **how)
    )


@holds(5, *each(("quest", "oracle", "kascade"), growing))
def test_a_share_reads_what_a_budget_of_its_size_does(case: Case) -> None:
    b, texts, page = case.backend, case.texts(), getattr(case.backend, "page", 1)
    fixed = {
        n: dataclasses.replace(b, budget=n, share=None, least=None)
        for n in range(b.least, b.budget + 1, page)
    }
    with session(b, texts) as s, contextlib.ExitStack() as stack:
        others = {n: stack.enter_context(session(x, texts)) for n, x in fixed.items()}
        for counts in case.forwards:
            for each_session in (s, *others.values()):
                each_session.feed(counts)
        for _ in range(case.steps):
            outs, wants = s.feed(), {n: other.feed() for n, other in others.items()}
            for row, n in enumerate(s.at):
                quota = min(max(round(n * b.share / page) * page, b.least), b.budget)
                assert (outs[row] - wants[quota][row]).abs().max() < 1e-12
                assert s.read(0)[row] == others[quota].read(0)[row]
                assert s.cache.row_stats().read_max[row] == max(map(len, s.read(-1)[row])) <= quota


def per_query_head(sets: list[list[int]], shape: Shape) -> list[list[int]]:
    """One of the sets for each query head."""
    return [sets[h * len(sets) // shape.Hq] for h in range(shape.Hq)]


def entries(backend: attention.Backend, n: int) -> int:
    """Vectors of an index that one KV head reads to choose among n tokens."""
    if backend.name == "quest":
        pages = -(-n // backend.page)
        return 2 * pages if pages > backend.budget // backend.page else 0
    if backend.name == "infllm":
        p = backend
        full = -(-max(n - p.n_local - p.n_init, 0) // p.block) - 1
        return full if full > p.topk else 0
    if backend.name == "kascade":
        return n if n > backend.budget else 0
    if backend.name == "adamas":  # 2 of the 64 bits of each coordinate
        return -(-n // 32) if n > backend.budget else 0
    return 0


@holds(1, *each(NOISELESS, layered))
def test_counts_are_true(case: Case) -> None:
    """Contract 9: counts of keys kept and read and of bytes are what outputs and state show.

    The next query reads nothing that `kept` does not count.
    """
    b, shape = case.backend, case.shape
    with session(b, case.texts()) as s:
        kept: list[Any] | None = None
        for counts in case.whole:
            decode = counts == (1,) * case.rows and all(s.at)
            outs = s.feed(counts)
            stats, whole = s.cache.row_stats(), s.cache.stats()
            own = range(b.dense_layers, shape.layers)
            sparse = choosing = [i for i in own if not s.cache.layers[i].reads_all]
            if b.name == "kascade":  # whose other layers look at nothing else
                choosing = [i for i in sparse if i in b.choosing_layers((None,) * shape.layers)]
            if decode:
                seen = [support(out) for out in outs]
                assert [[row[i] for row in seen] for i in range(shape.layers)] == [
                    s.read(i) for i in range(shape.layers)
                ]
                for r, n in enumerate(s.at):
                    sizes = torch.tensor([[len(h) for h in seen[r][i]] for i in sparse]).double()
                    assert stats.read_max[r] == sizes.max()
                    assert stats.read_mean[r] == pytest.approx(float(sizes.mean()))
                    assert stats.dense_read_mean is None or stats.dense_read_mean[r] == n
                    groups = [
                        heads[j : j + shape.G]
                        for heads in seen[r]
                        for j in range(0, shape.Hq, shape.G)
                    ]
                    union = sum(len(set().union(*group)) for group in groups)
                    index = entries(b, n) * len(choosing) * shape.Hkv
                    assert stats.keys_read[r] == union + index
                    if kept is not None:
                        allowed = [
                            [{*head, n - 1} for head in per_query_head(layer[r], shape)]
                            for layer in kept
                        ]
                        for i in range(shape.layers):
                            for h, tokens in enumerate(seen[r][i]):
                                extra = allowed[i][h] - set(tokens)
                                assert set(tokens) <= allowed[i][h]
                                # Those that lose a token only when the next one comes.
                                late = b.name in ("sink", "window", "duo")
                                assert b.name not in EVICTING or len(extra) <= late
                assert whole.read_max == stats.read_max.max()
            kept = [s.kept(i) for i in range(shape.layers)]
            for r in range(case.rows):
                most = max(len(head) for i in sparse for head in kept[i][r])
                assert stats.kept_max[r] == most
            bytes_of(s, stats.bytes, kept)
            assert whole.seen == s.at
            assert whole.kept == stats.kept_max.max()
            assert whole.bytes == stats.bytes.sum()


def bytes_of(s: Session, claimed: Tensor, kept: list[Any]) -> None:
    """At least the kept keys and values; over all rows no more than what is allocated."""
    for r, n in enumerate(claimed.tolist()):
        tokens = sum(len(head) for layer in kept for head in layer[r])
        assert n >= tokens * 2 * s.shape.D * s.shape.dtype.itemsize
    allocated = sum(x.data.nbytes for layer in s.cache.layers for x in layer.state.values())
    assert claimed.sum() <= allocated


def refusal(s: Session, counts: tuple[int, ...]) -> attention.BudgetExceeded | None:
    """What a forward raises, if it does."""
    try:
        s.feed(counts)
    except attention.BudgetExceeded as error:
        return error
    return None


@st.composite
def promises(draw: Callable[..., Any], method: str) -> tuple[Case, int]:
    """A case, and a budget below the one the method was given."""
    # A layer with a set per query head hands its promise on to the one inside.
    fixed = {"oracle": oracle(top_p=False), "h2o": h2o(gqa="sum")}
    backend = fixed.get(method, BACKENDS[method]())
    case = draw(cases(backend, rows=3, prompt=40, steps=25))
    assume(case.backend.budget > 1)
    return case, draw(st.integers(1, case.backend.budget - 1))


@holds(1, *each(BUDGETED, promises))
def test_a_read_above_the_budget_raises(how: tuple[Case, int]) -> None:
    """Contract 9: a layer that reads more than it is allowed raises before any output.

    Its promise is made smaller behind its back, so that it honestly reads too much. Quest and
    InfLLM count the pages they fetch, so they may raise while the last one is not yet full.
    """
    case, promise = how
    with session(case.backend, case.texts()) as honest:
        s = honest.new(case.texts())
        for counts in case.whole:
            honest.feed(counts)
            stats = honest.cache.row_stats()
            read = int(stats.read_max.max()) if honest.cache.decoded else 0
            if s.cache.layers:  # there are none before the first forward, which is no decode step
                s.cache.layers[-1].budget = promise
            error = refusal(s, counts)
            if error is not None:
                assert error.read > promise
                if max(counts) == 1:  # of several columns the last is reported, the first refused
                    assert error.read >= read
                    assert read > promise or case.backend.name in ("quest", "infllm")
                assert (error.layer, error.budget) == (case.shape.layers - 1, promise)
                with pytest.raises(RuntimeError, match="half way"):
                    s.feed(counts)
                return
            assert read <= promise


def distances(backend: attention.Backend, tokens: list[int], query: int) -> list[int]:
    """How far from the query each token it reads is by `positions`."""
    if getattr(backend, "positions", "absolute") == "cache":
        return list(range(len(tokens) - 1, -1, -1))
    if getattr(backend, "far_position", "absolute") == "window":
        return [min(query - p, backend.n_local - 1) for p in tokens]
    return [query - p for p in tokens]


def promised(method: str) -> st.SearchStrategy[Case]:
    return cases(BACKENDS[method](), reveal=True, prompt=40, steps=20, rows=3)


@holds(1, *each(NOISELESS, promised))
def test_positions_come_from_tokens_seen(case: Case) -> None:
    """Contract 5: outputs are the softmax over what was read, at the distances promised.

    Those come from tokens seen, whatever is still kept, or from the cache where the method says so.
    """
    texts = case.texts()
    with session(case.backend, texts) as s:
        for counts in case.forwards:
            s.feed(counts)
        for _ in range(case.steps):
            for r, (out, read) in enumerate(zip(s.feed(), s.read(), strict=True)):
                for h, tokens in enumerate(read):
                    query = s.at[r] - 1
                    far = distances(case.backend, tokens, query)
                    want = texts[r].logits_at(0, h, query, tokens, far).softmax(0)
                    assert (out[0, 0, h, tokens] - want).abs().max() <= 1e-9
