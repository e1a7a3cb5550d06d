"""What a cache knows of each row beside its layers, and which rows a caller means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention.core.step import Counts
from attention.errors import InvalidValue
from attention.layers.layer import KeepAll, Layer, Method

NONE: Counts = np.zeros(0, dtype=np.int64)
NO_ROW = np.zeros(0, dtype=bool)


class RowCounts(NamedTuple):
    """Numbers of B rows, on the host; taken together wherever rows are copied or reordered.

    Attributes:
        seen: real tokens seen, (B,).
        prompts: first tokens that are prompt, (B,); told before the first forward, or not at all.
        decoded: whether the last token came as a decode step, (B,).
    """

    seen: Counts = NONE
    prompts: Counts = NONE
    decoded: npt.NDArray[np.bool_] = NO_ROW

    def select(self, index: Counts) -> RowCounts:
        """Those of these rows, in this order."""
        return RowCounts(self.seen[index], self.prompts[index], self.decoded[index])

    def replaced(self, rows: Counts, source: RowCounts, source_rows: Counts) -> RowCounts:
        """The same with rows of another cache in the place of these; they decode nothing yet."""
        prompts = self.prompts.copy()
        prompts[rows] = source.prompts[source_rows]
        return self._replace(prompts=prompts).cut(rows, source.seen[source_rows])

    def cut(self, rows: Counts, seen: Counts) -> RowCounts:
        """The same with rows[i] having seen seen[i] tokens, none of them by a decode step."""
        every, decoded = self.seen.copy(), self.decoded.copy()
        every[rows], decoded[rows] = seen, False
        return self._replace(seen=every, decoded=decoded)

    def undecoded(self) -> RowCounts:
        """The same with no row decoded yet."""
        return self._replace(decoded=np.zeros_like(self.decoded))


def row_index(rows: Sequence[int] | Tensor, B: int, field: str) -> Tensor:
    """Rows as an index on the host.

    Raises:
        InvalidValue: a row is none of B.
    """
    index = torch.as_tensor(rows, dtype=torch.long, device="cpu").reshape(-1)
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= B):
        allowed = f"rows from 0 to {B - 1}" if B else "no row: the cache holds none"
        raise InvalidValue(field, index.tolist(), allowed)
    return index


def taken_over(layer: Layer, index: Tensor, seen: Counts, full: Method) -> Layer:
    """A layer in which rows `index`, with `seen` tokens, go on under full attention.

    The model's own sliding layers go on sliding.
    """
    ours = index.to(layer.geometry.device)
    if layer.geometry.model_window is not None:
        return layer.copied(ours)
    dense = KeepAll(replace(layer.geometry, method=full.name, B=len(index)), full)
    dense.fill(*layer.tokens(ours, seen))
    return dense
