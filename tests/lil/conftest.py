"""Fixtures of the decode loop's tests."""

from __future__ import annotations

import pytest
import torch
from tiny_models import build_model, build_tokenizer
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="session")
def qwen() -> torch.nn.Module:
    return build_model("qwen3")


@pytest.fixture(scope="session")
def llama() -> torch.nn.Module:
    return build_model("llama")


@pytest.fixture
def eos(qwen: torch.nn.Module):
    """Set the token that ends a sequence for one test."""

    def use(token: int | list[int]) -> None:
        qwen.generation_config.eos_token_id = token

    yield use
    qwen.generation_config.eos_token_id = None
