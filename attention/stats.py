"""What a cache reports: per row after every step, and as a whole on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class RowStats:
    """Numbers of the last forward, one per row, on the host; cheap enough for every step.

    After a prefill nothing was read by a decode query: `read_*` and `keys_read` are 0.

    Attributes:
        kept_max: keys kept after the step, the most over sparsified layers and heads.
        read_max, read_mean: keys read by the decode query, over sparsified layers and query heads.
        keys_read: keys read, summed over all layers and KV heads, dense layers included; with one
            set per query head the union over the group; a page bound vector or a block's
            representative counts as one key.
        dense_read_mean: keys read by a query head of a dense layer; None without dense layers.
        bytes: kept keys and values and method state of the row, without spare room.
    """

    kept_max: Tensor
    read_max: Tensor
    read_mean: Tensor
    keys_read: Tensor
    dense_read_mean: Tensor | None
    bytes: Tensor


@dataclass(frozen=True)
class LayerStats:
    """One layer, counted in its state rather than computed from lengths.

    Attributes:
        dense: exempt from the budget.
        kept: most keys kept by a head of any row.
        read_max, read_mean: keys the last decode query read; None after a prefill.
        bytes: over all rows.
    """

    dense: bool
    kept: int
    read_max: int | None
    read_mean: float | None
    bytes: int


@dataclass(frozen=True)
class CacheStats:
    """A whole cache; `kept` and `read_*` over sparsified layers only.

    Attributes:
        seen: real tokens per row.
        layers: one entry per layer if asked for, else empty.
    """

    backend: str
    params: dict[str, Any]
    seen: list[int]
    kept: int
    read_max: int | None
    read_mean: float | None
    bytes: int
    layers: tuple[LayerStats, ...] = ()
