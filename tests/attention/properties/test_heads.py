"""Heads: their order does not matter, nor whether KV heads are written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from properties.backends import BACKENDS, METHODS, h2o, infllm, quest
from properties.cases import Case, cases, each, of
from properties.feeding import Text, play
from properties.holding import holds

# The noise of `noise` and the sample of `random` depend on the number of the head.
BY_NUMBER = ("noise", "random")
NOT_BY_KV_HEAD = ("full", "sink", "window", "tova", "uniform", "h2o", "quest", "infllm")


def grouped(x: Tensor, G: int) -> Tensor:
    """(L, Hq, ...) as (L, Hkv, G, ...)."""
    return x.unflatten(1, (-1, G))


def query_heads(text: Text, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Queries with their heads, seen as (L, Hkv, G, n, D), changed."""
    return change(grouped(text.q, text.shape.G)).flatten(1, 2)


def outputs(case: Case, texts: Sequence[Text]) -> list[Tensor]:
    """Per row (L, Hkv, G, n, D)."""
    G = texts[0].shape.G
    outs = play(case.backend, texts, case.whole)
    return [grouped(out.transpose(1, 2), G) for out in outs]


@st.composite
def reordered(draw: Callable[..., Any], method: str) -> tuple[Case, list[int], list[list[int]]]:
    """A case, an order of the KV heads and one of the query heads in each group."""
    case = draw(of(method, rows=3, steps=16))
    s = case.shape
    kv = list(range(s.Hkv)) if method in BY_NUMBER else draw(st.permutations(range(s.Hkv)))
    return case, kv, [draw(st.permutations(range(s.G))) for _ in kv]


# The noise of `noise` is that of a head's number.
@holds(1, *each([name for name in METHODS if name != "noise"], reordered))
def test_permuted_heads_give_permuted_outputs(
    how: tuple[Case, list[int], list[list[int]]],
) -> None:
    """Permuting KV heads with their groups, and query heads inside them, permutes the outputs."""
    case, kv, q = how
    index = torch.tensor(kv)[:, None], torch.tensor(q)

    def permuted(x: Tensor) -> Tensor:
        return x[:, index[0], index[1]]

    texts = case.texts()
    changed = [t.change(q=query_heads(t, permuted), k=t.k[:, kv], v=t.v[:, kv]) for t in texts]
    for left, other in zip(outputs(case, texts), outputs(case, changed), strict=True):
        assert (permuted(left) - other).abs().max() <= 1e-9


def not_by_kv_head(method: str) -> st.SearchStrategy[Case]:
    """Cases of methods whose sets do not depend on the grouping."""
    fixed = {
        "h2o": h2o(gqa="query_head"),
        "quest": quest(gqa="query_head"),
        "infllm": infllm(repr_topk="block", selection="layer"),
    }
    return cases(fixed.get(method, BACKENDS[method]()), rows=3, steps=16)


@holds(1, *each(NOT_BY_KV_HEAD, not_by_kv_head))
def test_kv_heads_may_be_written_out(case: Case) -> None:
    """Repeating KV heads by hand changes nothing where no set is chosen per KV head.

    So for one set per layer or per query head, InfLLM with means of whole blocks included.
    """
    texts, G = case.texts(), case.shape.G
    written = [
        t.change(k=t.k.repeat_interleave(G, 1), v=t.v.repeat_interleave(G, 1)) for t in texts
    ]
    for left, other in zip(outputs(case, texts), outputs(case, written), strict=True):
        assert (left - other.unflatten(1, (-1, G)).squeeze(3)).abs().max() <= 1e-9
