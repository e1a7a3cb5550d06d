"""What a cache reports: per row after every step, and as a whole on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention.core import devices
from attention.core.step import Counts
from attention.layers.layer import Layer, Method


@dataclass(frozen=True)
class RowStats:
    """Numbers of the last forward, one per row; cheap enough for every step.

    On the host, but for what was read where that follows from what was chosen, as in `oracle` with
    `top_p`: those numbers are on the model's device, and to look at them waits for it.

    After a prefill nothing was read by a decode query: `read_*` and `keys_read` are 0.

    Attributes:
        kept_max: keys kept after the step, the most over sparsified layers and heads.
        read_max, read_mean: keys read by the decode query, over sparsified layers and query heads.
        keys_read: keys read, summed over all layers and KV heads, dense layers included; with one
            set per query head the union over the group; a page bound vector or a block's
            representative counts as one key.
        dense_read_mean: keys read by a query head of a dense layer; None without dense layers.
        bytes: kept keys and values and method state of the row, without spare room; states of
            layers without keys are not in it.
    """

    kept_max: Tensor
    read_max: Tensor
    read_mean: Tensor
    keys_read: Tensor
    dense_read_mean: Tensor | None
    bytes: Tensor


@dataclass(frozen=True)
class CacheStats:
    """A whole cache, counted in its state; `kept` and `read_*` over sparsified layers only.

    Attributes:
        engine: what decode queries read keys and values with.
        seen: real tokens per row.
        kept: most keys kept by a head of any row.
        read_max, read_mean: keys the last decode query read; None after a prefill.
        bytes: over all rows and layers with keys.
    """

    backend: str
    params: dict[str, Any]
    engine: str
    seen: list[int]
    kept: int
    read_max: int | None
    read_mean: float | None
    bytes: int


def row_stats(
    layers: Sequence[Layer], dense: int, seen: Counts, decoded: npt.NDArray[np.bool_]
) -> RowStats:
    """Numbers of every row from its length alone, layers of one kind counted once."""
    sliding = [x for x in layers if x.geometry.model_window is not None]
    first = [x for x in layers[:dense] if x.geometry.model_window is None]
    sparse = [x for x in layers[dense:] if x.geometry.model_window is None]
    cost = bytes_stored = kept_keys = read = np.zeros_like(seen)
    mean = read.astype(np.float64)
    chosen = [reads for x in sparse if (reads := x.measured(seen)) is not None]
    # Layers of one kind hold the same, and cost the same unless that depends on what they chose.
    kinds = {(type(x), x.variety): x for x in sparse}
    numbers_of = Counter((type(x), x.variety) for x in sparse)
    for kind, layer in kinds.items():
        bytes_stored = bytes_stored + layer.row_bytes(seen) * numbers_of[kind]
        kept_keys = np.maximum(kept_keys, layer.kept(seen))
        if not chosen:
            cost = cost + layer.cost(seen) * numbers_of[kind]
            read = np.maximum(read, layer.reads(seen) * decoded)
            mean = mean + layer.reads_mean(seen) * decoded * numbers_of[kind] / len(sparse)
    for exempt in (first, sliding):
        if exempt:
            cost = cost + exempt[0].cost(seen) * len(exempt)
            bytes_stored = bytes_stored + exempt[0].row_bytes(seen) * len(exempt)
    numbers = tuple(torch.from_numpy(x) for x in (read, mean, cost * decoded))
    if chosen:
        most, means, costs = torch.stack(chosen, dim=1)  # (layers, B) each
        others, now = (devices.put(x, most.device) for x in (cost, decoded))
        total = costs.sum(0).long() + others
        numbers = most.amax(0).long() * now, means.sum(0) / len(chosen) * now, total * now
    return RowStats(
        kept_max=torch.from_numpy(kept_keys.copy()),
        read_max=numbers[0],
        read_mean=numbers[1],
        keys_read=numbers[2],
        dense_read_mean=torch.from_numpy(first[0].reads(seen) * decoded).double()
        if first
        else None,
        bytes=torch.from_numpy(bytes_stored),
    )


def cache_stats(
    method: Method,
    engine: str,
    layers: Sequence[Layer],
    seen: Counts,
    kept: Sequence[Sequence[Tensor]],
    read: Sequence[Sequence[Tensor]],
) -> CacheStats:
    """The summary of a cache, from the positions its layers hold."""
    own = [i for i, x in enumerate(layers) if x.geometry.model_window is None]
    sparse = [i for i in own if i >= method.dense_layers]
    # -1 where a head read fewer than another.
    reads = [[(p >= 0).sum(-1).double() for p in read[i] if p.numel()] for i in sparse]
    means = [float(sum(x.mean() for x in rows)) / len(rows) for rows in reads if rows]
    return CacheStats(
        backend=method.name,
        params=method.params(),
        engine=engine,
        seen=seen.tolist(),
        kept=max((p.shape[-1] for i in sparse for p in kept[i]), default=0),
        read_max=max((int(x.max()) for rows in reads for x in rows), default=None),
        read_mean=sum(means) / len(means) if means else None,
        bytes=sum(int(layer.row_bytes(seen).sum()) for layer in layers),
    )
