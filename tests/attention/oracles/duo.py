"""Oracle of `duo`: some KV heads see everything, the others the first tokens and the last ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .sink import SinkLayer


class DuoLayer(SinkLayer):
    """Heads with large gates keep and read everything; the rest `sinks` + the last ones.

    `pattern` holds a gate of 0..1 for each layer and KV head. Without `sparsity` those above
    `threshold` see everything; with it, that share of all the model's heads stream. Everything
    stays where it was in the text.
    """

    def __init__(
        self,
        *args: Any,
        pattern: Sequence[Sequence[float]],
        budget: int,
        sinks: int | None = None,
        sparsity: float | None = None,
        threshold: float = 0.5,
        **kwargs: Any,
    ) -> None:
        sinks = min(64, budget // 5) if sinks is None else sinks
        super().__init__(*args, budget=budget, sinks=sinks, positions="absolute", **kwargs)
        gates = [[min(max(float(gate), 0.0), 1.0) for gate in row] for row in pattern]
        if any(len(row) != self.Hkv for row in gates):
            raise ValueError(f"{self.Hkv} KV heads, pattern of {[len(row) for row in gates]}")
        if sparsity is None:
            self.streams = [gate <= threshold for gate in gates[self.index]]
        else:
            gone = streaming(gates, sparsity)
            self.streams = [(self.index, j) in gone for j in range(self.Hkv)]

    def cut(self) -> None:
        first = max(self.sinks, self.prompt)
        window = self.budget - first
        for j in range(self.Hkv):
            if self.streams[j] and len(self.slots[j]) > self.budget:
                self.slots[j] = self.slots[j][:first] + self.slots[j][-window:]


def streaming(gates: list[list[float]], sparsity: float) -> set[tuple[int, int]]:
    """(layer, head) of the heads below the quantile; of equal ones the later stream first."""
    heads = [(gate, -i, -j) for i, row in enumerate(gates) for j, gate in enumerate(row)]
    if sparsity <= 0:
        count = 0
    elif sparsity >= 1:
        count = len(heads)
    else:
        count = math.ceil((len(heads) - 1) * sparsity - 1e-9)
    return {(-i, -j) for _, i, j in sorted(heads)[:count]}
