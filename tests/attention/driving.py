"""How the tests of `attention` feed models: ragged prompts, given tokens, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from oracles.models import VOCABULARY, tiny_model
from torch import Tensor

import attention
from attention.testing import OneLayer

# One backend of every method, sparse from 16 to 32 tokens on, in every layer.
BACKENDS: tuple[attention.Backend, ...] = (
    attention.Full(),
    attention.Sink(budget=16),
    attention.Sink(budget=17, sinks=2, positions="absolute"),
    attention.Sink(budget=13, positions="hf_sinkcache"),
    attention.H2O(budget=16),
    attention.H2O(budget=15, heavy=9, gqa="max"),
    attention.H2O(budget=16, positions="rolled", decay=0.8),
    attention.H2O(budget=14, score_from_prefill=False, normalise="age", dense_layers=1),
    attention.H2O(budget=15, positions="rolled", gqa="query_head"),
    attention.H2OUniform(budget=16, dense_layers=1),
    attention.Quest(budget=16, page=4, dense_layers=0),
    attention.Quest(budget=18, page=3, dense_layers=1, gqa="query_head"),
    attention.Quest(budget=16, page=4, dense_layers=0, rule="paper_script"),
    attention.InfLLM(budget=16),
    attention.InfLLM(budget=32, n_init=5, block=4, topk=2, n_local=12, repr_topk=2),
    attention.InfLLM(budget=24, far_position="absolute"),
    attention.InfLLM(budget=32, n_local=11, selection="kv_head", prefill="reference", exc_block=4),
    attention.Window(budget=15),
    attention.TOVA(budget=16),
    attention.Random(budget=17, sinks=2),
    attention.Oracle(budget=16),
    attention.Oracle(top_p=0.8, gqa="max"),
    attention.RaaS(budget=16, page=4, protect_prompt=False),
    attention.RKV(budget=18),
    attention.SnapKV(budget=17),
)
KEEP_ALL = tuple(
    b for b in BACKENDS if b.name in ("full", "quest", "infllm", "oracle", "h2o_uniform")
)


def model(family: str = "llama", heads: tuple[int, int] = (4, 2), layers: int = 2) -> Any:
    """A float64 model that computes in float64 throughout."""
    return tiny_model(family, heads, layers, torch.float64)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Random tokens; generated text repeats itself, which ties scores."""
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def left_pad(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids and mask (B, longest)."""
    longest = max(len(p) for p in prompts)
    ids = torch.stack([torch.cat((p.new_zeros(longest - len(p)), p)) for p in prompts])
    mask = torch.stack([torch.arange(longest) >= longest - len(p) for p in prompts]).long()
    return ids, mask


@torch.no_grad()
def prefill(m: Any, cache: Any, prompts: Sequence[Tensor], chunk: int | None = None) -> Tensor:
    """Feed left-padded prompts, in chunks of columns; the last column's logits (B, vocabulary)."""
    ids, mask = left_pad(prompts)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    width = ids.shape[1]
    for start in range(0, width, chunk or width):
        end = min(start + (chunk or width), width)
        out = m(
            input_ids=ids[:, start:end],
            attention_mask=mask[:, :end],
            position_ids=positions[:, start:end],
            past_key_values=cache,
        ).logits
    return out[:, -1]


@torch.no_grad()
def step(m: Any, cache: Any, column: Tensor) -> Tensor:
    """One token a row; logits (B, vocabulary)."""
    return m(
        input_ids=column[:, None], position_ids=cache.seen[:, None], past_key_values=cache
    ).logits[:, -1]


def decode(m: Any, cache: Any, given: Tensor) -> Tensor:
    """Feed (B, n) tokens one by one; logits (B, n, vocabulary)."""
    return torch.stack([step(m, cache, column) for column in given.T], dim=1)


def follow(
    m: Any, cache: Any, prompts: Sequence[Tensor], given: Tensor, chunk: int | None = None
) -> Tensor:
    """Logits after the prompt and after each given token, (B, 1 + n, vocabulary)."""
    first = prefill(m, cache, prompts, chunk)
    return torch.cat((first[:, None], decode(m, cache, given)), dim=1)


class Bare(OneLayer):
    """A layer without a model, whose logits are q.k, unscaled."""

    def __init__(
        self,
        backend: attention.Backend,
        heads: tuple[int, int] = (4, 2),
        rows: int = 1,
        index: int = 0,
    ) -> None:
        super().__init__(backend, heads, rows, scaling=1.0, index=index)

    def probabilities(self, query: int, held: Sequence[int], head: int, row: int = 0) -> Tensor:
        """Softmax of a query head's query over these positions of its KV head."""
        keys = self.k[row, head // (self.Hq // self.Hkv), list(held)]
        return (keys @ self.q[row, head, query]).softmax(0)
