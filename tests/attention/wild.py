"""Tiny random models of some kinds by their model type, those that keep other states included."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from attention.testing.driving import VOCABULARY

LAYERS, WINDOW = 4, 5
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
MAMBA2 = {
    **MAMBA,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
}
HEAD = {"head_dim": 8}
SLIDING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
# By model type: what it adds to COMMON.
WILD: dict[str, dict[str, Any]] = {
    "falcon_h1": {**MAMBA2, **HEAD, "mamba_d_ssm": 64},
    "gemma3_text": {**HEAD, **SLIDING, "query_pre_attn_scalar": 11},
    "lfm2": {
        "layer_types": ["conv", "full_attention"] * 2,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
    },
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen3_next": {**DELTA, **HEAD, **EXPERTS, "shared_expert_intermediate_size": 16},
    "recurrent_gemma": {
        **HEAD,
        "lru_width": 32,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "attention"],
    },
    "smollm3": {"no_rope_layer_interval": 2},
}
# A delta net, a short convolution, Mamba 2 next to attention in the same layer.
HYBRID = ("falcon_h1", "lfm2", "qwen3_next")


def wild(model_type: str, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """A random model in eval mode, with transformers' own attention.

    Raises:
        KeyError: transformers does not know the type.
    """
    config = AutoConfig.for_model(model_type, **{**COMMON, **WILD[model_type], **more})
    make = AutoModelForCausalLM.from_config
    torch.manual_seed(0)  # for what is not drawn below, such as decays
    try:
        m = make(config, dtype=torch.float32, attn_implementation="sdpa")
    except ValueError:  # some have no sdpa
        m = make(config, dtype=torch.float32, attn_implementation="eager")
    if hasattr(m, "set_experts_implementation"):
        m.set_experts_implementation("eager")  # the others know no float64
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in m.named_parameters():
            if weight.ndim == 1 and not ("norm" in name or "bias" in name or "sinks" in name):
                continue
            weight.normal_(0.0, 0.15, generator=generator)
            if "norm" in name and weight.ndim == 1 and "gemma" not in model_type:
                weight.add_(1.0)
    return m.eval().requires_grad_(False).to(dtype)


@torch.no_grad()
def alone(m: Any, text: Tensor, answers: Tensor) -> Tensor:
    """The model's own logits behind a text and each given token, by one forward, (1 + n, V)."""
    ids = torch.cat((text, answers))[None]
    logits: Tensor = m(input_ids=ids, use_cache=False).logits
    return logits[0, len(text) - 1 :]
