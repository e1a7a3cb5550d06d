"""Tiny GGUF files of models that transformers makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.convert_slow_tokenizer import bytes_to_unicode

HIDDEN, INNER, LAYERS, HEADS, GROUPS, EPSILON, POSITIONS = 64, 96, 2, 4, 2, 2.0**-17, 512
HEAD = {"llama": 16, "qwen2": 16, "qwen3": 128}

#: Names of a layer's tensors in files and in models.
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>")


def vocabulary() -> dict[str, Any]:
    """Values of a vocabulary of bytes, six merged words and four special tokens."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]
    words = [*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in merges)]
    return {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": [*words, *_SPECIAL],
        "token_type": [1] * len(words) + [3, 3, 3, 4],
        "merges": merges,
        "bos_token_id": len(words),
        "eos_token_id": len(words) + 2,
        "padding_token_id": len(words),
        "add_bos_token": False,
    }


def random_model(kind: str, seed: int = 0) -> transformers.PreTrainedModel:
    """A random model of an architecture, whose biases and norms are not zeros and ones."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind.title()}Config")(
        vocab_size=len(vocabulary()["tokens"]),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=HEAD[kind],
        rms_norm_eps=EPSILON,
        max_position_embeddings=POSITIONS,
        initializer_range=0.15,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    model = getattr(transformers, f"{kind.title()}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 1:
                weights.add_(torch.randn_like(weights) * 0.1)
    return model


def tensors(kind: str, model: transformers.PreTrainedModel) -> dict[str, np.ndarray[Any, Any]]:
    """A model's numbers under the names and in the order that files have them."""
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inner = {
        f"blk.{i}.{short}": f"model.layers.{i}.{name}"
        for i in range(LAYERS)
        for short, name in NAMES.items()
    }
    state = {name: x.detach().float().numpy() for name, x in model.state_dict().items()}
    arrays = {}
    for short, name in (outer | inner).items():
        for part in ("weight", "bias"):
            if (x := state.get(f"{name}.{part}")) is None:
                continue
            heads = {"attn_q": HEADS, "attn_k": GROUPS}.get(short.rpartition(".")[2])
            if kind == "llama" and heads:  # rows i and i + D/2 of a head lie side by side
                halves = x.reshape(heads, 2, HEAD[kind] // 2, -1)
                x = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(x.shape)
            arrays[f"{short}.{part}"] = x
    return arrays


def write(
    path: Path,
    kind: str = "llama",
    model: transformers.PreTrainedModel | None = None,
    values: Mapping[str, Any] | None = None,
    words: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, np.ndarray[Any, Any]]], object] | None = None,
) -> transformers.PreTrainedModel:
    """Write a model as a GGUF file, with other values, vocabulary and tensors than its own."""
    import gguf

    model = random_model(kind) if model is None else model
    arrays = tensors(kind, model)
    if change is not None:
        change(arrays)
    writer = gguf.GGUFWriter(path, kind)
    own = {
        "block_count": LAYERS,
        "context_length": POSITIONS,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": GROUPS,
        "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.dimension_count": HEAD[kind],
        "rope.freq_base": 5000.0,
        **(values or {}),
    }
    named = {f"{kind}.{name}": value for name, value in own.items()}
    for name, value in {**vocabulary(), **(words or {})}.items():
        named[f"tokenizer.ggml.{name}"] = value
    named["tokenizer.chat_template"] = "{{ messages[0]['content'] }}"
    adders = {list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32}
    adders |= {float: writer.add_float32, str: writer.add_string}
    for name, value in named.items():
        if value is not None:
            adders[type(value)](name, value)
    for name, x in arrays.items():
        writer.add_tensor(name, x.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
