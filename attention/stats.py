"""What a cache reports: per row after every step, and as a whole on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention.layer import Layer
from attention.step import Counts

if TYPE_CHECKING:
    from attention.cache import AttentionCache


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


def row_stats(
    layers: Sequence[Layer], dense: int, seen: Counts, decoded: npt.NDArray[np.bool_]
) -> RowStats:
    """Numbers of every row from its length alone, layers of one kind counted once.

    Args:
        dense: how many first layers are dense.
        seen: real tokens per row, (B,).
        decoded: rows whose last token came as a decode step, (B,).
    """
    first, sparse = layers[:dense][:1], layers[dense:]
    last = layers[-1]
    # Layers of one kind cost the same unless the cost depends on what they chose.
    asked = sparse if last.cost_varies else [last]
    cost = sum(x.cost(seen) for x in asked) * (len(sparse) // len(asked))
    held = last.row_bytes(seen) * len(sparse)
    for layer in first:
        cost = cost + layer.cost(seen) * dense
        held = held + layer.row_bytes(seen) * dense
    read = np.max([x.reads(seen) for x in asked], axis=0) * decoded
    mean = np.mean([x.mean_reads(seen) for x in asked], axis=0) * decoded
    whole = torch.from_numpy((seen * decoded).astype(np.float64))
    return RowStats(
        kept_max=torch.from_numpy(last.kept(seen).copy()),
        read_max=torch.from_numpy(read),
        read_mean=torch.from_numpy(mean),
        keys_read=torch.from_numpy(cost * decoded),
        dense_read_mean=whole if first else None,
        bytes=torch.from_numpy(held),
    )


def cache_stats(cache: AttentionCache, per_layer: bool) -> CacheStats:
    """The summary of a cache, from the positions its layers hold."""
    dense = cache.backend.dense_layers
    layers = tuple(_layer_stats(cache, i, i < dense) for i in range(len(cache.layers)))
    maxima = [x.read_max for x in layers[dense:] if x.read_max is not None]
    means = [x.read_mean for x in layers[dense:] if x.read_mean is not None]
    return CacheStats(
        backend=cache.backend.name,
        params=cache.backend.params(),
        seen=cache.seen.tolist(),
        kept=max((x.kept for x in layers[dense:]), default=0),
        read_max=max(maxima) if maxima else None,
        read_mean=sum(means) / len(means) if means else None,
        bytes=sum(x.bytes for x in layers),
        layers=layers if per_layer else (),
    )


def _layer_stats(cache: AttentionCache, index: int, dense: bool) -> LayerStats:
    positions = cache.read_positions(index) if cache.decoded else []
    # -1 where a head read fewer than another.
    reads = [(p >= 0).sum(-1).double() for p in positions if p.numel()]
    return LayerStats(
        dense=dense,
        kept=max(p.shape[-1] for p in cache.kept_positions(index)),
        read_max=int(max(r.max() for r in reads)) if reads else None,
        read_mean=float(sum(r.mean() for r in reads)) / len(reads) if reads else None,
        bytes=int(cache.layers[index].row_bytes(cache.seen.cpu().numpy()).sum()),
    )
