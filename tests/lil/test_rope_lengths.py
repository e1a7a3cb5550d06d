"""Rotary embeddings whose frequencies follow the length of a text, or stretch it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from acting_rows import CUE, fires, run
from tiny_models import SIZES
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, Qwen2Config

import attention
import lil
from attention.errors import InvalidValue
from lil.detectors import Answer, Regenerate
from tests.sampling import some_slow

SWITCH = 24
STRETCH: dict[str, Any] = {"rope_theta": 10_000.0, "original_max_position_embeddings": SWITCH}
LONG = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 8.0, 16.0], "rope_type": "longrope"}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3", "factor": 4.0}
#: By name: a config, its rope, and the positions that it names.
KINDS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "llama3": (LlamaConfig, STRETCH | BANDS, 96),
    "phi3": (Phi3Config, STRETCH | LONG | {"partial_rotary_factor": 1.0}, 96),
    "longrope": (LlamaConfig, STRETCH | LONG, 96),
    "yarn": (Qwen2Config, STRETCH | {"rope_type": "yarn", "factor": 4.0}, SWITCH),
    "dynamic": (
        Qwen2Config,
        {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0},
        SWITCH,
    ),
}
PROMPTS = [[7, 9, 4, 30, 12], [(5 * n + 2) % 57 for n in range(18)], [n % 50 for n in range(40)]]
BACKENDS = [attention.Full(), attention.H2O(budget=16), attention.Quest(budget=16, page=4)]


def stretched(kind: str, seed: int = 0) -> Any:
    config_class, rope, positions = KINDS[kind]
    sizes = {**SIZES, "max_position_embeddings": positions, "rope_parameters": dict(rope)}
    if kind == "phi3":
        sizes["original_max_position_embeddings"] = SWITCH
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_class(**sizes)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(2)
    return model


def generated(model: Any, ids: Tensor, **more: Any) -> list[int]:
    mask = torch.ones_like(ids)
    output = model.generate(
        ids, attention_mask=mask, max_new_tokens=30, do_sample=False, eos_token_id=None, **more
    )
    return output[0, ids.shape[1] :].tolist()


def decoded(model: Any, tokenizer: Any, prompts: Any, **more: Any) -> list[list[int]]:
    traces = lil.decode(model, tokenizer, prompts, max_new_tokens=30, **more)
    return [list(trace.new_ids) for trace in traces]


@pytest.mark.parametrize("kind", some_slow(["dynamic", "longrope", "phi3", "yarn", "llama3"], 1))
def test_a_text_across_the_switch_is_the_models_own_alone_or_batched(
    kind: str, tokenizer: Any
) -> None:
    for seed in range(2):
        own = [generated(stretched(kind, seed), torch.tensor([ids])) for ids in PROMPTS]
        model = stretched(kind, seed)
        for backend in BACKENDS:
            together = decoded(model, tokenizer, PROMPTS, backend=backend, beyond_positions=True)
            # The longest text was read before: alone the others come after it.
            alone = [
                decoded(model, tokenizer, [ids], backend=backend, beyond_positions=True)[0]
                for ids in PROMPTS
            ]
            assert together == alone
            if backend.name == "full":
                assert alone == own


@pytest.mark.parametrize("kind", ["phi3", "dynamic"])
def test_a_forced_prefix_across_the_switch_goes_on_as_it_was_decoded(
    kind: str, tokenizer: Any
) -> None:
    model = stretched(kind)
    (whole,) = decoded(model, tokenizer, PROMPTS[1:2], beyond_positions=True)
    request = lil.Request(PROMPTS[1], forced=whole[:12])
    assert decoded(model, tokenizer, [request], beyond_positions=True) == [whole]


def test_a_text_is_read_anew_where_steps_are_launched_ahead(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"beyond_positions": True, "backend": BACKENDS[1]}
    whole = decoded(stretched("phi3"), tokenizer, PROMPTS, **options)
    monkeypatch.setattr("attention.core.devices.is_synchronous", lambda _: False)
    assert decoded(stretched("phi3"), tokenizer, PROMPTS, **options) == whole


@pytest.mark.parametrize("kind", ["phi3", "dynamic"])
def test_generate_through_a_cache_is_the_models_own_across_the_switch(kind: str) -> None:
    ids, model = torch.tensor(PROMPTS[1:2]), stretched(kind)
    own = generated(stretched(kind), ids)
    with attention.Full().on(model) as cache:
        assert generated(model, ids, past_key_values=cache) == own
    assert generated(model, ids) == own  # the model is as it was


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=["full", "h2o"])
def test_going_back_below_the_switch_is_never_having_crossed_it(
    backend: Any, tokenizer: Any
) -> None:
    model, options = stretched("phi3"), {"prompts": PROMPTS[1:2], "backend": backend}
    options |= {"max_new_tokens": 50, "beyond_positions": True}
    cue = {"cue": CUE, "tokens": 15}
    (back,) = run(model, tokenizer, [fires(14, Regenerate(**cue), 2)], **options)
    (never,) = run(model, tokenizer, [fires(2, Answer(**cue))], **options)
    assert len(back.dropped) == 12
    assert back.new_ids == never.new_ids


@torch.no_grad()
def test_keys_turned_for_another_length_are_refused() -> None:
    model, ids = stretched("phi3"), torch.tensor([PROMPTS[1]])
    with attention.Full().on(model) as cache:
        model(ids, past_key_values=cache)
        with pytest.raises(InvalidValue, match=f"beyond the first {SWITCH}"):
            model(ids, past_key_values=cache)
        longer = cache.new()
        model(torch.tensor(PROMPTS[2:]), past_key_values=longer)
        with pytest.raises(InvalidValue, match="read anew"):
            longer.crop(-20)


def test_a_probe_sees_a_rope_that_follows_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention.patching.patched.RowLengths.hooks", lambda *_: [])
    for kind in ("phi3", "longrope", "dynamic"):
        with pytest.raises(InvalidValue, match="differ by"), attention.Full().on(stretched(kind)):
            pass
