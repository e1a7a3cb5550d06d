"""Refusals that follow from a model's config alone."""

from __future__ import annotations

from typing import Any

from attention.errors import InvalidValue

# Kinds of layers that hold no keys, in the words of transformers' configs.
KEYLESS = ("conv", "linear_attention", "mamba", "mlp", "moe", "recurrent")


def key_windows(config: Any) -> tuple[int | None, ...]:
    """Windows of a text model's layers that hold keys, by its config; None for a full layer."""
    kinds = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    windows = {"sliding_attention": getattr(config, "sliding_window", None)}
    return tuple(windows.get(kind) for kind in kinds if kind not in KEYLESS)


def check_family(config: Any) -> None:
    """Refuse models whose config says that their attention is not what methods are defined on.

    These are the cases in which a reason says more than the difference that the probe would find,
    or in which a few tokens would show no difference.
    """
    family = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidValue("model", family, "a decoder: this is an encoder-decoder")
    for tower in ("vision_config", "audio_config"):
        if getattr(config, tower, None) is not None:
            raise InvalidValue("model", family, f"a text model: this one's config has a {tower}")
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        allowed = "layers that attend to all earlier tokens or slide a window: these of "
        allowed += f"{family} attend within chunks of {chunk} tokens"
        raise InvalidValue("layer_types", ["chunked_attention"], allowed)
    refused = {
        "use_bidirectional_attention": "causal attention",
        "attn_logit_softcapping": "None: logits are not capped",
        "kv_lora_rank": f"None: {family} makes the keys and values of all heads from one latent "
        "vector (MLA), which is what there is to keep; budgets are of keys of heads",
        "num_kv_shared_layers": f"0: layers of {family} read the keys of other layers",
    }
    for field, allowed in refused.items():
        if value := getattr(config, field, None):
            raise InvalidValue(field, value, allowed)
