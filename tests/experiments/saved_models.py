"""A tiny model in a folder, as `from_pretrained` reads it."""

from __future__ import annotations

from pathlib import Path

import torch
from reasoner_training.tokenizer import build_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM


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
