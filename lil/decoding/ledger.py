"""What the decode steps cost each row of the batch, kept as tensors so that a step stays cheap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from attention import RowStats


class Totals(NamedTuple):
    """One row's totals since it was admitted; sums run over its decode steps.

    `dense_read_sum` is NaN where the backend has no dense layers. `steps` counts decode steps.
    """

    keys_read: float
    read_sum: float
    dense_read_sum: float
    read_max: float
    kept_max: float
    bytes_peak: float
    bytes_now: float
    bytes_at_start: float
    steps: float


class Ledger:
    """Totals (9, B) of every row of the batch on the host, where a step's statistics are."""

    def __init__(self, batch: int) -> None:
        # float64 counts keys exactly up to 2**53.
        self._totals = torch.zeros(len(Totals._fields), batch, dtype=torch.float64)

    def admit(self, places: Sequence[int], stats: RowStats) -> None:
        """New rows after their prompts were read: nothing decoded, but keys and bytes are held."""
        fresh = torch.zeros(len(Totals._fields), len(places), dtype=torch.float64)
        if stats.dense_read_mean is None:
            fresh[2] = math.nan
        fresh[4] = stats.kept_max
        fresh[5:8] = stats.bytes
        self._totals[:, list(places)] = fresh

    def add(self, stats: RowStats) -> None:
        """One decode step of every row."""
        totals = self._totals
        totals[0] += stats.keys_read
        totals[1] += stats.read_mean
        # A row that went on under full attention has no dense layers any more, or nothing else.
        dense = stats.read_mean if stats.dense_read_mean is None else stats.dense_read_mean
        totals[2] += dense
        torch.maximum(totals[3], stats.read_max, out=totals[3])
        torch.maximum(totals[4], stats.kept_max, out=totals[4])
        torch.maximum(totals[5], stats.bytes, out=totals[5])
        totals[6] = stats.bytes
        totals[8] += 1

    def select(self, places: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self._totals = self._totals[:, list(places)]

    def column(self, place: int) -> torch.Tensor:
        """One row's totals, (9, 1)."""
        return self._totals[:, place : place + 1]

    def append(self, column: torch.Tensor) -> None:
        """One more row, with these totals."""
        self._totals = torch.cat((self._totals, column), dim=1)

    def grow(self, rows: int) -> None:
        """Places for more rows, behind the others."""
        self._totals = torch.cat(
            (self._totals, self._totals.new_zeros(len(Totals._fields), rows)), 1
        )

    def read(self) -> list[Totals]:
        """Every row's totals as numbers."""
        columns: list[list[float]] = self._totals.T.tolist()
        return [Totals(*column) for column in columns]
