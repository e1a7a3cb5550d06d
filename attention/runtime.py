"""Patching a model through transformers' public seams, and restoring it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from attention.cache import TAG, AttentionCache
from attention.errors import InvalidValue
from attention.ropes import Rope

if TYPE_CHECKING:
    from attention.backend import Backend

NAME = "lil_attention"
FAMILIES = ("llama", "qwen2", "qwen3")


class Runtime:
    """One `on()` block: the backend, what caches must know of the model, and whether it is open."""

    def __init__(self, backend: Backend, model: Any) -> None:
        self.backend = backend
        self.layers: int = model.config.num_hidden_layers
        self.rope = Rope(getattr(model.base_model, "rotary_emb", None))
        self.open = True


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function transformers calls: hands everything to the cache that got the key.

    Args:
        query: (B, Hq, T, D), roped.
        key, value: (B, Hkv, T, D), exactly as the cache returned them.
        attention_mask: the padding mask (B, past + T) or None; see `padding_mask`.

    Returns:
        (B, T, Hq, D), and no weights.

    Raises:
        InvalidValue: the call did not go through a cache of an open block, or asks for dropout,
            weights or gradients.
    """
    cache = getattr(key, TAG, None)
    if not isinstance(cache, AttentionCache):
        raise InvalidValue(
            "past_key_values",
            None,
            "the cache that `with backend.on(model) as cache` yields, or one of its cache.new()",
        )
    if dropout:
        raise InvalidValue("dropout", dropout, "0: call model.eval() first")
    if kwargs.get("output_attentions"):
        raise InvalidValue("output_attentions", True, "False: weights are not kept")
    if torch.is_grad_enabled() and query.requires_grad:
        raise InvalidValue(
            "gradients", "on", "a call under torch.no_grad(): the cached state carries no gradient"
        )
    # State must outlive the caller's inference mode: tensors made inside could not be changed
    # outside it.
    with torch.inference_mode(False), torch.no_grad():
        out = cache.attend(
            module.layer_idx,
            query,
            key,
            value,
            attention_mask,
            scaling,
            kwargs.get("position_ids"),
        )
    return out, None


def padding_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """The mask function transformers calls: passes the two-dimensional padding mask on as it is."""
    return attention_mask


def check_model(backend: Backend, model: Any) -> None:
    """Refuse, by name and before any compute, what cannot work.

    Raises:
        InvalidValue: with the reason.
    """
    if not isinstance(model, PreTrainedModel):
        raise InvalidValue("model", type(model).__name__, "a transformers PreTrainedModel")
    family = model.config.model_type
    if family not in FAMILIES:
        raise InvalidValue("model", family, "a family among " + ", ".join(FAMILIES), FAMILIES)
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise InvalidValue(
            "layer_types", sorted(kinds), "full_attention in every layer (no sliding windows)"
        )
    layers = model.config.num_hidden_layers
    if backend.dense_layers and backend.dense_layers >= layers:
        raise InvalidValue(
            "dense_layers", backend.dense_layers, f"less than the model's {layers} layers"
        )
    if backend.turns_keys:
        Rope(getattr(model.base_model, "rotary_emb", None)).require_fixed(backend.name)


@contextmanager
def patched(backend: Backend, model: Any) -> Iterator[AttentionCache]:
    """Let `model` attend through `backend` inside the block; see `Backend.on`."""
    check_model(backend, model)
    # Both are stateless and change no model until a config names them.
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, padding_mask)
    runtime = Runtime(backend, model)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield AttentionCache(runtime)
    finally:
        runtime.open = False
        model.set_attn_implementation(before)
