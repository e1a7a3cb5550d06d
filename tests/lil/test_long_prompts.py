"""A long prompt is read in parts where that changes nothing, so that an interrupt gets through."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import build_model

import attention
import lil
from lil.decoding import loop

LENGTHS = (65, 33, 7, 49, 1)

IN_PARTS = {
    "full": lambda: attention.Full(),
    "quest": lambda: attention.get("quest", budget=32),
    "infllm": lambda: attention.get("infllm", budget=32),
}
IN_ONE = {
    "sparse prefill": lambda: attention.get("infllm", budget=32, prefill="reference"),
    **{name: lambda name=name: attention.get(name, budget=32) for name in ("h2o", "sink")},
    "raas": lambda: attention.get("raas", budget=256),
}


def _decoded(model: Any, tokenizer: Any, backend: Any, **options: Any) -> tuple[list[Any], list]:
    rng = random.Random(3)
    prompts = [[rng.randrange(60) for _ in range(n)] for n in LENGTHS]
    widths: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _module, _args, kept: widths.append(kept["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        traces = lil.decode(
            model,
            tokenizer,
            [lil.Request(prompt) for prompt in prompts],
            backend=backend,
            detectors=[lil.detectors.get("margin", end=".")],
            max_new_tokens=20,
            **options,
        )
    finally:
        hook.remove()
    told = [(one.new_ids, one.finish, one.keys_read_max, one.keys_kept_max) for one in traces]
    return told, widths


@pytest.mark.parametrize("family", ["llama", "sliding"])
@pytest.mark.parametrize("make", IN_PARTS.values(), ids=IN_PARTS)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_tokens_and_costs_are_those_of_one_forward(
    make, batch_size, family, tokenizer, request, monkeypatch
):
    model = request.getfixturevalue("llama") if family == "llama" else build_model("sliding")
    whole, widths = _decoded(model, tokenizer, make(), batch_size=batch_size)
    assert max(widths) == 65
    monkeypatch.setattr(loop, "PROMPT_COLUMNS", 16)
    parts, widths = _decoded(model, tokenizer, make(), batch_size=batch_size)
    assert parts == whole
    assert max(widths) == 17  # the last part of 65 columns takes the one that is left over
    assert widths.count(16) >= 3


@pytest.mark.parametrize("make", IN_ONE.values(), ids=IN_ONE)
def test_what_a_method_is_cut_by_is_read_in_one(make, llama, tokenizer, monkeypatch):
    monkeypatch.setattr(loop, "PROMPT_COLUMNS", 16)
    _, widths = _decoded(llama, tokenizer, make(), batch_size=5)
    assert [width for width in widths if width > 1] == [65]


def test_an_accelerator_reads_it_in_one(llama, tokenizer, monkeypatch):
    monkeypatch.setattr(loop, "PROMPT_COLUMNS", 16)
    monkeypatch.setattr(loop.devices, "is_synchronous", lambda _device: False)
    _, widths = _decoded(llama, tokenizer, attention.Full(), batch_size=5)
    assert [width for width in widths if width > 1] == [65]


def test_an_interrupt_between_parts_leaves_the_model_as_it_was(llama, tokenizer, monkeypatch):
    monkeypatch.setattr(loop, "PROMPT_COLUMNS", 16)
    seen = []

    def interrupt(_module: Any, _args: Any, kept: Any) -> None:
        seen.append(kept["input_ids"].shape[1])
        if len(seen) == 2:
            raise KeyboardInterrupt

    hook = llama.register_forward_pre_hook(interrupt, with_kwargs=True)
    with pytest.raises(KeyboardInterrupt):
        lil.decode(llama, tokenizer, [lil.Request([1] * 80)])
    hook.remove()
    assert seen == [16, 16]
    with torch.inference_mode():
        assert llama(torch.tensor([[1, 2]])).logits.shape[1] == 2
