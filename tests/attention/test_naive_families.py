"""Every method against its oracle in the families whose attention is not Llama's.

Gemma 3 ropes its layers by two tables, Phi-3 turns part of a head, gpt-oss gives sinks a share of
every softmax, in what methods learn too. What each sparse layer was given and gave is recorded, and
the oracle layer computes it anew from unroped vectors.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from examples import FIRST
from zoo import animal, build, config, sliding_layers

import attention
from attention.testing.driving import decode, follow, prefill
from attention.testing.driving import text as tokens
from tests.attention.oracles import METHODS
from tests.attention.oracles.layer import Rope

PROMPT, STEPS = 9, 22
PARAMS: dict[str, dict[str, Any]] = {
    "full": {},
    "sink": {"budget": 12},
    "h2o": {"budget": 12},
    "quest": {"budget": 12, "page": 3, "dense_layers": 0},
    "infllm": {"budget": 16, "n_init": 3, "block": 2, "topk": 2, "n_local": 6, "repr_topk": 1},
    "window": {"budget": 12},
    "tova": {"budget": 12},
    "random": {"budget": 12},
    "oracle": {"budget": 8},
    "raas": {"budget": 18, "page": 3},
    "rkv": {"budget": 16, "window": 4, "mix": 0.7},
    "snapkv": {"budget": 12},
    "h2o_uniform": {"budget": 12, "dense_layers": 0},
}
OPTIONS = (
    ("sink", {"budget": 12, "positions": "hf_sinkcache"}),
    ("h2o", {"budget": 12, "positions": "rolled"}),
    ("h2o", {"budget": 12, "gqa": "max", "normalise": "age"}),
    ("rkv", {"budget": 16, "window": 4, "mix": 0.7, "gqa": "mean"}),
    ("oracle", {"top_p": 0.6}),
    ("infllm", {"budget": 64}),  # the prompt and some more fit the window
    ("quest", {"budget": 12, "page": 3, "dense_layers": 0, "gqa": "query_head"}),
    ("quest", {"budget": 12, "page": 3, "dense_layers": 0, "rule": "paper_script"}),
    ("infllm", {"budget": 16, "prefill": "reference", "exc_block": 4}),
    ("infllm", {"budget": 16, "far_position": "absolute", "selection": "kv_head"}),
)
FURTHER = (
    ("infllm", {**PARAMS["infllm"], "prefill": "reference", "exc_block": 4}),
    ("infllm", {**PARAMS["infllm"], "far_position": "absolute", "selection": "kv_head"}),
    ("h2o", {"budget": 12, "gqa": "query_head", "positions": "rolled"}),
    ("quest", {**PARAMS["quest"], "gqa": "query_head", "rule": "paper_script"}),
)
CASES = [*PARAMS.items(), *OPTIONS, *FURTHER]
TURNING = [
    *(("sink", PARAMS["sink"]), ("infllm", PARAMS["infllm"])),
    *(OPTIONS[0], OPTIONS[1], *FURTHER[:3]),
]
RUNS = [
    *(("gpt_oss", *case) for case in CASES),
    *((family, *case) for family in ("gemma3", "phi3") for case in TURNING),
]


def rope(m: Any) -> Rope:
    """The rotary embedding of the model's full-attention layers, by its own code.

    YaRN multiplies its tables by a factor. Here vectors have it, and position 0 turns nothing.
    """
    code, table = importlib.import_module(type(m).__module__), m.model.rotary_emb
    kind = ("full_attention",) if m.config.model_type == "gemma3_text" else ()

    def turn(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        vectors = torch.from_numpy(np.ascontiguousarray(x))[None, None]
        cos, sin = table(vectors, torch.from_numpy(np.asarray(positions))[None], *kind)
        turned: np.ndarray = code.apply_rotary_pos_emb(vectors, vectors, cos, sin)[0][0, 0].numpy()
        return turned / factor

    factor = 1.0
    factor = float(turn(np.ones((1, m.model.layers[0].self_attn.head_dim)), np.zeros(1))[0, 0])
    return turn


def unroped(x: torch.Tensor, turn: Rope, first: int) -> np.ndarray:
    """(1, H, T, D) as the model roped it, to (T, H, D) before.

    A rotation is linear, so the turns of the unit vectors are its matrix.
    """
    rows = x[0].transpose(0, 1).numpy()
    unit = np.eye(x.shape[-1])
    matrices = [turn(unit, np.full(len(unit), first + t)) for t in range(len(rows))]
    pairs = zip(rows, matrices, strict=True)
    return np.stack([row @ np.linalg.inv(matrix) for row, matrix in pairs])


@pytest.mark.parametrize(("family", "method", "params"), RUNS, ids=str)
def test_a_sparse_layer_is_its_oracle(
    family: str, method: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    m = animal(family)
    turn, ids = rope(m), tokens(1, PROMPT + STEPS, seed=5)
    (sparse, *_) = (i for i in range(2) if i not in sliding_layers(family))
    module = m.model.layers[sparse].self_attn
    naive = METHODS[method](turn, 4, 2, module.scaling, sparse, **params)
    if family == "gpt_oss":
        naive.sink_logits = module.sinks.numpy()

    with attention.get(method, **params).on(m) as cache:
        attend, gap, steps = cache.attend, 0.0, 0

        def checked(index: int, q: Any, k: Any, v: Any, *more: Any) -> torch.Tensor:
            nonlocal gap, steps
            first = naive.n
            out = attend(index, q, k, v, *more)
            if index == sparse:
                given = unroped(q, turn, first), unroped(k, turn, first)
                want = naive.forward(*given, v[0].transpose(0, 1).numpy())
                gap = max(gap, float(np.abs(out[0].numpy() - want).max()))
                steps += 1
            return out

        monkeypatch.setattr(cache, "attend", checked)
        follow(m, cache, [ids[0, :PROMPT]], ids[:, PROMPT:])
        assert steps == 1 + STEPS
        assert gap < 1e-9
        assert cache.kept_positions(sparse)[0].tolist() == naive.kept()
        if cache.backend.params().get("gqa") != "query_head":
            read = cache.read_positions(sparse)[0].tolist()
            assert [sorted(set(r) - {-1}) for r in read] == [sorted(r) for r in naive.read]


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_where_sinks_take_all_attention_gives_nothing(
    backend: attention.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, sizes = build(config("gpt_oss")), []
    for layer in m.model.layers:
        layer.self_attn.sinks.fill_(100.0)
    # gpt-oss slides in its first layer, where no method would be asked.
    monkeypatch.setattr(m.config, "layer_types", ["full_attention"] * 2)
    monkeypatch.setattr(m.model.layers[0].self_attn, "sliding_window", None)
    with backend.on(m) as cache:
        attend = cache.attend

        def measured(*arguments: Any) -> torch.Tensor:
            out = attend(*arguments)
            sizes.append(float(out.abs().max()))
            return out

        monkeypatch.setattr(cache, "attend", measured)
        prefill(m, cache, [tokens(14), tokens(3, seed=1)], chunk=9)
        decode(m, cache, tokens(2, 20, seed=2))
    assert len(sizes) == 2 * (2 + 20)
    assert max(sizes) < 1e-20


def test_sinks_decide_what_methods_keep() -> None:
    """Sinks that differ by head weigh the heads of a group differently."""
    ids = tokens(1, 26)
    for backend in (attention.H2O(budget=9), attention.SnapKV(budget=9), attention.TOVA(budget=9)):
        kept = []
        for sink in (-100.0, 100.0):
            m = build(config("gpt_oss"))
            # The first head of each group alone has a sink, which takes all or nothing.
            m.model.layers[1].self_attn.sinks.copy_(torch.tensor([sink, -100.0] * 2))
            with backend.on(m) as cache:
                follow(m, cache, [ids[0, :20]], ids[:, 20:])
                kept.append(cache.kept_positions(1)[0].tolist())
        assert kept[0] != kept[1], backend
