"""Fixtures: a random model of a few thousand parameters, and the smallest sweep with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from experiments.config import Config, load
from experiments.reasoner.tokenizer import build_tokenizer


def save_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write a tiny Qwen3 that any `from_pretrained` loads.

    The weights spread by 0.15: at the default of 0.02 attention is flat and tests are blind. The
    row of `eos` is doubled, so that some outputs end by themselves and some at their cap.
    """
    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        initializer_range=0.15,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] *= 2.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_config(tiny_model: Path) -> Callable[..., Config]:
    """The smallest grid worth sweeping; keywords change it."""

    def make(**overrides: Any) -> Config:
        values: dict[str, Any] = {
            "models": str(tiny_model),
            "datasets": "easy",
            "limit": 4,
            "backends": "full,h2o,sink",
            "budgets": "32,96",
            "max_new_tokens": 24,
            "batch_size": 3,
            "check_every": 7,
            "threads": 1,
            "detector_params": {"guardian": {"f": 10, "rate": 0.6}},
        }
        return load("demo-small", values | overrides)

    return make
