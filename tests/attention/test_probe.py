"""A model is taken where it attends the same through our cache, measured on its first block."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, Cache
from transformers.masking_utils import (
    AttentionMaskInterface,
    chunked_causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)
from wild import wild

import attention
from attention.patching import probe, survey
from attention.testing.driving import follow
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

common_cache = pytest.mark.skipif(
    not hasattr(Cache, "get_conv_state"), reason="this transformers gives each hybrid its own cache"
)


def refused(m: Any, says: str, backend: attention.Backend | None = None) -> None:
    with (
        pytest.raises(attention.InvalidValue, match=says),
        (backend or attention.Full()).on(m),
    ):
        pass


# Attention that is not what it seems


def own_attention(change: Any) -> Any:
    """An attention function of a model's own: eager attention, with changed scores."""

    def attend(
        _: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        group = query.shape[1] // key.shape[1]
        k, v = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = change(query @ k.mT * kwargs["scaling"])
        later = torch.ones(scores.shape[-2:]).triu(1 + k.shape[2] - query.shape[2]).bool()
        scores = scores.masked_fill(later, float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    return attend


@pytest.mark.parametrize(
    ("change", "equal"),
    [(lambda x: x, True), (lambda x: 0.5 * (2 * x).tanh(), False), (lambda x: 1.01 * x, False)],
    ids=["same", "capped", "scaled"],
)
def test_what_differs_is_refused_with_the_difference(change: Any, equal: bool) -> None:
    AttentionInterface.register("own_kind", own_attention(change))
    AttentionMaskInterface.register("own_kind", sdpa_mask)
    m = copy.deepcopy(tiny_model())
    m.set_attn_implementation("own_kind")
    if equal:
        with attention.Full().on(m) as cache:
            assert cache.session.anatomy.difference < 1e-6
    else:
        refused(m, r"model = 'llama': .*differ by \S+ of their length")
    assert m.config._attn_implementation == "own_kind"


@common_cache
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_kept_behind_the_cache_is_refused_in_any_precision(dtype: torch.dtype) -> None:
    refused(wild("recurrent_gemma", dtype), "nothing of layer 0")


def test_masks_say_how_far_a_query_sees() -> None:
    def seen(function: Any) -> int | None:
        return survey._window(function, 4096, "a family", 7)

    assert seen(lambda _b, _h, q, k: k <= q) is None
    assert seen(sliding_window_causal_mask_function(1000)) == 1000
    for function, says in (
        (
            chunked_causal_mask_function(512, torch.zeros(1, dtype=torch.long)),
            "layer 7 sees others",
        ),
        (lambda _b, _h, q, k: (k <= q) & ((k < 4) | (k > q - 100)), "layer 7 sees others"),
        (lambda _b, _h, q, k: k <= q + 1, "later tokens"),
    ):
        with pytest.raises(attention.InvalidValue, match=says):
            seen(function)


# Once, and without a trace


def test_a_model_is_probed_once_and_again_when_its_config_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []
    survey = probe.survey
    monkeypatch.setattr(probe, "survey", lambda m: counted.append(1) or survey(m))
    m = wild("mistral", torch.float32)
    for _ in range(2):
        with attention.Full().on(m), attention.H2O(budget=8).on(m):
            pass
    assert len(counted) == 1
    m.config.sliding_window = 6
    with attention.Full().on(m) as cache:
        assert cache.session.windows == (6,) * 4
    assert len(counted) == 2


def test_a_refusal_is_found_out_anew() -> None:
    m = wild("mistral", torch.float32)
    weight = m.model.layers[0].mlp.up_proj.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    refused(m, "finite")
    with torch.no_grad():
        weight.copy_(before)
    with attention.Full().on(m):
        pass


@pytest.mark.parametrize("family", ["gemma3_text", pytest.param("qwen3_next", marks=common_cache)])
def test_a_probe_leaves_nothing_behind(family: str) -> None:
    m = wild(family, torch.float32).train()
    m.model.layers[1].eval()
    called: list[int] = []
    hook = m.model.layers[0].register_forward_hook(lambda *_: called.append(1))
    mlp = m.model.layers[0].mlp.forward

    def drawing(*inputs: Any) -> Any:
        torch.rand(1)
        return mlp(*inputs)

    m.model.layers[0].mlp.forward = drawing
    before = {name: x.clone() for name, x in (*m.named_parameters(), *m.named_buffers())}
    modes = [module.training for module in m.modules()]
    torch.manual_seed(3)
    want = torch.rand(3)
    torch.manual_seed(3)
    with torch.inference_mode(), attention.Full().on(m):
        pass
    assert torch.equal(torch.rand(3), want)
    assert [module.training for module in m.modules()] == modes
    assert all(torch.equal(x, before[name]) for name, x in m.named_parameters())
    assert all(torch.equal(x, before[name]) for name, x in m.named_buffers())
    assert m.config._attn_implementation == "sdpa"
    assert not called
    m(input_ids=tokens(1, 2))
    assert called == [1]
    hook.remove()
    assert not any(x._forward_hooks or x._forward_pre_hooks for x in m.modules())


# Keys that turn


def test_layers_without_positions_are_told_from_those_with_them() -> None:
    m = wild("smollm3", torch.float32, no_rope_layers=[1, 0, 1, 0])
    with attention.Sink(budget=8).on(m) as cache:
        assert cache.session.anatomy.turns == ("halves", "none", "halves", "none")
        follow(m, cache, [tokens(12)], tokens(1, 3))
        assert cache.stats().read_max == 8
