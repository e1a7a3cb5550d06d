"""Tiny GGUF files of models that transformers makes, and what their numbers are by other code."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

HIDDEN, INNER, LAYERS, HEADS, GROUPS, HEAD = 64, 96, 2, 4, 2, 16
EPSILON, POSITIONS = 2.0**-17, 512
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

#: Names of a layer's tensors in files and in models.
PLAIN = {
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
GEMMA = {
    **PLAIN,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PHI = {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}

# ---------------------------------------------------------------- vocabularies

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>")


def byte_level() -> dict[str, Any]:
    """Values of a vocabulary of bytes, two merged words and special tokens."""
    letters = [*bytes_to_unicode().values()]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]
    tokens = [*letters, *(merge.replace(" ", "") for merge in merges), *_SPECIAL]
    kinds = [1] * (len(tokens) - len(_SPECIAL)) + [3, 3, 3, 4]
    first = tokens.index(_SPECIAL[0])
    return {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "bos_token_id": first,
        "eos_token_id": first + 2,
        "padding_token_id": first,
        "add_bos_token": False,
    }


def pieces() -> dict[str, Any]:
    """Values of a vocabulary of pieces with scores, and of bytes."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    kinds = [3, 3, 3, 2, 3, 3]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    kinds += [6] * 256
    words = [*"▁helowrd12.\n", "he", "ll", "▁w", "hell", "hello", "▁hello", "▁▁", "el"]
    tokens += words
    kinds += [1] * len(words)
    # The last of them comes first by its score, and last by its place.
    scores = [0.0] * (len(tokens) - len(words)) + [-float(i) for i in range(1, len(words))] + [0.0]
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "eot_token_id": 5,
        "unknown_token_id": 3,
        "padding_token_id": 0,
        "add_bos_token": True,
        "add_space_prefix": False,
    }


# ---------------------------------------------------------------- models


def _sizes(words: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": words,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "rms_norm_eps": EPSILON,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.15,
        **more,
    }


def llama(words: int, **more: Any) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    return LlamaForCausalLM(LlamaConfig(**_sizes(words, **{"rope_parameters": rope, **more})))


def qwen2(words: int, **more: Any) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    return Qwen2ForCausalLM(Qwen2Config(**_sizes(words, **{"rope_parameters": rope, **more})))


def qwen3(words: int, **more: Any) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    sizes = _sizes(words, rope_parameters=rope, head_dim=32, **more)
    return Qwen3ForCausalLM(Qwen3Config(**sizes))


def gemma3(words: int, **more: Any) -> PreTrainedModel:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    sizes = _sizes(words, rope_parameters=rope, head_dim=32, query_pre_attn_scalar=32)
    types = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**sizes, sliding_window=4, layer_types=types, **more))


def phi3(words: int, **more: Any) -> PreTrainedModel:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.0, 1.0, 1.25, 1.5],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": 16,
        "attention_factor": 1.25,
    }
    sizes = _sizes(words, rope_parameters=rope, original_max_position_embeddings=16)
    return Phi3ForCausalLM(Phi3Config(**sizes, pad_token_id=0, sliding_window=None, **more))


#: Models by the names of their architectures: what makes one, its names, values of its own.
KINDS: dict[str, tuple[Callable[..., PreTrainedModel], Mapping[str, str], dict[str, Any]]] = {
    "llama": (llama, PLAIN, {"rope.dimension_count": HEAD}),
    "qwen2": (qwen2, PLAIN, {}),
    "qwen3": (qwen3, PLAIN, {"attention.key_length": 32, "attention.value_length": 32}),
    "gemma3": (
        gemma3,
        GEMMA,
        {
            "attention.key_length": 32,
            "attention.value_length": 32,
            "attention.sliding_window": 4,
            "attention.sliding_window_pattern": 2,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "phi3": (
        phi3,
        PHI,
        {
            "rope.dimension_count": HEAD // 2,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": 1.25,
        },
    ),
}


def made(kind: str, seed: int = 0, **more: Any) -> PreTrainedModel:
    """A random model of an architecture; its biases and norms are no zeros and ones."""
    words = len((pieces() if kind == "gemma3" else byte_level())["tokens"])
    torch.manual_seed(seed)
    model = KINDS[kind][0](words, **more).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.dim() == 1:
                x.add_(torch.randn_like(x) * (0.1 if "norm" in name else 0.3))
    return model


def tensors(kind: str, model: PreTrainedModel) -> dict[str, np.ndarray[Any, Any]]:
    """A model's numbers under the names that files have, as files hold them."""
    names, found = KINDS[kind][1], {}
    state = {name: x.detach().float().numpy() for name, x in model.state_dict().items()}
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    if model.config.tie_word_embeddings:
        del outer["output"]
    inner = {
        f"blk.{i}.{ours}": f"model.layers.{i}.{theirs}"
        for i in range(LAYERS)
        for ours, theirs in names.items()
    }
    for ours, theirs in (outer | inner).items():
        for part in ("weight", "bias"):
            if f"{theirs}.{part}" not in state:
                continue
            x = state[f"{theirs}.{part}"]
            if kind == "gemma3" and "norm" in ours:
                x = x + np.float32(1)
            heads = {"attn_q": HEADS, "attn_k": GROUPS}.get(ours.rpartition(".")[2])
            if kind == "llama" and heads:
                x = _paired(x, heads)
            found[f"{ours}.{part}"] = x
    if kind == "phi3":
        for length in ("long", "short"):
            factors = model.config.rope_parameters[f"{length}_factor"]
            found[f"rope_factors_{length}.weight"] = np.array(factors, np.float32)
    return found


def _paired(x: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows i and i + D/2 of each head become rows 2i and 2i + 1."""
    found, size = x.copy(), len(x) // heads
    for head in range(heads):
        for i in range(size // 2):
            found[head * size + 2 * i] = x[head * size + i]
            found[head * size + 2 * i + 1] = x[head * size + i + size // 2]
    return found


def write(
    path: Path,
    kind: str = "llama",
    model: PreTrainedModel | None = None,
    storage: str = "F32",
    values: Mapping[str, Any] | None = None,
    words: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, np.ndarray[Any, Any]]], None] | None = None,
) -> PreTrainedModel:
    """Write a model as a GGUF file.

    Args:
        path: of the file.
        kind: its architecture.
        model: random where none is given.
        storage: how its matrices are stored.
        values: of the architecture, over its own; None takes one away.
        words: of the vocabulary, likewise.
        change: made to its tensors before they are stored.
    """
    import gguf

    model = made(kind) if model is None else model
    held = tensors(kind, model)
    if change is not None:
        change(held)
    writer = gguf.GGUFWriter(path, kind)
    theta = model.config.rope_parameters
    given: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": POSITIONS,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": GROUPS,
        "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.freq_base": theta.get("full_attention", theta)["rope_theta"],
        **KINDS[kind][2],
        **(values or {}),
    }
    for name, value in given.items():
        _add(writer, f"{kind}.{name}", value)
    vocabulary = {**(pieces() if kind == "gemma3" else byte_level()), **(words or {})}
    template = vocabulary.pop("chat_template", TEMPLATE)
    for name, value in vocabulary.items():
        _add(writer, f"tokenizer.ggml.{name}", value)
    _add(writer, "tokenizer.chat_template", template)
    for name, x in held.items():
        if x.ndim == 1 or storage == "F32":
            writer.add_tensor(name, x.astype(np.float32))
        elif storage == "F16":
            writer.add_tensor(name, x.astype(np.float16))
        else:
            type_ = gguf.GGMLQuantizationType[storage]
            writer.add_tensor(name, gguf.quantize(x, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add(writer: Any, name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    else:
        writer.add_string(name, value)


# ---------------------------------------------------------------- numbers, one at a time


def numbers(raw: bytes, storage: str) -> list[float]:
    """What a tensor's bytes stand for, by the definition of each type of storage."""
    if storage == "F32":
        return [one for (one,) in struct.iter_unpack("<f", raw)]
    if storage == "F16":
        return [one for (one,) in struct.iter_unpack("<e", raw)]
    if storage == "BF16":
        return [
            struct.unpack("<f", struct.pack("<I", one << 16))[0]
            for (one,) in struct.iter_unpack("<H", raw)
        ]
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24}[storage]
    found: list[float] = []
    for at in range(0, len(raw), size):
        found += _block(raw[at : at + size], storage)
    return [float(np.float32(one)) for one in found]


def _block(block: bytes, storage: str) -> list[float]:
    """32 numbers: a scale times small integers, from a least number on where there is one."""
    (scale,) = struct.unpack("<e", block[:2])
    rest, least = block[2:], 0.0
    if storage == "Q8_0":
        return [scale * one for one in struct.unpack("<32b", rest)]
    if storage.endswith("_1"):
        (least,) = struct.unpack("<e", rest[:2])
        rest = rest[2:]
    high = 0
    if storage.startswith("Q5"):
        (high,) = struct.unpack("<I", rest[:4])
        rest = rest[4:]
    low = [one & 15 for one in rest] + [one >> 4 for one in rest]
    whole = [one | (high >> i & 1) << 4 for i, one in enumerate(low)]
    middle = {"Q4_0": 8, "Q5_0": 16}.get(storage, 0)
    found = [scale * (one - middle) + least for one in whole]
    assert all(map(math.isfinite, found))
    return found
