"""The hooks of a layer, watched while it is fed without a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention.core.step import Step
from attention.layers.compressing import Compressing
from attention.layers.evicting import Evicting
from attention.layers.paged import Paged
from attention.layers.selecting import Choice, Selecting, checked
from attention.testing.broken import Breach, require, same
from attention.testing.case import Case
from attention.testing.driving import OneLayer


def hooks(case: Case) -> str:
    """Hooks answer in the right shape, and attention is over the keys said to be read."""
    b, backend = case.budget, case.backend
    checked = 0
    sink_logits = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    for T in dict.fromkeys((1, min(b, case.longest), case.longest)):
        # A layer of its own may forget the sinks some models have, so one run has them.
        one = OneLayer(backend, rows=2, sink_logits=None if T == 1 else sink_logits)
        watch(one)
        one.feed(T)
        for _ in range(b // 2 + 2):
            out = one.feed()
            for r in range(one.rows):
                same(
                    out[r, 0],
                    naive(one, r),
                    f"with {one.n} tokens seen{'' if T == 1 else ' and geometry.sink_logits'}, "
                    "query head {at} is {by} away from softmax attention over the positions "
                    "`read_positions` reports",
                )
                checked += 1
    return f"{checked} decode queries equal naive attention over what they read"


def naive(one: OneLayer, row: int) -> Tensor:
    """Attention of the newest query over the positions read, by loops, (Hq, D)."""
    sets, out = one.layer.read_positions(row, one.n), []
    sink = [0.0] * one.Hq if one.sink_logits is None else one.sink_logits.exp().tolist()
    for h, held in enumerate(by_head(sets, one.Hq)):
        group = h // (one.Hq // one.Hkv)
        scores = one.k[row, group, held] @ one.q[row, h, -1] * one.scaling
        weights = scores.exp() / (scores.exp().sum() + sink[h])
        out.append(weights @ one.v[row, group, held])
    return torch.stack(out)


def watch(one: OneLayer) -> None:
    """Look at every answer of the hooks of a layer of one of the rungs."""
    if isinstance(one.layer, Evicting):
        _watch_worth(one, "worth", lambda S, _: (one.rows, S))
    if isinstance(one.layer, Compressing):
        _watch_worth(one, "rank", lambda k, _, rows: (len(rows), k.shape[2]))
    if isinstance(one.layer, Paged):
        _watch_pages(one)
    if isinstance(one.layer, Selecting):
        _watch_choice(one)


def _watch_worth(one: OneLayer, name: str, asked: Callable[..., tuple[int, int]]) -> None:
    hook: Callable[..., Tensor] = getattr(one.layer, name)

    def watched(*args: Any) -> Tensor:
        worth, (B, S) = hook(*args), asked(*args)
        _shape(name, worth, (B, one.Hkv, S))
        floats = "floating-point numbers, in which inf can say that a slot must stay"
        require(
            worth.is_floating_point(),
            f"{name} returned {worth.dtype}, expected {floats}: see `.to(self.geometry.wide)`",
        )
        require(not bool(worth.isnan().any()), f"{name} returned nan")
        return worth

    _replace(one, name, watched)


def _watch_pages(one: OneLayer) -> None:
    layer = one.layer
    assert isinstance(layer, Paged)
    summary, score = layer.summary, layer.score

    def watched_summary(k: Tensor, held: Tensor) -> Tensor:
        found = summary(k, held)
        size = layer.summaries.data.shape[-1]
        _shape(
            "summary",
            found,
            (*k.shape[:3], size),
            f"size = {size} is said by `super().__init__(geometry, backend, size=...)`",
        )
        other = summary(k.masked_fill(~held, 1e9), held)
        begun = held.any(3)
        require(
            torch.equal(found.where(begun, 0), other.where(begun, 0)),
            "summary depends on keys that are not held: mask them with `held`",
        )
        return found

    def watched_score(q: Tensor, summaries: Tensor) -> Tensor:
        found = score(q, summaries)
        H = found.shape[1] if found.ndim == 3 and found.shape[1] in (1, one.Hq) else one.Hkv
        _shape("score", found, (one.rows, H, summaries.shape[2]))
        require(bool(found.isfinite().all()), "score returned inf or nan for a page with tokens")
        return found

    _replace(one, "summary", watched_summary)
    _replace(one, "score", watched_score)


def _watch_choice(one: OneLayer) -> None:
    layer = one.layer
    assert isinstance(layer, Selecting)
    choose = layer.choose

    def watched(q: Tensor, step: Step) -> Choice:
        found = checked(choose(q, step), one.rows, layer.geometry)
        pages = int(layer.pages(step.seen).max())
        for pages_of, live in zip(found.pages.flatten(0, 1), found.live.flatten(0, 1), strict=True):
            taken = sorted(pages_of[live].tolist())
            require(bool(taken), "choose returned a set in which no page is live")
            require(len(set(taken)) == len(taken), f"choose returned a page twice: {taken}")
            require(
                taken[0] >= 0 and taken[-1] < pages,
                f"choose returned {taken}; there are pages 0 to {pages - 1}",
            )
        return found

    _replace(one, "choose", watched)


def _shape(
    name: str, found: object, due: tuple[int, ...], where: str = "see its docstring"
) -> None:
    if not isinstance(found, Tensor):
        raise Breach(f"{name} returned {type(found).__name__}, expected a tensor {due}: {where}")
    shape = tuple(found.shape)
    require(shape == due, f"{name} returned shape {shape}, expected {due}: {where}")


def _replace(one: OneLayer, name: str, hook: Callable[..., Any]) -> None:
    setattr(one.layer, name, hook)


def by_head(positions: Tensor, Hq: int) -> list[list[int]]:
    """The positions of each query head, whether there is a set for it or one for its group."""
    sets = [[p for p in head if p >= 0] for head in positions.tolist()]
    return [held for held in sets for _ in range(Hq // len(sets))]
