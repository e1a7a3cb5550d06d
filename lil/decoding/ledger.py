"""What the decode steps cost each row of the batch, kept as tensors so that a step stays cheap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from attention import RowStats
from lil.trace import Cost

N = TypeVar("N")


class Totals(NamedTuple, Generic[N]):
    """Totals since a row was admitted; sums run over its decode steps.

    `dense_read_sum` is NaN where the backend has no dense layers. `steps` counts decode steps.
    """

    keys_read: N
    read_sum: N
    dense_read_sum: N
    read_max: N
    kept_max: N
    bytes_peak: N
    bytes_now: N
    bytes_at_start: N
    steps: N


def cost_of(totals: Totals[float], tokens: int, seconds: float) -> Cost:
    """What a row's own decode steps cost until it had `tokens` tokens."""
    dense = None if math.isnan(totals.dense_read_sum) else totals.dense_read_sum
    return Cost(tokens, totals.keys_read, totals.bytes_now, seconds, totals.read_sum, dense)


class Ledger:
    """Totals of every row of the batch on the host, where a step's statistics are."""

    def __init__(self, batch: int) -> None:
        # float64 counts keys exactly up to 2**53.
        self._hold(torch.zeros(len(Totals._fields), batch, dtype=torch.float64))

    def _hold(self, table: Tensor) -> None:
        self._table = table  # (fields, B)
        self._totals = Totals(*table.unbind())  # its rows, by name

    def admit(self, places: Sequence[int], stats: RowStats) -> None:
        """New rows after their prompts were read: nothing decoded, but keys and bytes are held."""
        at, totals = list(places), self._totals
        self._table[:, at] = 0.0
        if stats.dense_read_mean is None:
            totals.dense_read_sum[at] = math.nan
        totals.kept_max[at] = stats.kept_max.double()
        for held in (totals.bytes_peak, totals.bytes_now, totals.bytes_at_start):
            held[at] = stats.bytes.double()

    def add(self, stats: RowStats) -> None:
        """One decode step of every row."""
        totals = self._totals
        totals.keys_read.add_(stats.keys_read)
        totals.read_sum.add_(stats.read_mean)
        # A row that went on under full attention has no dense layers any more, or nothing else.
        dense = stats.read_mean if stats.dense_read_mean is None else stats.dense_read_mean
        totals.dense_read_sum.add_(dense)
        for most, now in (
            (totals.read_max, stats.read_max),
            (totals.kept_max, stats.kept_max),
            (totals.bytes_peak, stats.bytes),
        ):
            torch.maximum(most, now, out=most)
        totals.bytes_now.copy_(stats.bytes)
        totals.steps.add_(1)

    def select(self, places: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self._hold(self._table[:, list(places)])

    def column(self, place: int) -> Tensor:
        """One row's totals, (fields, 1)."""
        return self._table[:, place : place + 1]

    def append(self, column: Tensor) -> None:
        """One more row, with these totals."""
        self._hold(torch.cat((self._table, column), dim=1))

    def grow(self, rows: int) -> None:
        """Places for more rows, behind the others."""
        self.append(self._table.new_zeros(len(Totals._fields), rows))

    def read(self) -> list[Totals[float]]:
        """Every row's totals as numbers."""
        columns: list[list[float]] = self._table.T.tolist()
        return [Totals(*column) for column in columns]
