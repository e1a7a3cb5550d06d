"""What decode queries read, by request and in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from attention.contract import Counts
from lil.serving.blocks.policies import BlockPolicy, Mask


@dataclass
class Reads:
    """Counters, which follow from lengths alone; keys are summed over the model's layers."""

    queries: int = 0  # those of a request that was put back count again
    keys_read: int = 0  # of a KV head
    keys_of_full: int = 0  # had every layer read everything
    blocks_compared: int = 0  # for a choice

    def add(self, other: Reads) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


class ReadCounts:
    """Counts the reads of each request that runs, and of all, in sparse and in dense layers."""

    def __init__(self, policy: BlockPolicy, sparse: int, dense: int) -> None:
        self.policy, self.sparse, self.dense = policy, sparse, dense
        self.total = Reads()
        self.running: dict[str, Reads] = {}

    def step(
        self, names: Sequence[str], past: Counts, new: Counts, prompt: Counts, in_full: Mask
    ) -> None:
        """Count a step of R requests: tokens before it, in it, and of their prompts, (R,)."""
        first = np.maximum(past, prompt)
        count = np.maximum(past + new - first, 0)
        row = np.repeat(np.arange(len(count)), count)
        seen = first[row] + np.arange(len(row)) - (np.cumsum(count) - count)[row] + 1
        full = in_full[row]
        read = np.where(full, seen, self.policy.tokens_read(seen))
        read = read * self.sparse + seen * self.dense
        compared = np.where(full, 0, self.policy.blocks_compared(seen)) * self.sparse
        of_full = seen * (self.sparse + self.dense)
        sums = (np.bincount(row, numbers, len(count)) for numbers in (read, of_full, compared))
        for name, queries, *rest in zip(names, count, *sums, strict=True):
            if queries:
                reads = Reads(int(queries), *map(int, rest))
                self.running.setdefault(name, Reads()).add(reads)
                self.total.add(reads)

    def end(self, name: str) -> Reads | None:
        """What a request read that has ended; None where it generated nothing."""
        return self.running.pop(name, None)
