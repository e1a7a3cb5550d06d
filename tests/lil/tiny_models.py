"""Tiny random models, a tokenizer whose tokens are its text, prompts, and what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import lil
from lil.penalties import Penalty

WORDS = ["<eos>", "<unk>", " Anna", " has", " 3", ".", "\n\n", *(f" word{i}" for i in range(50))]
SIZES = {
    "vocab_size": 60,  # three more than the tokenizer has, as published models do
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,  # the usual 0.02 makes attention flat and tests blind
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
#: Ragged; most tests take four.
FIVE_PROMPTS = [[5, 6, 7], [9] * 12, [1, 2, 3, 4, 5, 6, 7, 8], [30], [11, 12]]
PROMPTS = FIVE_PROMPTS[:4]


def build_tokenizer() -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"<\w+>|\n\n| ?\w+|."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def build_model(
    family: str, dtype: torch.dtype = torch.float64, *, layers: int = 3, seed: int = 11
) -> torch.nn.Module:
    torch.manual_seed(seed)
    sizes = SIZES | {"num_hidden_layers": layers}
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        kinds = ["full_attention", "sliding_attention", "full_attention"]
        slides = {"use_sliding_window": True, "sliding_window": 24, "layer_types": kinds}
        more = slides if family == "sliding" else {}
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, **more))
    return model.to(dtype).eval()


def requests_of(prompts: Sequence[Any], **lists: Sequence[Any]) -> list[lil.Request]:
    """A request a prompt; of each field one value a prompt."""
    each = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    return [lil.Request(prompt, **own) for prompt, own in zip(prompts, each, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Endings(Penalty):
    """A penalty that ends a chunk at every seventh token of a row."""

    include_prompt: bool = True
    name: ClassVar[str] = "endings"

    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        ends = torch.full_like(scores, -1.0)
        ends[:, WORDS.index("\n\n")] = 1.0
        return torch.where(lengths[:, None] % 7 == 0, ends, scores)


def run_in_chunks(model: Any, tokenizer: Any, **options: Any) -> list[lil.Trace]:
    """Five rows in three places, with a chunk's end at every seventh token."""
    settings = {"max_new_tokens": 80, "batch_size": 3, "penalties": [Endings()]} | options
    return lil.decode(model, tokenizer, FIVE_PROMPTS, **settings)


def near(value: Any, rel: float = 1e-9) -> Any:
    """The same with every float approximate."""
    if isinstance(value, float):
        return pytest.approx(value, rel=rel)
    if isinstance(value, dict):
        return {key: near(item, rel) for key, item in value.items()}
    return [near(item, rel) for item in value] if isinstance(value, list | tuple) else value


def record(trace: lil.Trace) -> dict[str, Any]:
    """All a trace holds but seconds; sums over hidden states up to rounding."""
    checks = [check._replace(seconds=None)._asdict() for check in trace.checks]
    fields = trace.to_dict() | {"checks": checks, "prefill_sec": None, "decode_sec": None}
    return fields | {name: near(fields[name]) for name in ("signals", "evidence")}
