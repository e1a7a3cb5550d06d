"""Every method with its options, as hypothesis draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

import attention

Draw = Callable[[st.SearchStrategy[Any]], Any]
REDUCTIONS = ("sum", "mean", "max")


def budgets(least: int) -> st.SearchStrategy[int]:
    """Mostly small ones, which most cases exceed."""
    few = st.integers(least, least + 5), st.integers(least, least + 12)
    return st.one_of(*few, st.integers(least, max(64, least)))


def full() -> st.SearchStrategy[attention.Backend]:
    return st.just(attention.Full())


@st.composite
def sink(draw: Draw) -> Any:
    sinks = draw(st.integers(0, 5))
    how = draw(st.sampled_from(("cache", "absolute")))
    return attention.Sink(budget=draw(budgets(sinks + 1)), sinks=sinks, positions=how)


@st.composite
def h2o(draw: Draw, **fixed: Any) -> attention.Backend:
    budget = draw(budgets(2))
    drawn = {
        "heavy": draw(st.none() | st.integers(0, budget - 1)),
        "gqa": draw(st.sampled_from((*REDUCTIONS, "query_head"))),
        "score_from_prefill": draw(st.booleans()),
    }
    return attention.H2O(budget=budget, **(drawn | fixed))


@st.composite
def quest(draw: Draw) -> attention.Backend:
    page, gqa = draw(st.integers(1, 6)), draw(st.sampled_from((*REDUCTIONS, "query_head")))
    pages = draw(st.integers(2, 5) | st.integers(2, max(64 // page, 2)))
    return attention.Quest(budget=pages * page, page=page, gqa=gqa, dense_layers=0)


@st.composite
def infllm(draw: Draw) -> attention.Backend:
    options: dict[str, Any] = {
        "far_position": draw(st.sampled_from(("window", "absolute"))),
        "selection": draw(st.sampled_from(("layer", "kv_head"))),
    }
    if draw(st.booleans()):
        return attention.InfLLM(budget=draw(budgets(16)), **options)
    parts: dict[str, int] = {
        "n_init": draw(st.integers(0, 6)),
        "n_local": draw(st.integers(1, 16)),
        "block": draw(st.integers(1, 5)),
        "topk": draw(st.integers(0, 4)),
    }
    parts["repr_topk"] = draw(st.integers(1, parts["block"] + 1))
    read = parts["n_init"] + parts["n_local"] + (parts["topk"] + 1) * parts["block"]
    return attention.InfLLM(budget=max(read + draw(st.integers(0, 3)), 16), **(parts | options))


@st.composite
def window(draw: Draw) -> attention.Backend:
    return attention.Window(budget=draw(budgets(1)))


@st.composite
def tova(draw: Draw) -> attention.Backend:
    return attention.TOVA(budget=draw(budgets(2)))


@st.composite
def random(draw: Draw) -> attention.Backend:
    sinks, recent = draw(st.integers(0, 4)), draw(st.none() | st.integers(1, 6))
    budget = draw(budgets(max(sinks + (recent or 1), 2)))
    seed = draw(st.integers(0, 1 << 33))
    every = draw(st.sampled_from((1, 2, 5)))
    if every > 1:
        budget += every + 1 + (0 if recent else every)
    return attention.Random(budget=budget, sinks=sinks, recent=recent, seed=seed, every=every)


@st.composite
def oracle(draw: Draw, top_p: bool = True) -> attention.Backend:
    gqa = draw(st.sampled_from(REDUCTIONS))
    if top_p and draw(st.booleans()):
        return attention.Oracle(top_p=draw(st.sampled_from((0.05, 0.5, 0.9, 0.99))), gqa=gqa)
    return attention.Oracle(budget=draw(budgets(1)), gqa=gqa)


@st.composite
def lessismore(draw: Draw) -> attention.Backend:
    return attention.LessIsMore(
        budget=draw(budgets(1)),
        dense_layers=0,
        select=draw(st.none() | st.just((0,))),
        recent=draw(st.sampled_from((0.01, 0.25, 0.7, 1.0))),
        sinks=draw(st.integers(0, 5)),
    )


@st.composite
def kascade(draw: Draw) -> attention.Backend:
    gqa, anchors = draw(st.sampled_from(REDUCTIONS)), draw(st.sampled_from((None, ())))
    return attention.Kascade(budget=draw(budgets(1)), anchors=anchors, gqa=gqa)


@st.composite
def raas(draw: Draw) -> attention.Backend:
    page = draw(st.integers(1, 6))
    return attention.RaaS(
        page=page,
        budget=page * draw(st.integers(2, 5) | st.integers(2, max(64 // page, 2))),
        alpha=draw(st.none() | st.sampled_from((0.0, 0.05, 0.3))),
        keep_prompt=draw(st.booleans()),
        gqa=draw(st.sampled_from(REDUCTIONS)),
    )


@st.composite
def rkv(draw: Draw, **fixed: Any) -> attention.Backend:
    budget = draw(budgets(4))
    window = draw(st.integers(1, budget - budget // 4 - 1))
    drawn = {
        "window": window,
        "buffer": draw(st.none() | st.integers(1, max(budget - window - 1, 1))),
        "mix": draw(st.sampled_from((0.0, 0.1, 0.6, 1.0))),
        "kernel": draw(st.sampled_from((1, 3, 7))),
        "threshold": draw(st.sampled_from((0.1, 0.5))),
        "gqa": draw(st.sampled_from(("max", "mean"))),
    }
    return attention.RKV(budget=budget, **(drawn | fixed))


@st.composite
def snapkv(draw: Draw, **fixed: Any) -> attention.Backend:
    budget = draw(budgets(4))
    drawn = {
        "window": draw(st.none() | st.integers(1, budget - budget // 4 - 1)),
        "kernel": draw(st.sampled_from((1, 3, 5))),
        "gqa": draw(st.sampled_from(REDUCTIONS)),
    }
    return attention.SnapKV(budget=budget, **(drawn | fixed))


@st.composite
def caote(draw: Draw) -> attention.Backend:
    base = draw(snapkv()).params()
    return attention.CAOTE(**base, fast=draw(st.booleans()))


@st.composite
def adamas(draw: Draw) -> attention.Backend:
    gqa = draw(st.sampled_from((*REDUCTIONS, "query_head")))
    edges = {f"threshold_{x}": draw(st.sampled_from((0.5, 1.0, 10.0))) for x in "qk"}
    return attention.Adamas(budget=draw(budgets(1)), gqa=gqa, dense_layers=0, **edges)


@st.composite
def vase(draw: Draw) -> attention.Backend:
    budget = draw(budgets(4))
    return attention.VaSE(
        budget=budget,
        window=draw(st.none() | st.integers(1, budget - budget // 4 - 1)),
        sinks=draw(st.integers(0, 6)),
        kernel=draw(st.sampled_from((1, 3, 5))),
        gqa=draw(st.sampled_from(REDUCTIONS)),
        seed=draw(st.integers(-1, 1 << 33)),
    )


@st.composite
def gkv(draw: Draw, **fixed: Any) -> attention.Backend:
    budget = draw(budgets(4))
    drawn = {
        "window": draw(st.integers(1, budget - budget // 4 - 1)),
        "mix": draw(st.sampled_from((0.0, 0.5, 1.0))),
        "alpha": draw(st.sampled_from((0.0, 0.8, 1.0))),
        "threshold": draw(st.sampled_from((-0.5, 0.1, 0.5))),
        "gqa": draw(st.sampled_from(REDUCTIONS)),
    }
    return attention.GKV(budget=budget, **(drawn | fixed))


@st.composite
def lazy(draw: Draw) -> attention.Backend:
    budget = draw(budgets(4))
    return attention.Lazy(
        budget=budget,
        window=draw(st.none() | st.integers(1, (budget - 1) // 2)),
        alpha=draw(st.sampled_from((1e-4, 0.03, 0.2))),
        gqa=draw(st.sampled_from(REDUCTIONS)),
    )


@st.composite
def duo(draw: Draw) -> attention.Backend:
    """Gates for three layers of three KV heads; `of_shape` leaves those of a model."""
    gate = st.sampled_from((0.0, 0.3, 0.5, 1.0))
    rows = st.lists(gate, min_size=3, max_size=3)
    pattern = draw(st.lists(rows, min_size=3, max_size=3))
    sinks, sparsity = draw(st.integers(0, 5)), draw(st.none() | st.sampled_from((0.0, 0.5, 1.0)))
    budget = draw(budgets(sinks + 1))
    return attention.Duo(budget=budget, sinks=sinks, sparsity=sparsity, pattern=pattern)


def of_shape(backend: Any, layers: int, heads: int) -> Any:
    """The same method for a model of this shape."""
    if backend.name != "duo":
        return backend
    return replace(backend, pattern=[row[:heads] for row in backend.pattern[:layers]])


@st.composite
def noise(draw: Draw) -> attention.Backend:
    noise, seed = draw(st.sampled_from((1e-3, 0.25, 1.0))), draw(st.integers(0, 1 << 33))
    return attention.Noise(noise=noise, seed=seed)


@st.composite
def keeping(draw: Draw, method: Callable[..., st.SearchStrategy[attention.Backend]]) -> Any:
    """A method that drops tokens, in a third of the cases all but those of prompts."""
    backend = draw(method())
    if backend.budget <= least_room(backend) or draw(st.integers(0, 2)):
        return backend
    return replace(backend, keep_prompt=True)


def least_room(backend: attention.Backend) -> int:
    """What a method needs of a budget besides a prompt that stays."""
    b: Any = backend
    least: dict[str, Callable[[], int]] = {
        "raas": lambda: b.page,
        "h2o": lambda: 2 if b.heavy == b.budget // 2 else b.heavy + 1,
        "random": lambda: (
            b.every + b.recent + 1
            if b.every > 1
            else 2
            if b.recent == max((b.budget - b.sinks) // 2, 1)
            else max(b.recent, 2)
        ),
        "tova": lambda: 2,
        "snapkv": lambda: 4 if b.window == min(32, b.budget // 4) else _beside(b.window),
        "rkv": lambda: b.window + b.buffer + 1 if b.buffer else _beside(b.window),
        "caote": lambda: least["snapkv"](),
        "vase": lambda: 4 if b.window == min(64, b.budget // 4) else _beside(b.window),
        "gkv": lambda: _beside(b.window),
        "lazy": lambda: 4 if b.window == min(128, b.budget // 4) else 2 * b.window + 1,
    }
    return least.get(b.name, lambda: 1)()


def _beside(window: int) -> int:
    """The smallest room of which a window is less than what a cut leaves."""
    room = 4
    while window >= room - min(128, room // 4):
        room += 1
    return room


BACKENDS: dict[str, Callable[..., st.SearchStrategy[attention.Backend]]] = {
    "full": full,
    "sink": partial(keeping, sink),
    "h2o": partial(keeping, h2o),
    "quest": quest,
    "infllm": infllm,
    "window": partial(keeping, window),
    "tova": partial(keeping, tova),
    "random": partial(keeping, random),
    "oracle": oracle,
    "raas": raas,
    "rkv": partial(keeping, rkv),
    "snapkv": partial(keeping, snapkv),
    "vase": partial(keeping, vase),
    "gkv": partial(keeping, gkv),
    "lazy": partial(keeping, lazy),
    "noise": noise,
    "caote": partial(keeping, caote),
    "adamas": adamas,
    "duo": partial(keeping, duo),
    "lessismore": lessismore,
    "kascade": kascade,
}
METHODS = tuple(BACKENDS)
# Outputs of the others are the softmax over what is read, and nothing else.
NOISELESS = tuple(x for x in METHODS if x != "noise")
KEEP_ALL = ("full", "quest", "infllm", "oracle", "noise", "adamas", "lessismore", "kascade")
EVICTING = tuple(x for x in METHODS if x not in KEEP_ALL)
