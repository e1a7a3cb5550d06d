"""What the decode steps cost each row of the batch, kept in arrays so that a step stays cheap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from attention import RowStats
from lil.trace import Cost

Numbers: TypeAlias = npt.NDArray[Any]

N = TypeVar("N")


class Totals(NamedTuple, Generic[N]):
    """Sums over a row's decode steps since it was admitted; NaN without dense layers."""

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


class StepCost(NamedTuple):
    """What a forward kept, read and holds, each (B,) on the host; see `attention.RowStats`."""

    keys_read: Numbers
    read_mean: Numbers
    dense_read_mean: Numbers | None
    read_max: Numbers
    kept_max: Numbers
    bytes: Numbers

    @classmethod
    def of(cls, stats: RowStats) -> StepCost:
        """The statistics on the host."""
        dense = stats.dense_read_mean
        return cls(
            keys_read=stats.keys_read.cpu().numpy(),
            read_mean=stats.read_mean.cpu().numpy(),
            dense_read_mean=None if dense is None else dense.cpu().numpy(),
            read_max=stats.read_max.cpu().numpy(),
            kept_max=stats.kept_max.cpu().numpy(),
            bytes=stats.bytes.cpu().numpy(),
        )

    def select(self, rows: Sequence[int]) -> StepCost:
        """Of these rows."""
        taken: Any = (None if x is None else x[rows] for x in self)
        return StepCost(*taken)


class Ledger:
    """Totals of every row of the batch on the host."""

    def __init__(self, batch: int) -> None:
        # float64 counts keys exactly up to 2**53.
        self._hold(np.zeros((len(Totals._fields), batch)))

    def _hold(self, table: Numbers) -> None:
        self._table = table  # (fields, B)
        self._totals = Totals(*table)  # its rows, by name

    def admit(self, places: Sequence[int], spent: StepCost) -> None:
        """New rows after their prompts were read: nothing decoded, but keys and bytes are held."""
        at, totals = list(places), self._totals
        self._table[:, at] = 0.0
        if spent.dense_read_mean is None:
            totals.dense_read_sum[at] = math.nan
        totals.kept_max[at] = spent.kept_max
        for total in (totals.bytes_peak, totals.bytes_now, totals.bytes_at_start):
            total[at] = spent.bytes

    def add(
        self,
        spent: StepCost,
        places: Sequence[int] | None = None,
        steps: int | Sequence[int] = 1,
    ) -> None:
        """Charge all rows, or those at `places`, with `steps` tokens for it."""
        table = self._table if places is None else self._table[:, places]
        totals = self._totals if places is None else Totals(*table)
        totals.keys_read[:] += spent.keys_read
        totals.read_sum[:] += spent.read_mean
        # A row that went on under full attention has no dense layers any more, or nothing else.
        dense = spent.read_mean if spent.dense_read_mean is None else spent.dense_read_mean
        totals.dense_read_sum[:] += dense
        for most, now in (
            (totals.read_max, spent.read_max),
            (totals.kept_max, spent.kept_max),
            (totals.bytes_peak, spent.bytes),
        ):
            np.maximum(most, now, out=most)
        totals.bytes_now[:] = spent.bytes
        totals.steps[:] += steps
        if places is not None:
            self._table[:, places] = table

    def take_back(self, place: int, steps: int) -> None:
        """A row did not take so many of the tokens that it was charged for."""
        self._totals.steps[place] -= steps

    def select(self, places: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self._hold(self._table[:, list(places)])

    def column(self, place: int) -> Numbers:
        """One row's totals, (fields, 1)."""
        return self._table[:, place : place + 1]

    def append(self, column: Numbers) -> None:
        """One more row, with these totals."""
        self._hold(np.concatenate((self._table, column), axis=1))

    def grow(self, rows: int) -> None:
        """Places for more rows, behind the others."""
        self.append(np.zeros((len(Totals._fields), rows)))

    def read(self, places: Sequence[int]) -> list[Totals[float]]:
        """These rows' totals as numbers."""
        columns: list[list[float]] = self._table.T[places].tolist() if places else []
        return [Totals(*column) for column in columns]
