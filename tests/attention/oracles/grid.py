"""Which cases are compared: every family x method x grouping x budget x dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from .compare import STEPS, Case
from .models import HEADS
from .naive_model import FAMILIES

BUDGETS = {
    "sink": (5, 6, 16, 64),
    "h2o": (2, 3, 16, 33, 64),
    "quest": (32, 64),
    "infllm": (16, 17, 32, 64),
}
FURTHER_BUDGETS = {
    "window": (1, 2, 33),
    "tova": (2, 3, 33),
    "random": (5, 6, 32),
    "oracle": (1, 2, 33),
    "raas": (32, 64),
    "rkv": (11, 12, 33),
    "snapkv": (4, 5, 33),
}
# Options and sizes besides the defaults, each with a budget.
FURTHER_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("random", {"budget": 16, "sinks": 0, "recent": 1, "seed": 7}),
    ("random", {"budget": 24, "sinks": 2, "recent": 22}),
    ("oracle", {"budget": 16, "gqa": "mean"}),
    ("oracle", {"budget": 16, "gqa": "max"}),
    ("oracle", {"top_p": 0.5}),
    ("oracle", {"top_p": 0.9}),
    ("oracle", {"top_p": 0.05, "gqa": "max"}),
    ("raas", {"budget": 16, "page": 4}),
    ("raas", {"budget": 32, "page": 1}),
    ("raas", {"budget": 24, "page": 4, "gqa": "sum"}),
    ("raas", {"budget": 24, "page": 4, "alpha": 0.1}),
    ("raas", {"budget": 32, "page": 8, "alpha": 0.3, "gqa": "mean"}),
    ("raas", {"budget": 16, "page": 4, "keep_prompt": False}),
    ("rkv", {"budget": 32, "gqa": "mean"}),
    ("rkv", {"budget": 32, "mix": 0.9, "window": 3, "kernel": 3}),
    ("rkv", {"budget": 24, "threshold": 0.1, "kernel": 1}),
    ("snapkv", {"budget": 32, "gqa": "mean"}),
    ("snapkv", {"budget": 32, "gqa": "max", "window": 1, "kernel": 1}),
    ("snapkv", {"budget": 24, "window": 5, "kernel": 7}),
    ("noise", {"noise": 0.3}),
    ("noise", {"noise": 0.01, "seed": 5_000_000_000}),
    ("sink", {"budget": 16, "positions": "absolute"}),
    ("h2o", {"budget": 32, "gqa": "mean"}),
    ("h2o", {"budget": 32, "gqa": "max"}),
    ("h2o", {"budget": 32, "heavy": 5}),
    ("h2o", {"budget": 16, "heavy": 0}),
    ("h2o", {"budget": 16, "heavy": 15}),
    ("h2o", {"budget": 32, "score_from_prefill": False}),
    ("h2o", {"budget": 32, "dense_layers": 1}),
    ("quest", {"budget": 32, "dense_layers": 0, "gqa": "mean"}),
    ("quest", {"budget": 32, "dense_layers": 0, "gqa": "max"}),
    ("quest", {"budget": 32, "dense_layers": 0, "gqa": "query_head"}),
    ("quest", {"budget": 24, "page": 4, "dense_layers": 1, "gqa": "query_head"}),
    ("infllm", {"budget": 32, "selection": "kv_head"}),
    ("infllm", {"budget": 64, "selection": "kv_head"}),
    ("infllm", {"budget": 64, "far_position": "absolute"}),
    ("infllm", {"budget": 23, "far_position": "absolute", "selection": "kv_head"}),
    ("h2o", {"budget": 2, "gqa": "query_head"}),
    ("h2o", {"budget": 33, "gqa": "query_head"}),
    ("h2o", {"budget": 24, "gqa": "query_head"}),
    ("h2o", {"budget": 32, "gqa": "query_head", "dense_layers": 1}),
)
# A prompt that stays, with what it leaves of the budget.
KEPT_PROMPTS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("h2o", {"budget": 40}, 16),
    ("h2o", {"budget": 39}, 2),
    ("h2o", {"budget": 33, "heavy": 5, "gqa": "max"}, 7),
    ("h2o", {"budget": 40, "gqa": "query_head"}, 11),
    ("h2o", {"budget": 40, "score_from_prefill": False}, 20),
    ("sink", {"budget": 40}, 16),
    ("sink", {"budget": 40}, 1),
    ("sink", {"budget": 40, "sinks": 0}, 12),
    ("sink", {"budget": 40, "sinks": 33}, 12),
    ("sink", {"budget": 40, "positions": "absolute"}, 12),
    ("window", {"budget": 40}, 12),
    ("tova", {"budget": 40}, 2),
    ("tova", {"budget": 40}, 20),
    ("random", {"budget": 40}, 20),
    ("random", {"budget": 40, "sinks": 30, "recent": 5}, 20),
    ("snapkv", {"budget": 40}, 4),
    ("snapkv", {"budget": 40, "window": 5}, 20),
    ("snapkv", {"budget": 60}, 50),
    ("rkv", {"budget": 40}, 11),
    ("rkv", {"budget": 40, "window": 2, "mix": 0.9}, 20),
    ("caote", {"budget": 40}, 20),
    ("vase", {"budget": 40}, 20),
    ("gkv", {"budget": 60, "window": 4}, 40),
    ("lazy", {"budget": 40, "alpha": 0.02}, 20),
    ("duo", {"budget": 40, "sinks": 3, "threshold": 0.4}, 20),
)
# Last, so that the cases of the others stay what they were.
LAST_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("caote", {"budget": 4, "kernel": 1}),
    ("caote", {"budget": 5}),
    ("caote", {"budget": 33}),
    ("caote", {"budget": 32, "fast": True}),
    ("caote", {"budget": 32, "window": 1, "kernel": 1, "gqa": "max"}),
    *(("vase", {"budget": b}) for b in (4, 5, 12, 33)),
    ("vase", {"budget": 32, "kernel": 1, "seed": 9, "sinks": 0}),
    ("vase", {"budget": 24, "window": 3, "gqa": "max"}),
    *(("gkv", {"budget": b}) for b in (22, 23, 33)),
    ("gkv", {"budget": 32, "window": 4, "alpha": 0.0}),
    ("gkv", {"budget": 24, "window": 2, "mix": 1.0, "alpha": 1.0}),
    ("gkv", {"budget": 24, "window": 2, "mix": 0.0, "gqa": "mean"}),
    ("gkv", {"budget": 24, "window": 3, "threshold": -0.3, "gqa": "sum"}),
    ("lazy", {"budget": 32, "alpha": 0.02}),
    ("lazy", {"budget": 32, "alpha": 0.05, "gqa": "mean"}),
    ("lazy", {"budget": 24, "alpha": 0.03, "window": 3}),
    *(
        ("quest", {"budget": 24, "page": 4, "dense_layers": 0, "rule": "moments"} | more)
        for more in (
            *({}, {"spread": "coordinate"}, {"factor": 0.0}, {"gqa": "max", "factor": 2.0}),
            {"gqa": "query_head", "spread": "coordinate", "factor": 1.0},
        )
    ),
    ("duo", {"budget": 1, "threshold": 0.7}),
    ("duo", {"budget": 16}),
    ("duo", {"budget": 33, "sparsity": 0.25}),
    ("duo", {"budget": 16, "sinks": 0, "sparsity": 0.5}),
    ("duo", {"budget": 24, "sinks": 9, "sparsity": 0.75}),
)
# Of two layers of up to four heads.
GATES = ((0.2, 0.9, 0.5, 0.5), (0.6, 0.1, 0.5, 0.7))
# Choices that layers share, on four layers or so many.
SHARED: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("lessismore", {"budget": 16}, 4),
    ("lessismore", {"budget": 16, "dense_layers": 0, "select": (0, 2), "sinks": 1}, 4),
    ("lessismore", {"budget": 5, "recent": 0.5, "dense_layers": 1}, 4),
    ("lessismore", {"budget": 1, "dense_layers": 1}, 4),
    ("kascade", {"budget": 16}, 4),
    ("kascade", {"budget": 1}, 4),
    ("kascade", {"budget": 16, "gqa": "max"}, 4),
    ("kascade", {"budget": 16, "gqa": "mean", "anchors": (5,)}, 8),
)
DTYPES = (torch.float32, torch.float64)
SHORT = 12
# Of 200 steps one is a coin flip: oracle and tova decide anew between tiny probabilities at every
# step, and a token that comes twice has values of equal ranges in vase.
FEWER_STEPS = {"oracle": 80, "tova": 80, "vase": 45}
PROMPTS = (37, 80, 5)  # longer than every budget, in between, and shorter than most


@dataclass(frozen=True)
class Variant:
    """A method with parameters, and the model and prompt on which it shows itself."""

    method: str
    params: tuple[tuple[str, Any], ...] = ()
    layers: int = 2
    sharp: float = 1.0
    prompt: int | None = None  # None: goes round
    steps: int = STEPS


def sharp(method: str, prompt: int, layers: int = 2, **params: Any) -> Variant:
    # A coordinate of each key may lie near a threshold.
    steps = 80 if method == "adamas" else STEPS
    return Variant(method, tuple(params.items()), layers, sharp=1.5, prompt=prompt, steps=steps)


# Last, so that the cases of the others stay what they were.
LAST = (
    sharp("rkv", 37, budget=32, buffer=16),
    sharp("rkv", 20, budget=40, buffer=4, keep_prompt=True),
    sharp("rkv", 37, budget=32, buffer=16, shared=True),
    sharp("rkv", 80, budget=32, buffer=3, shared=True),
    sharp("rkv", 20, budget=40, buffer=4, shared=True, keep_prompt=True),
    sharp("random", 37, budget=32, every=8),
    sharp("random", 16, budget=48, every=6, keep_prompt=True, prefix=8),
    sharp("random", 16, budget=48, every=6, keep_prompt=True, prefix=100),
    sharp("random", 80, budget=32, every=8, sinks=0, recent=1, seed=7),
    sharp("adamas", 5, 4, budget=16, threshold_q=1.0, threshold_k=1.0),
    sharp("adamas", 5, 4, budget=16, threshold_q=0.8, threshold_k=1.2, gqa="query_head"),
    sharp("adamas", 5, 4, budget=16, dense_layers=0, gqa="sum"),
    sharp("adamas", 37, 4, budget=1, dense_layers=1, threshold_q=1.0, threshold_k=1.0),
    *(sharp(x, 37, budget=24, keep_prompt=6) for x in ("sink", "h2o", "tova", "window", "random")),
    sharp("raas", 37, budget=24, page=4, keep_prompt=6),
    sharp("rkv", 37, budget=32, keep_prompt=6),
    sharp("rkv", 4, budget=32, buffer=5, keep_prompt=6),
    sharp("snapkv", 37, budget=32, keep_prompt=6),
    sharp("random", 37, budget=48, every=6, keep_prompt=6),
)


def variants() -> list[Variant]:
    """The backends of the paper at several budgets."""
    result = [Variant("full")]
    for method, budgets in BUDGETS.items():
        for budget in budgets:
            params: tuple[tuple[str, Any], ...] = (("budget", budget),)
            if method == "quest":
                # With its two dense layers quest needs a deeper model to differ at all.
                result.append(Variant(method, params, layers=4))
                result.append(Variant(method, (*params, ("dense_layers", 0))))
            else:
                result.append(Variant(method, params))
    # After a prompt longer than the budget h2o's heavy set hardly ever changes again: nobody
    # outscores what a whole prompt added up. Short prompts and sharper attention let newcomers in.
    result += [Variant("h2o", (("budget", b),), sharp=2.0, prompt=5) for b in (7, 16, 33, 64)]
    return result + [Variant("infllm", (("budget", b),), sharp=2.0, prompt=5) for b in (16, 64)]


def further_variants() -> list[Variant]:
    """The backends beyond the five of the paper, and the options of those five."""
    result = []
    for method, budgets in FURTHER_BUDGETS.items():
        for budget in budgets:
            params: dict[str, Any] = {"budget": budget}
            if method == "snapkv" and budget == 4:
                params["kernel"] = 1  # 5 would average over all three candidates: always ties
            result.append(further(method, params))
    result += [further(method, params) for method, params in FURTHER_OPTIONS]
    for method, params, room in KEPT_PROMPTS:
        keeping = tuple({**params, "keep_prompt": True}.items())
        steps = FEWER_STEPS.get(method, STEPS)
        prompt = params["budget"] - room
        result.append(Variant(method, keeping, sharp=1.5, prompt=prompt, steps=steps))
    result += [further(method, params) for method, params in LAST_OPTIONS]
    sizes = {"sharp": 1.5, "prompt": 5, "steps": 80}
    for method, params, layers in SHARED:
        result.append(Variant(method, tuple(params.items()), layers, **sizes))
    return [*result, *LAST]


def further(method: str, params: dict[str, Any]) -> Variant:
    prompt = None
    if method == "raas" and params.get("keep_prompt", True):
        # The prompt's pages must leave one page of the budget free.
        page = params.get("page", 16)
        prompt = params["budget"] - page - page // 2
    if not params.get("score_from_prefill", True):
        prompt = 20  # a prompt that is cut has equal scores only: see `further_ties`
    steps = FEWER_STEPS.get(method, STEPS)
    # Sharper attention, so that scores differ and newcomers are kept.
    return Variant(method, tuple(params.items()), sharp=1.5, prompt=prompt, steps=steps)


def tied_cases() -> list[Case]:
    """Cases whose scores are equal zeros at a cut: the older stay. Not for `decisive`."""
    params = (("budget", 32), ("score_from_prefill", False))
    return [Case("llama", heads, "h2o", params, prompt=80, steps=40, sharp=1.5) for heads in HEADS]


def mapped_cases() -> list[Case]:
    """Head maps, which fit models of two KV heads."""
    maps = ((0, 1), (0, 1), (1, 0), (1, 1))
    params = (("budget", 16), ("anchors", (1,)), ("maps", maps))
    return [Case("qwen3", (4, 2), "kascade", params, layers=4, prompt=5, steps=40, sharp=1.5)]


def quick_cases() -> list[Case]:
    """Every variant once, short; families, groupings, prompts and dtypes go round."""
    first = [
        case(v, i + i // 9, FAMILIES[(i + d) % 3], HEADS[(i + i // 3 + d) % 3], DTYPES[d])
        for i, v in enumerate(variants())
        for d in [(i + i // 2) % 2]
    ]
    further = [
        case(v, i + i // 9, FAMILIES[i % 3], HEADS[(i + i // 3) % 3], DTYPES[(i + i // 2) % 2])
        for i, v in enumerate(further_variants())
    ]
    return [short(each) for each in (*first, *further, *mapped_cases())]


def slow_cases() -> list[Case]:
    """Every variant on each family and each grouping once, on one of them long, and in float32.

    Rounding that adds up shows there, in all 200 steps; a wrong choice or weight shows in a short
    run in float64. The quick cases are left out.
    """
    quick, cases = set(quick_cases()), []
    for group in (variants(), further_variants()):
        for i, variant in enumerate(group):
            for h, heads in enumerate(HEADS):
                long = h == (i + i // 3) % len(HEADS)
                dtype = torch.float32 if long else torch.float64
                turn = case(variant, i + i // 9, FAMILIES[(i + h) % 3], heads, dtype)
                cases.append(turn if long else short(turn))
    return [each for each in cases if each not in quick]


def short(case: Case) -> Case:
    """As many steps as take the case well beyond its budget, at least a few dozen."""
    budget = min(dict(case.params).get("budget", 0), 64)
    return replace(case, steps=min(case.steps, max(SHORT, budget - case.prompt + 12)))


def case(v: Variant, i: int, family: str, heads: tuple[int, int], dtype: torch.dtype) -> Case:
    prompt = PROMPTS[i % len(PROMPTS)] if v.prompt is None else v.prompt
    pattern = tuple(row[: heads[1]] for row in GATES)
    return Case(
        family,
        heads,
        v.method,
        (*v.params, ("pattern", pattern)) if v.method == "duo" else v.params,
        dtype,
        layers=v.layers,
        prompt=prompt,
        steps=v.steps,
        sharp=v.sharp,
    )
