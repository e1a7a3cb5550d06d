"""Which GGUF files the reader of transformers reads rightly; every other kind is refused by name.

The reader passes over what it does not know: a stretch of positions, a window, factors of
frequencies, heads of another size. A file with any of these would silently become another model.
"""

from __future__ import annotations

import re
from typing import Any

from experiments.grid.gguf.header import Header, UnreadableFile

#: The class of transformers that each architecture becomes.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
#: Ways to cut texts before the vocabulary's merges (`tokenizer.ggml.pre`).
CUTS = ("gpt-2", "smollm", "qwen2", "deepseek-r1-qwen")

_TENSOR = re.compile(
    r"(?:token_embd|output_norm|output)\.weight|blk\.\d+\."
    r"(?:attn_(?:q|k|v|output|norm|q_norm|k_norm)|ffn_(?:gate|up|down|norm))\.(?:weight|bias)"
)
# Values that transformers reads, or that are compared with the model that it makes.
_READ = {
    *("context_length", "block_count", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
    *("attention.key_length", "attention.value_length"),
    *("rope.freq_base", "rope.dimension_count"),
}
# Values that change nothing.
_NEUTRAL = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "expert_count": 0}
_LONGEST_TOKEN = 1024


def require_known(header: Header) -> None:
    """Refuse a file that transformers would read as another model, before a weight is read."""
    values = header.values
    name = values.get("general.architecture")
    if name not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise UnreadableFile(f"its architecture is {str(name)[:80]!r}, not one of {names}")
    for key, value in values.items():
        short = key.removeprefix(f"{name}.")
        if short != key and short not in _READ and _NEUTRAL.get(short) != value:
            raise UnreadableFile(f"its {key[:80]} is {str(value)[:60]}, which transformers ignores")
    unknown = [tensor for tensor in header.tensors if not _TENSOR.fullmatch(tensor)]
    if unknown:
        raise UnreadableFile(f"transformers ignores its tensor {unknown[0][:80]!r}")
    layers = values.get(f"{name}.block_count")
    if type(layers) is not int or not 0 < layers <= len(header.tensors):
        raise UnreadableFile(f"it claims {str(layers)[:60]} layers")
    kind, cut = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in CUTS:
        cuts = ", ".join(CUTS)
        raise UnreadableFile(
            f"its vocabulary is {str(kind)[:40]!r} cut by {str(cut)[:40]!r}, not 'gpt2' by {cuts}"
        )
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UnreadableFile("it has no vocabulary")
    if len(set(tokens)) != len(tokens) or max(map(len, tokens), default=0) > _LONGEST_TOKEN:
        raise UnreadableFile(f"tokens of it are there twice, or longer than {_LONGEST_TOKEN}")
    width = values.get(f"{name}.embedding_length")
    if header.tensors.get("token_embd.weight") != (len(tokens), width):
        raise UnreadableFile(f"its embeddings are not of {len(tokens):,} tokens of size {width}")


def require_same(header: Header, model: Any) -> None:
    """Refuse a model that transformers made and that is not the file's."""
    name, config = header.values["general.architecture"], model.config
    if type(model).__name__ != ARCHITECTURES[name]:
        raise UnreadableFile(f"transformers makes {type(model).__name__} of it")
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if header.values.get(f"{name}.{key}", head) != head:
            raise UnreadableFile(f"its {name}.{key} is not {head}, as transformers has it")
    parameters = dict(model.named_parameters())  # tied ones once
    if len(parameters) != len(header.tensors):
        raise UnreadableFile(
            f"it has {len(header.tensors)} tensors, of which transformers reads {len(parameters)}"
        )
    for tensor, weights in parameters.items():
        if not weights.isfinite().all():
            raise UnreadableFile(f"{tensor} of it has numbers that are not finite")
