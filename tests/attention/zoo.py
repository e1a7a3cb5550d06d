"""Tiny random models of every family `attention` runs, with and without sliding layers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

from tests.attention.oracles.models import VOCABULARY, compute_in_float64

WINDOW = 5
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
# The first layer full, the second sliding.
HALF = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 11, "sliding_window": WINDOW}
GLOBAL = {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
# By name: the config's class, its layers, and what it adds to COMMON.
ZOO: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "llama": (LlamaConfig, 2, {"rope_parameters": ROPE}),
    "qwen2": (Qwen2Config, 2, {"rope_parameters": ROPE}),
    "qwen3": (Qwen3Config, 2, {"rope_parameters": ROPE, "head_dim": 16}),
    "qwen2_moe": (
        Qwen2MoeConfig,
        2,
        {"rope_parameters": ROPE, "shared_expert_intermediate_size": 16, **EXPERTS},
    ),
    "phi3": (Phi3Config, 2, {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}),
    "gemma3": (
        Gemma3TextConfig,
        2,
        {
            **GEMMA,
            "sliding_window_pattern": 2,
            "rope_parameters": {"full_attention": GLOBAL, "sliding_attention": ROPE},
        },
    ),
    "gpt_oss": (
        GptOssConfig,
        2,
        {
            "rope_parameters": YARN,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    "qwen2_sliding": (Qwen2Config, 2, {"rope_parameters": ROPE, **HALF}),
    "mistral_sliding": (MistralConfig, 2, {"rope_parameters": ROPE, "sliding_window": WINDOW}),
}
FAMILIES = tuple(ZOO)
# Every layer of this one is its own sliding attention: a method has nothing to act on.
WITHOUT_ROOM = "mistral_sliding"
SLIDING = ("gemma3", "gpt_oss", "qwen2_sliding", "mistral_sliding")


def sliding_layers(family: str) -> list[int]:
    """Layers which slide a window of their own, written down by hand."""
    by_family = {"gemma3": [0], "gpt_oss": [0], "qwen2_sliding": [1], "mistral_sliding": [0, 1]}
    return by_family.get(family, [])


def config(family: str, **more: Any) -> Any:
    kind, layers, special = ZOO[family]
    return kind(**{**COMMON, "num_hidden_layers": layers, **special, **more})


@lru_cache(maxsize=64)
def animal(family: str, dtype: torch.dtype = torch.float64) -> Any:
    """A model in eval mode with transformers' own attention; the same weights in every dtype."""
    return build(config(family), dtype, FAMILIES.index(family))


def build(config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A random model on which a wrong key shows in the logits."""
    # gpt-oss has no sdpa.
    own = "eager" if config.model_type == "gpt_oss" else "sdpa"
    m = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=own)
    if hasattr(m, "set_experts_implementation"):
        m.set_experts_implementation("eager")  # the others know no float64
    generator = torch.Generator().manual_seed(100 + seed)
    with torch.no_grad():
        for name, weight in m.named_parameters():
            weight.normal_(0.0, 0.15, generator=generator)
            if "norm" in name and config.model_type != "gemma3_text":  # Gemma adds 1 itself
                weight.add_(1.0)
            if name.endswith("sinks"):
                weight.mul_(5).add_(1.0)
    m.eval().requires_grad_(False).to(dtype)
    if dtype is torch.float64:
        compute_in_float64(m)
    return m
