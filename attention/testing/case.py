"""One method on a tiny model, and the runs that several checks look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attention.contract.backend import Backend
from attention.patching.cache import AttentionCache
from attention.testing.driving import follow, prefill, step, text, tiny_model


@dataclass(frozen=True)
class RowRecord:
    """One row after one decode step: what the state holds, and what `row_stats` said.

    Attributes:
        row, seen: which row, and its tokens seen.
        kept: positions in each sparsified layer, (Hkv, kept).
        read: positions in each layer, dense ones first, (Hkv or Hq, read).
        said: what `row_stats` said, by name.
    """

    row: int
    seen: int
    kept: list[Tensor]
    read: list[Tensor]
    said: dict[str, float]


class Case:
    """A method with texts around its budget b: rows of 1, b - 3 and 2b + 3 tokens.

    The first stays below it, the second crosses it while it decodes, the third is cut or chosen
    from at once.

    Attributes:
        budget: of the method; 16 for one without.
        dense, layers: dense first layers, and all layers of the model, two of them sparsified.
        prompts: token ids, one text a row.
        given: tokens every row is then fed one by one, (B, n).
        heads, kv_heads, key_bytes: Hq and Hkv of the model, and bytes of a key and its value.

    Args:
        backend: the method.
        longest: tokens of the longest prompt it takes; None for any.
    """

    heads, kv_heads = 4, 2
    key_bytes = 2 * 16 * torch.float64.itemsize

    def __init__(self, backend: Backend, longest: int | None) -> None:
        self.backend = backend
        self.budget = b = 16 if backend.budget is None else backend.budget
        self.longest = 2 * b + 3 if longest is None else min(longest, 2 * b + 3)
        lengths = (1, b - 3, 2 * b + 3)
        self.prompts = [
            text(min(max(n, 1), self.longest), seed=i) for i, n in enumerate(lengths, start=1)
        ]
        self.given = text(len(lengths), b // 2 + 6, seed=9)
        self.dense, self.layers = backend.dense_layers, backend.dense_layers + 2
        self._alone: dict[int, tuple[Tensor, list[Tensor]]] = {}

    @cached_property
    def model(self) -> Any:
        """The tiny model, in float64."""
        return tiny_model(self.layers, (self.heads, self.kv_heads))

    def plain(self, ids: Tensor) -> Tensor:
        """transformers' own logits of one text, (n, V)."""
        with torch.no_grad():
            logits: Tensor = self.model(input_ids=ids[None], use_cache=False).logits
        return logits[0]

    def positions(self, cache: AttentionCache, row: int) -> list[Tensor]:
        """Positions a row keeps and reads in each layer."""
        layers = range(self.layers)
        kept = [cache.kept_positions(i)[row] for i in layers]
        return kept + [cache.read_positions(i)[row] for i in layers]

    def alone(self, row: int) -> tuple[Tensor, list[Tensor]]:
        """Logits (1 + n, V) of a row by itself, and its positions at the end."""
        if row not in self._alone:
            with self.backend.on(self.model) as cache:
                logits = follow(self.model, cache, [self.prompts[row]], self.given[[row]])[0]
                self._alone[row] = logits, self.positions(cache, 0)
        return self._alone[row]

    @cached_property
    def batch(self) -> tuple[Tensor, list[list[Tensor]], list[RowRecord]]:
        """Logits (B, 1 + n, V) of all rows together, their positions at the end, every step."""
        records: list[RowRecord] = []
        with self.backend.on(self.model) as cache:
            logits = [prefill(self.model, cache, self.prompts)[:, -1]]
            for column in self.given.T:
                logits.append(step(self.model, cache, column))
                records += self._look(cache)
            ends = [self.positions(cache, r) for r in range(len(self.prompts))]
        return torch.stack(logits, dim=1), ends, records

    def _look(self, cache: AttentionCache) -> list[RowRecord]:
        stats = cache.row_stats()
        kept = [cache.kept_positions(i) for i in range(self.dense, self.layers)]
        read = [cache.read_positions(i) for i in range(self.layers)]
        names = ("kept_max", "read_max", "read_mean", "keys_read", "bytes")
        return [
            RowRecord(
                r,
                seen,
                [layer[r] for layer in kept],
                [layer[r] for layer in read],
                {name: float(getattr(stats, name)[r]) for name in names},
            )
            for r, seen in enumerate(cache.seen.tolist())
        ]
