"""One `with` block: the method, what caches know of the model, and which models are taken."""

from __future__ import annotations

import copy
from typing import Any

from attention.core.ropes import Rope
from attention.errors import InvalidValue
from attention.layers.layer import Method

# Where a family has sliding layers: nowhere, in "all" layers once `sliding_window` is set, or where
# its "layer_types" say so.
FAMILIES: dict[str, str | None] = {
    "gemma3_text": "layer_types",
    "gpt_oss": "layer_types",
    "llama": None,
    "mistral": "all",
    "phi3": "all",
    "qwen2": "layer_types",
    "qwen2_moe": "layer_types",
    "qwen3": "layer_types",
    "qwen3_moe": "all",
}
ATTENTION = ("full_attention", "sliding_attention")


def windows(config: Any) -> tuple[int | None, ...]:
    """The model's own sliding window of each layer, in tokens; None where attention is full."""
    layers: int = config.num_hidden_layers
    window: int | None = getattr(config, "sliding_window", None)
    where = FAMILIES[config.model_type]
    if where is None or not window:
        return (None,) * layers
    if where == "all":
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in config.layer_types)


def check_family(config: Any) -> None:
    """Refuse the models whose attention is not what the methods are defined on.

    Raises:
        InvalidValue: with the reason.
    """
    family = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidValue("model", family, "a decoder: this is an encoder-decoder")
    for tower in ("vision_config", "audio_config"):
        if getattr(config, tower, None) is not None:
            raise InvalidValue("model", family, f"a text model: this one's config has a {tower}")
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - set(ATTENTION))
    if kinds:
        raise InvalidValue("layer_types", kinds, "softmax attention: " + " or ".join(ATTENTION))
    if family not in FAMILIES:
        raise InvalidValue("model", family, "a family among " + ", ".join(FAMILIES), FAMILIES)
    if getattr(config, "use_bidirectional_attention", False):
        raise InvalidValue("use_bidirectional_attention", True, "causal attention")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise InvalidValue(
            "attn_logit_softcapping", config.attn_logit_softcapping, "None: logits are not capped"
        )


class Session:
    """One `on()` block: the backend, what caches must know of the model, and whether it is open.

    Args:
        backend: of the block.
        full: full attention, which rows may go on under.
        model: the patched model.
        engine: name of the engine in force.
    """

    def __init__(self, backend: Method, full: Method, model: Any, engine: str) -> None:
        self.backend, self.engine = backend, engine
        self.config = model.config
        self.layers: int = model.config.num_hidden_layers
        self.windows = windows(model.config)
        self.rope = Rope(getattr(model.base_model, "rotary_emb", None))
        self.open = True
        self._full = full
        self._full_session: Session | None = None

    @property
    def full_session(self) -> Session:
        """The same block under full attention: one for all caches that go on so."""
        if self.backend == self._full:
            return self
        if self._full_session is None:
            self._full_session = copy.copy(self)
            self._full_session.backend = self._full
        return self._full_session

    def close(self) -> None:
        """No cache of this block can be fed any more."""
        self.open = False
        if self._full_session is not None:
            self._full_session.close()
