"""A tiny Llama / Qwen2 / Qwen3 decoder in numpy for ONE sequence, attention by an oracle layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .layer import Layer, Rope

FAMILIES = ("llama", "qwen2", "qwen3")


def rope_table(theta: float, D: int, dtype: type) -> Rope:
    """Rotary embedding of the usual kind: component i turns with component i + D/2.

    In float32 the angles are float32 products, as in transformers; in float64 all is float64.
    """
    # torch's float32 pow, because one last bit of a frequency is an angle of 1e-5 at position 300.
    exact = torch.float64 if dtype is np.float64 else torch.float32
    frequency = (1.0 / (theta ** (torch.arange(0, D, 2, dtype=exact) / D))).numpy()

    def rope(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        angle = positions.astype(dtype)[:, None] * frequency
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[:, : D // 2], x[:, D // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)

    return rope


class NaiveModel:
    """Reads a Hugging Face state dict and config; `forward` takes tokens, gives their logits.

    Args:
        state: the model's state dict (any float dtype; converted).
        config: the model's config; default rope only, SiLU MLP.
        layer: makes an oracle layer: layer(rope, Hq, Hkv, scale, index).
        dtype: np.float32 or np.float64, of every operation.
    """

    def __init__(
        self,
        state: dict[str, torch.Tensor],
        config: Any,
        layer: Callable[..., Layer],
        dtype: type = np.float64,
    ) -> None:
        if config.model_type not in FAMILIES:
            raise ValueError(f"no oracle for {config.model_type!r}")
        if config.rope_parameters["rope_type"] != "default" or config.hidden_act != "silu":
            raise ValueError("the oracle knows default rope and SiLU only")
        self.w = {name: t.detach().double().numpy().astype(dtype) for name, t in state.items()}
        self.eps = config.rms_norm_eps
        self.Hq, self.Hkv = config.num_attention_heads, config.num_key_value_heads
        self.D = getattr(config, "head_dim", None) or config.hidden_size // self.Hq
        rope = rope_table(config.rope_parameters["rope_theta"], self.D, dtype)
        self.layers = [
            layer(rope, self.Hq, self.Hkv, 1 / math.sqrt(self.D), i)
            for i in range(config.num_hidden_layers)
        ]

    def forward(self, tokens: list[int]) -> np.ndarray:
        """The next tokens of the sequence -> their logits (T, vocabulary)."""
        x = self.w["model.embed_tokens.weight"][tokens]
        for i, layer in enumerate(self.layers):
            x = x + self.attention(f"model.layers.{i}", layer, x)
            x = x + self.mlp(f"model.layers.{i}", x)
        x = self.norm("model.norm.weight", x)
        head = "lm_head.weight" if "lm_head.weight" in self.w else "model.embed_tokens.weight"
        return x @ self.w[head].T

    def prefill(self, tokens: list[int]) -> np.ndarray:
        """The prompt -> the logits after its last token (vocabulary,)."""
        return self.forward(tokens)[-1]

    def step(self, token: int) -> np.ndarray:
        """One more token -> the logits after it (vocabulary,)."""
        return self.forward([token])[-1]

    def attention(self, name: str, layer: Layer, x: np.ndarray) -> np.ndarray:
        x = self.norm(f"{name}.input_layernorm.weight", x)
        T = len(x)
        q = self.linear(f"{name}.self_attn.q_proj", x).reshape(T, self.Hq, self.D)
        k = self.linear(f"{name}.self_attn.k_proj", x).reshape(T, self.Hkv, self.D)
        v = self.linear(f"{name}.self_attn.v_proj", x).reshape(T, self.Hkv, self.D)
        if f"{name}.self_attn.q_norm.weight" in self.w:
            q = self.norm(f"{name}.self_attn.q_norm.weight", q)
            k = self.norm(f"{name}.self_attn.k_norm.weight", k)
        out = layer.forward(q, k, v).reshape(T, self.Hq * self.D)
        return self.linear(f"{name}.self_attn.o_proj", out)

    def mlp(self, name: str, x: np.ndarray) -> np.ndarray:
        x = self.norm(f"{name}.post_attention_layernorm.weight", x)
        gate = self.linear(f"{name}.mlp.gate_proj", x)
        gate = gate / (1 + np.exp(-gate))
        return self.linear(f"{name}.mlp.down_proj", gate * self.linear(f"{name}.mlp.up_proj", x))

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        size = np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(self.eps))
        return self.w[name] * (x / size)
