"""The shipped model in float64: a row of a ragged batch writes what it writes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import attention
from experiments.reasoner import LEVELS, checkpoint_path, problem
from lil import Request, decode

# Twelve prompts through eight places: four rows are replaced while their neighbours go on.
CAPS = (150, 75, 150, 101, 150, 125, 150, 82, 150, 150, 70, 150)
BACKENDS = ("full", "sink", "h2o", "quest", "infllm")


@pytest.fixture(scope="module")
def endless() -> tuple[Any, Any]:
    """Model and tokenizer that do not stop at `eos`, so that every row reaches its cap."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint_path(), dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    model.generation_config.eos_token_id = None
    tokenizer.eos_token = None
    return model, tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_rows_alone_and_in_a_ragged_batch_are_equal(name: str, endless: tuple[Any, Any]) -> None:
    model, tokenizer = endless
    prompts = [problem(LEVELS[i % 3], "heldout", i).prompt for i in range(len(CAPS))]
    assert len({len(tokenizer(p)["input_ids"]) for p in prompts}) > 6
    # 64 keys: less than any of these prompts has, so every method is sparse from the start.
    backend = attention.get(name) if name == "full" else attention.get(name, budget=64)
    rows = [Request(prompt, cap) for prompt, cap in zip(prompts, CAPS, strict=True)]
    together = decode(model, tokenizer, rows, backend=backend, batch_size=8)
    for prompt, cap, trace in zip(prompts, CAPS, together, strict=True):
        (alone,) = decode(model, tokenizer, [prompt], backend=backend, max_new_tokens=cap)
        assert len(trace.new_ids) == cap
        assert trace.new_ids == alone.new_ids
