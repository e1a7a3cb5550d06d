"""Tokens of full attention read at once, for every method and option: a sweep without is the same.

The tiny model computes in float64, its prompts have 53 to 61 tokens, budgets begin to bind some
twenty tokens later and most outputs go on beyond that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from sweeping import go

from attention import methods
from experiments.grid.config import Config
from experiments.store.store import Store
from experiments.sweep import missing_runs as backlog
from tests.sampling import some_slow

Make = Callable[..., Config]

BUDGET, TOKENS = 80, 60
LAST = {"dense_layers": 1}  # the model has two layers
KEPT = {"keep_prompt": True}
BLOCKS = {"n_init": 8, "block": 8, "topk": 0, "n_local": 64}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "noise": [{"noise": 0.5, "seed": 1}, LAST],
    "full": [],
    "h2o": [
        {},
        {"gqa": "max", "positions": "rolled", "decay": 0.9},
        {"gqa": "mean", "heavy": 50, "score_from_prefill": False, "normalise": "age"},
        {"gqa": "query_head", **LAST},
        KEPT,
    ],
    "uniform": [{"dense_layers": 1}],
    "infllm": [
        BLOCKS,
        BLOCKS | {"selection": "kv_head", "repr_topk": 2, "far_position": "absolute"},
        BLOCKS | {"prefill": "reference", **LAST},
    ],
    "oracle": [{"gqa": "max"}, {"budget": None, "top_p": 0.8, "gqa": "mean"}, LAST],
    "quest": [
        {"page": 8, "dense_layers": 1},
        {"page": 8, "dense_layers": 0, "gqa": "max"},
        {"page": 8, "dense_layers": 0, "gqa": "query_head"},
        {"page": 8, "dense_layers": 0, "rule": "paper_script"},
    ],
    "raas": [
        {"page": 8},
        {"page": 8, "alpha": 0.1, "gqa": "sum"},
        {"page": 8, "keep_prompt": False, "gqa": "mean", **LAST},
    ],
    "random": [{}, {"sinks": 2, "recent": 10, "seed": 5, **LAST}, KEPT],
    "rkv": [
        {},
        {"window": 4, "mix": 0.5, "kernel": 3, "threshold": 0.3, "gqa": "mean"},
        LAST,
        KEPT,
    ],
    "sink": [
        {"sinks": 2},
        {"positions": "absolute", **LAST},
        {"positions": "hf_sinkcache"},
        KEPT,
    ],
    "snapkv": [{}, {"window": 6, "kernel": 3, "gqa": "max"}, {"gqa": "mean", **LAST}, KEPT],
    "tova": [{}, LAST, KEPT],
    "window": [{}, LAST, KEPT],
}
ROUNDS = [
    {name: params for name, params in zip(OPTIONS, column, strict=True) if params is not None}
    for column in zip_longest(*OPTIONS.values())
]


def test_every_method_and_option_is_here() -> None:
    for method in methods.known():
        given = {option for params in OPTIONS[method.name] for option in params}
        known = {one.name for one in method.parameters}
        assert given | {"budget"} == known | {"budget"}, method.name


def exact(name: str, params: dict[str, Any]) -> bool:
    """Whether the method equals full attention beyond a prompt."""
    budget = {} if name == "noise" else {"budget": BUDGET}
    return methods.get(name, **{**budget, **params}).exact_until > 61


@pytest.mark.parametrize("params", some_slow(ROUNDS, 0), ids=range(len(ROUNDS)))
def test_known_tokens_read_at_once_change_nothing(
    params: dict[str, Any], tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(
        backends=",".join(("full", *params)),
        backend_params=params,
        budgets=str(BUDGET),
        max_new_tokens=TOKENS,
        cap=str(TOKENS),
        limit=3,
        dtype="float64",
    )
    reused, _ = go(config, tmp_path / "reused")
    monkeypatch.setattr(backlog.MissingRuns, "_known_prefix", lambda *_: ((), {}))
    scratch, _ = go(config, tmp_path / "scratch")
    assert reused.counts.failed == scratch.counts.failed == 0
    assert scratch.counts.reused_tokens == 0
    reusing: set[str] = set()
    binding = 0
    with Store(tmp_path / "reused") as with_, Store(tmp_path / "scratch") as without:
        assert len(with_) == len(without) == 3 * (1 + len(params))
        for record in without:
            alone, twin = record.trace(), with_.get(record.id)
            assert twin is not None
            one = twin.trace()
            assert one.new_ids == alone.new_ids, record.meta["cell"]["backend"]
            assert [cost.keys_read for cost in one.checks] == pytest.approx(
                [cost.keys_read for cost in alone.checks]
            )
            assert (one.keys_read_max, one.keys_kept_max, one.curve) == (
                alone.keys_read_max,
                alone.keys_kept_max,
                alone.curve,
            )
            if one.reused_tokens:
                reusing.add(record.meta["cell"]["backend"]["name"])
                binding += one.reused_tokens < one.tokens - 5
    # Those that are never exact have nothing to reuse.
    assert reusing == {name for name in params if exact(name, params[name])}
    assert binding >= len(reusing)  # of three runs each
