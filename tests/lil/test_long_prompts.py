"""A long prompt is read in parts where that changes nothing, so that an interrupt gets through."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tiny_models import build_model

import attention
import lil
from lil.decoding import loop

LENGTHS = (65, 33, 7, 49, 1)

IN_PARTS = {
    "full": attention.Full(),
    "quest": attention.get("quest", budget=32),
    "infllm": attention.get("infllm", budget=32),
}


def _decoded(model: Any, tokenizer: Any, backend: Any, **options: Any) -> tuple[list[Any], list]:
    rng = random.Random(3)
    prompts = [[rng.randrange(60) for _ in range(n)] for n in LENGTHS]
    widths: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _module, _args, inputs: widths.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        options |= {"detectors": [lil.Margin(end=".")], "max_new_tokens": 20}
        traces = lil.decode(model, tokenizer, prompts, backend=backend, **options)
    finally:
        hook.remove()
    numbers = [
        (trace.new_ids, trace.finish, trace.keys_read_max, trace.keys_kept_max) for trace in traces
    ]
    return numbers, widths


@pytest.mark.parametrize("family", ["llama", "sliding"])
@pytest.mark.parametrize("backend", IN_PARTS.values(), ids=IN_PARTS)
@pytest.mark.parametrize("batch_size", [5])
def test_tokens_and_costs_are_those_of_one_forward(
    backend, batch_size, family, tokenizer, request, monkeypatch
):
    model = request.getfixturevalue("llama") if family == "llama" else build_model("sliding")
    whole, widths = _decoded(model, tokenizer, backend, batch_size=batch_size)
    assert max(widths) == 65
    monkeypatch.setattr(loop, "PROMPT_COLUMNS", 16)
    parts, widths = _decoded(model, tokenizer, backend, batch_size=batch_size)
    assert parts == whole
    assert max(widths) == 17  # the last part of 65 columns takes the one that is left over
    assert widths.count(16) >= 3
