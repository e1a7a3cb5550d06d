"""What a model takes: parameters, and bytes of its weights, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attention.errors import InvalidValue
from attention.families import key_layers

if TYPE_CHECKING:
    from attention import Backend

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Footprint:
    """What a model takes in one dtype.

    Attributes:
        parameters: of all weights, tied ones once.
        weight_bytes: of the weights.
        layers: that hold keys and values.
        kv_bytes_per_token: of keys and values of one token in one layer.
    """

    parameters: int
    weight_bytes: int
    layers: int
    kv_bytes_per_token: int

    def kv_bytes(self, backend: Backend, tokens: int) -> int:
        """Bytes of keys and values of a row of so many tokens.

        A method that drops tokens holds its budget in every layer but its dense ones; one that
        chooses among all of them holds all. What a method keeps beside keys and values (scores,
        pages' bounds, a few free slots) is not in it, nor that a model's own sliding layers hold
        less.
        """
        held = self.layers * tokens
        budget = backend.params().get("budget")
        if budget is not None and not backend.keeps_all:
            dense = min(self.layers, backend.dense_layers)
            held = dense * tokens + (self.layers - dense) * min(tokens, int(budget))
        return held * self.kv_bytes_per_token


def footprint(location: str, revision: str | None, dtype: str) -> Footprint:
    """Read from config.json where it is already here; nothing is fetched and no weight is read.

    Args:
        location: a folder, or a hub id that may be in the hub's cache.
        revision: of a hub model.
        dtype: the weights', keys' and values'.

    Raises:
        InvalidValue: no config.json here, or one that tells too little.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(
            location, revision=revision, local_files_only=True, trust_remote_code=False
        )
        with torch.device("meta"):  # shapes without numbers
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        text = config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        layers = key_layers(text)
    except Exception as error:  # whatever a foreign config makes of it
        reason = str(error).strip().split("\n")[0]
        raise InvalidValue("model", location, f"a config.json that is here ({reason})") from error
    parameters = sum(parameter.numel() for parameter in model.parameters())
    width = _BYTES[dtype]
    return Footprint(parameters, parameters * width, layers, 2 * heads * size * width)
