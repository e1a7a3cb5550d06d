"""How the tests of `attention` feed models: ragged prompts, given tokens, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import attention
from attention.testing import OneLayer
from attention.testing import driving as testing
from attention.testing.driving import follow, step
from attention.testing.driving import left_padded as left_pad
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

__all__ = ["Bare", "decode", "follow", "left_pad", "model", "prefill", "step", "tokens"]

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
    attention.Dither(noise=0.2, seed=3),
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
    attention.RaaS(budget=16, page=4, keep_prompt=False),
    attention.RKV(budget=18),
    attention.SnapKV(budget=17),
)
FIRST = tuple({b.name: b for b in reversed(BACKENDS)}.values())  # one of every method
KEEP_ALL = tuple(
    b for b in BACKENDS if b.name in ("full", "quest", "infllm", "oracle", "h2o_uniform", "dither")
)


def model(family: str = "llama", heads: tuple[int, int] = (4, 2), layers: int = 2) -> Any:
    """A float64 model that computes in float64 throughout."""
    return tiny_model(family, heads, layers, torch.float64)


def prefill(m: Any, cache: Any, prompts: Sequence[Tensor], chunk: int | None = None) -> Tensor:
    """Feed left-padded prompts, in chunks of columns; the last column's logits (B, vocabulary)."""
    return testing.prefill(m, cache, prompts, chunk)[:, -1]


def decode(m: Any, cache: Any, given: Tensor) -> Tensor:
    """Feed (B, n) tokens one by one; logits (B, n, vocabulary)."""
    return torch.stack([step(m, cache, column) for column in given.T], dim=1)


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
