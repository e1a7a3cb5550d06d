"""Refusals that follow from a model's config alone."""

from __future__ import annotations

from typing import Any

from attention.errors import InvalidValue

# Kinds of layers that hold no keys, in the words of transformers' configs.
KEYLESS = ("conv", "linear_attention", "mamba", "mlp", "moe", "recurrent")


def key_layers(config: Any) -> int:
    """How many of a text model's layers hold keys, by its config."""
    kinds = getattr(config, "layer_types", None) or ()
    layers: int = config.num_hidden_layers
    return layers - sum(kind in KEYLESS for kind in kinds)


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
    if getattr(config, "use_bidirectional_attention", False):
        raise InvalidValue("use_bidirectional_attention", True, "causal attention")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise InvalidValue(
            "attn_logit_softcapping", config.attn_logit_softcapping, "None: logits are not capped"
        )
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    if chunked and getattr(config, "attention_chunk_size", None):
        allowed = (
            "layers that attend to all earlier tokens or slide a window: these of "
            f"{family} attend within chunks of {config.attention_chunk_size} tokens"
        )
        raise InvalidValue("layer_types", ["chunked_attention"], allowed)
    rank = getattr(config, "kv_lora_rank", None)
    if rank:
        allowed = (
            f"None: {family} makes the keys and values of all heads from one latent vector (MLA), "
            "which is what there is to keep; budgets are of keys of heads"
        )
        raise InvalidValue("kv_lora_rank", rank, allowed)
    shared = getattr(config, "num_kv_shared_layers", None)
    if shared:
        raise InvalidValue(
            "num_kv_shared_layers", shared, f"0: layers of {family} read the keys of other layers"
        )
