"""Tiny random models of many kinds by their model type, and what is to be true of each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from float64 import InFloat64
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import attention
from attention.testing.driving import VOCABULARY, follow, left_padded
from attention.testing.driving import text as tokens

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
LOCAL = {"num_local_experts": 3, "num_experts_per_tok": 2}
ROUTED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    **ROUTED,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
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
CONV = {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}
HEAD = {"head_dim": 8}
SLIDING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
OLD = {"n_layer": LAYERS, "n_head": 4, "n_embd": 32}
SHARED = {"shared_expert_intermediate_size": 16}
# By model type: what it adds to COMMON.
WILD: dict[str, dict[str, Any]] = {
    "afmoe": {**HEAD, **SLIDING, **EXPERTS, "num_dense_layers": 1},
    "apertus": {},
    "arcee": {},
    "bamba": {**MAMBA2, "attn_layer_indices": [1, 3]},
    "bloom": OLD,
    "cohere": {},
    "cohere2": {**HEAD, **SLIDING},
    "deepseek_v2": LATENT,
    "deepseek_v3": {**LATENT, "q_lora_rank": 16},
    "diffllama": {},
    "doge": {},
    "dots1": ROUTED,
    "ernie4_5": HEAD,
    "exaone4": {**HEAD, **SLIDING},
    "falcon": {"alibi": False, "multi_query": True},
    "falcon_h1": {**MAMBA2, **HEAD, "mamba_d_ssm": 64},
    "flex_olmo": EXPERTS,
    "gemma": HEAD,
    "gemma2": {**HEAD, **SLIDING, "query_pre_attn_scalar": 8},
    "gemma3_text": {**HEAD, **SLIDING, "query_pre_attn_scalar": 11},
    "gemma3n_text": {
        **HEAD,
        **SLIDING,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
    },
    "gemma4_text": {
        **HEAD,
        **SLIDING,
        "global_head_dim": 16,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": VOCABULARY,
    },
    "glm": HEAD,
    "glm4": HEAD,
    "glm4_moe": {**ROUTED, **HEAD},
    "gpt2": OLD,
    "gpt_neox": {"num_key_value_heads": 4},
    "gpt_oss": {**HEAD, **SLIDING, **LOCAL},
    "granite": {"attention_multiplier": 0.3, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    "granitemoe": {**LOCAL, "attention_multiplier": 0.3},
    "granitemoehybrid": {
        **MAMBA2,
        **LOCAL,
        "layer_types": ["mamba", "attention"] * 2,
        "shared_intermediate_size": 16,
    },
    "helium": HEAD,
    "hunyuan_v1_dense": HEAD,
    "jamba": {
        **MAMBA,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
        "num_experts": 3,
        "num_experts_per_tok": 2,
    },
    "kimi_linear": {"kv_lora_rank": 16, "num_experts": 3, "moe_intermediate_size": 16},
    "lfm2": {**CONV, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**CONV, **EXPERTS, "num_dense_layers": 1},
    "llama": {},
    "llama4_text": {**HEAD, **LOCAL, "attention_chunk_size": 4, "intermediate_size_mlp": 40},
    "minimax": {**LOCAL, "layer_types": ["linear_attention", "full_attention"] * 2},
    "minimax_m2": {**LOCAL, **HEAD},
    "ministral": {**HEAD, **SLIDING},
    "ministral3": HEAD,
    "mistral": {"sliding_window": None},
    "mixtral": LOCAL,
    "nanochat": {},
    "nemotron": {},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "moe", "mamba"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "chunk_size": 4,
        "head_dim": 8,
        "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 16,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "olmo": {},
    "olmo2": {},
    "olmo3": SLIDING,
    "olmo_hybrid": DELTA,
    "olmoe": EXPERTS,
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 32, "pad_token_id": 1},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"sliding_window": None},
    "phimoe": LOCAL,
    "qwen2": {},
    "qwen2_moe": {**EXPERTS, **SHARED},
    "qwen3": HEAD,
    "qwen3_5_moe_text": {**DELTA, **HEAD, **EXPERTS, **SHARED},
    "qwen3_5_text": {**DELTA, **HEAD},
    "qwen3_moe": {**EXPERTS, **HEAD},
    "qwen3_next": {**DELTA, **HEAD, **EXPERTS, **SHARED},
    "recurrent_gemma": {
        **HEAD,
        "lru_width": 32,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "attention"],
    },
    "seed_oss": HEAD,
    "smollm3": {"no_rope_layer_interval": 2},
    "stablelm": {},
    "starcoder2": {"sliding_window": None},
    "zamba2": {
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "chunk_size": 4,
        "hybrid_layer_ids": [1, 3],
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_mem_blocks": 1,
        "use_mem_rope": True,
        "num_key_value_heads": 4,
    },
}
# Those in which some layers keep another state than keys.
HYBRID = (
    *("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "nemotron_h"),
    *("olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2"),
)
TEXTS = (4, 2 * WINDOW + 3, 21)
BUDGET = 8
BUDGETED: tuple[attention.Backend, ...] = (
    attention.H2O(budget=BUDGET),
    attention.Sink(budget=BUDGET, positions="absolute"),
    attention.Quest(budget=BUDGET, page=4, dense_layers=0),
)


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
def alone(m: Any, text: Tensor, given: Tensor) -> Tensor:
    """The model's own logits behind a text and each given token, by one forward, (1 + n, V)."""
    ids = torch.cat((text, given))[None]
    logits: Tensor = m(input_ids=ids, use_cache=False).logits
    return logits[0, len(text) - 1 :]


def measured(model_type: str) -> dict[str, Any]:
    """What is found of a type, in float64: a row of docs/results/methods.json.

    Raises:
        KeyError: transformers does not know the type.
        AssertionError: a promise is broken, of a model that was not refused.
    """
    with InFloat64(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = wild(model_type)
        texts, given = [tokens(n, seed=n) for n in TEXTS], tokens(len(TEXTS), 6, seed=7)
        try:
            with attention.Full().on(m):
                pass
        except attention.InvalidValue as error:
            return {"refused": error.allowed, "field": error.field, "value": repr(error.value)}
        want = torch.stack([alone(m, *pair) for pair in zip(texts, given, strict=True)])
        own_choice = generated(m, texts)
        with attention.Full().on(m) as cache:
            anatomy, stats = cache.session.anatomy, cache.stats()
            parts: Sequence[int | None] = (None, 4) if anatomy.parts else (None,)
            got = [follow(m, cache.new(), texts, given, chunk) for chunk in parts]
            if not anatomy.parts:
                refuses_parts(m, cache.new(), texts, given)
            chosen = generated(m, texts, cache.new())
        difference = max(float((x - want).abs().max()) for x in got) / float(want.abs().max())
        full = [i for i, window in enumerate(anatomy.windows) if window is None]
        read = [read_within_budget(m, backend, texts, given, full) for backend in BUDGETED]
    assert difference < 1e-9
    assert torch.equal(chosen, own_choice)
    return {
        "layers": stats.model_layers,
        "softmax": len(stats.softmax),
        "sliding": len(anatomy.windows) - len(full),
        "states": len(anatomy.states),
        "difference": difference,
        "read": max(read),
        "turns": all(anatomy.turns[i] != "other" for i in full),
        "parts": anatomy.parts,
    }


def refuses_parts(m: Any, cache: Any, texts: Sequence[Tensor], given: Tensor) -> None:
    """A prompt in two parts is refused by name."""
    with pytest.raises(attention.InvalidValue, match="columns on top of others"):
        follow(m, cache, texts, given, 4)


@torch.no_grad()
def generated(m: Any, texts: Sequence[Tensor], cache: Any = None) -> Tensor:
    """What `generate` chooses behind each text: alone, or in one padded batch through a cache."""
    call: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
    if cache is not None:
        ids, mask = left_padded(texts)
        call |= {"input_ids": ids, "attention_mask": mask}
        return m.generate(**call, past_key_values=cache)[:, -5:]  # type: ignore[no-any-return]
    rows = [
        m.generate(text[None], attention_mask=torch.ones_like(text[None]), **call) for text in texts
    ]
    return torch.cat([row[:, -5:] for row in rows])


def read_within_budget(
    m: Any, backend: attention.Backend, texts: Sequence[Tensor], given: Tensor, full: Sequence[int]
) -> int:
    """The most keys that a decode query read in any layer that a method continues_after_verdict on.

    Raises:
        AssertionError: more than the budget, or a batch that is not its rows alone.
    """
    with backend.on(m) as cache:
        got = follow(m, cache, texts, given)
        stats = cache.stats(per_layer=True)
        most = max(stats.layers[i].read_max or 0 for i in full) if full else 0
        assert stats.read_max == (most if full else None)
        assert most <= BUDGET
        for row, text in enumerate(texts):
            want = follow(m, cache.new(), [text], given[row : row + 1])[0]
            assert (got[row] - want).abs().max() <= 1e-9 * want.abs().max()
    return most
