"""Tiny random Llama / Qwen2 / Qwen3 models on which a wrong key shows in the logits."""

from __future__ import annotations

import types
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

HEADS = ((4, 4), (4, 2), (4, 1))
VOCABULARY = 53
QK = (("q_proj", "k_proj"), ("q_norm", "k_norm"))


def tiny_config(family: str, heads: tuple[int, int], layers: int) -> Any:
    """Hidden 32 to 64, head size 8 to 16; Qwen3's head size is not hidden / heads."""
    Hq, Hkv = heads
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": Hq,
        "num_key_value_heads": Hkv,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if family == "llama":
        theta = {"rope_type": "default", "rope_theta": 10_000.0}
        return LlamaConfig(**common, hidden_size=64, rope_parameters=theta)
    if family == "qwen2":
        theta = {"rope_type": "default", "rope_theta": 1_000_000.0}
        return Qwen2Config(
            **common, hidden_size=32, rope_parameters=theta, tie_word_embeddings=True
        )
    if family == "qwen3":
        theta = {"rope_type": "default", "rope_theta": 500_000.0}
        return Qwen3Config(**common, hidden_size=48, head_dim=16, rope_parameters=theta)
    raise ValueError(f"no tiny model of {family!r}")


@lru_cache(maxsize=64)
def tiny_model(
    family: str = "llama",
    heads: tuple[int, int] = (4, 2),
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    sharp: float = 1.0,
    exact: bool = True,
) -> Any:
    """A model in eval mode; the same weights in every dtype, biases and norm weights random too.

    Args:
        sharp: factor on queries and on keys, so its square on the attention logits.
        exact: a float64 model gets norms and rotary tables in float64 (see `make_exact`).
    """
    seed = 1_000 * sorted(("llama", "qwen2", "qwen3")).index(family) + 10 * heads[1] + layers
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        tiny_config(family, heads, layers), dtype=torch.float32, attn_implementation="sdpa"
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # 0.15, as with the usual 0.02 attention is flat and tests are blind.
            weight.normal_(0.0, 0.15, generator=generator)
            if "norm" in name:
                weight.add_(1.0)
            # With q/k norms the projections' size has no effect; the norms' weights have.
            if any(part in name for part in QK[family == "qwen3"]):
                weight.mul_(sharp)
    model.eval().requires_grad_(False)
    model.to(dtype)
    if dtype is torch.float64 and exact:
        make_exact(model)
    return model


def make_exact(model: Any) -> None:
    """`compute_in_float64`, by rotary frequencies that were never rounded."""
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            theta = model.config.rope_parameters["rope_theta"]
            D = 2 * module.inv_freq.numel()
            exponent = torch.arange(0, D, 2, dtype=torch.float64) / D
            module.inv_freq = 1.0 / theta**exponent
            module.original_inv_freq = module.inv_freq.clone()
    compute_in_float64(model)


def compute_in_float64(m: Any) -> None:
    """Lets a float64 model compute in float64 throughout, norms, rotary tables and routers too.

    transformers computes these in float32 whatever the dtype is. At 1e-9 that noise would hide,
    or pass for, a difference in the attention, which is what we test.
    """

    def norm(self: Any, x: Tensor) -> Tensor:
        weight = self.weight + (type(self).__name__ == "Gemma3RMSNorm")
        eps = getattr(self, "variance_epsilon", None) or self.eps
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))

    def rotary(
        self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        prefix = f"{layer_type}_" if layer_type else ""
        frequency = getattr(self, f"{prefix}inv_freq").double()
        scale = getattr(self, f"{prefix}attention_scaling")
        angle = position_ids[..., None].double() * frequency
        if "GptOss" not in type(self).__name__:
            angle = torch.cat((angle, angle), dim=-1)
        return (angle.cos() * scale).to(x.dtype), (angle.sin() * scale).to(x.dtype)

    def route(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x.reshape(-1, self.hidden_dim)
        scores = functional.linear(x, self.weight)
        weight, index = scores.softmax(-1).topk(self.top_k, dim=-1)
        return scores, weight, index

    for module in m.modules():
        kind = type(module).__name__
        for ending, forward in (
            ("RMSNorm", norm),
            ("RotaryEmbedding", rotary),
            ("MoeTopKRouter", route),
        ):
            if kind.endswith(ending):
                module.forward = types.MethodType(forward, module)
