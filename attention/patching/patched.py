"""Patching a model through transformers' public seams, and restoring it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from attention.core.ropes import Rope
from attention.engines import chosen
from attention.errors import InvalidValue
from attention.layers.layer import Method
from attention.patching.cache import TAG, AttentionCache
from attention.patching.families import check_family, windows
from attention.patching.session import Session

NAME = "lil_attention"
# What some models hand to their attention function and ours has no place for.
UNKNOWN = ("softcap", "position_bias", "cu_seq_lens_q", "cu_seq_lens_k")
# Where a model itself drops the cache it was given.
DROPPED = {
    "phi3": "; Phi-3's generate() drops its cache where a text grows past the config's "
    "original_max_position_embeddings: stay below it, or decode in a loop of your own"
}


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function transformers calls: hands everything to the cache that got the key.

    Args:
        query: (B, Hq, T, D), roped.
        key, value: (B, Hkv, T, D), exactly as the cache returned them.
        attention_mask: the padding mask (B, past + T) or None; see `padding_mask`.
        s_aux: the model's own logits beside the keys in each softmax, (Hq,), as in gpt-oss.

    Returns:
        (B, T, Hq, D), and no weights.

    Raises:
        InvalidValue: the call did not go through a cache of an open block, asks for dropout,
            weights or gradients, or slides a window that the model's config did not have.
    """
    cache = getattr(key, TAG, None)
    if not isinstance(cache, AttentionCache):
        raise InvalidValue(
            "past_key_values",
            None,
            "the cache that `with backend.on(model) as cache` yields, or one of its cache.new()"
            + DROPPED.get(module.config.model_type, ""),
        )
    if dropout:
        raise InvalidValue("dropout", dropout, "0: call model.eval() first")
    if kwargs.get("output_attentions"):
        raise InvalidValue("output_attentions", True, "False: weights are not kept")
    for name in UNKNOWN:
        if kwargs.get(name) is not None:
            raise InvalidValue(name, type(kwargs[name]).__name__, "None: it is not supported")
    own = cache.session.windows[module.layer_idx]
    if kwargs.get("sliding_window", own) != own:
        raise InvalidValue(
            "sliding_window",
            kwargs["sliding_window"],
            f"{own}, as the model's config had it when the block was entered",
        )
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
            s_aux,
        )
    return out, None


def padding_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """The mask function transformers calls: passes the two-dimensional padding mask on as it is."""
    return attention_mask


def check_model(backend: Method, model: Any) -> None:
    """Refuse, by name and before any compute, what cannot work.

    Raises:
        InvalidValue: with the reason.
    """
    if not isinstance(model, PreTrainedModel):
        raise InvalidValue("model", type(model).__name__, "a transformers PreTrainedModel")
    check_family(model.config)
    devices = sorted({str(p.device) for p in model.parameters()})
    if len(devices) > 1 or devices == ["meta"]:
        raise InvalidValue("model", devices, "a model on one device")
    full = [i for i, window in enumerate(windows(model.config)) if window is None]
    if not full:
        return
    if backend.dense_layers > full[-1]:
        raise InvalidValue(
            "dense_layers",
            backend.dense_layers,
            f"at most {full[-1]}: layer {full[-1]} is the model's last that {backend.name} can use",
        )
    if backend.turns_keys:
        Rope(getattr(model.base_model, "rotary_emb", None)).require_fixed(backend.name)


@contextmanager
def patched(backend: Method, full: Method, model: Any, engine: str) -> Iterator[AttentionCache]:
    """Let `model` attend through `backend` inside the block; see `Backend.on`."""
    check_model(backend, model)
    engine = chosen(engine, model.device, model.dtype).name
    if not math.isinf(backend.exact_until) and None not in windows(model.config):
        warnings.warn(
            f"every layer of this {model.config.model_type} is the model's own sliding attention "
            f"(config.sliding_window): {backend.name} has no layer to act on",
            stacklevel=3,
        )
    # Both are stateless and change no model until a config names them.
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, padding_mask)
    session = Session(backend, full, model, engine)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield AttentionCache(session)
    finally:
        session.close()
        model.set_attn_implementation(before)
