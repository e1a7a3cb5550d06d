"""What a cache reports: per row after every step, and as a whole on request."""

from __future__ import annotations

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
from attention.patching.survey import Anatomy


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
        sliding_read_mean: keys read by a query head of a layer in which the model itself slides a
            window; None without such layers.
    """

    kept_max: Tensor
    read_max: Tensor
    read_mean: Tensor
    keys_read: Tensor
    dense_read_mean: Tensor | None
    bytes: Tensor
    sliding_read_mean: Tensor | None = None


@dataclass(frozen=True)
class LayerStats:
    """One layer, counted in its state rather than computed from lengths.

    Attributes:
        dense: exempt from the budget.
        kept: most keys kept by a head of any row.
        read_max, read_mean: keys the last decode query read; None after a prefill.
        bytes: over all rows.
        window: the model's own sliding window, in tokens, which exempts the layer too; None
            elsewhere.
    """

    dense: bool
    kept: int
    read_max: int | None
    read_mean: float | None
    bytes: int
    window: int | None = None


@dataclass(frozen=True)
class CacheStats:
    """A whole cache; `kept` and `read_*` over sparsified layers only.

    Layers without keys are counted in `state_bytes` alone.

    Attributes:
        engine: what decode queries read keys and values with.
        seen: real tokens per row.
        layers: one entry per layer with keys if asked for, else empty.
        sliding: numbers, among those, of the layers in which the model itself slides a window.
        softmax: the layers with keys, by their number in the model.
        model_layers: all layers of the model.
        state_bytes: states of layers that keep another state than keys, over all rows.
    """

    backend: str
    params: dict[str, Any]
    engine: str
    seen: list[int]
    kept: int
    read_max: int | None
    read_mean: float | None
    bytes: int
    layers: tuple[LayerStats, ...] = ()
    sliding: tuple[int, ...] = ()
    softmax: tuple[int, ...] = ()
    model_layers: int = 0
    state_bytes: int = 0


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
    if sparse:
        bytes_stored = sparse[-1].row_bytes(seen) * len(sparse)
        kept_keys = sparse[-1].kept(seen)
    if sparse and not chosen:
        cost = sparse[-1].cost(seen) * len(sparse)
        read = sparse[-1].reads(seen) * decoded
        mean = sparse[-1].mean_reads(seen) * decoded
    for exempt in (first, sliding):
        if exempt:
            cost = cost + exempt[0].cost(seen) * len(exempt)
            bytes_stored = bytes_stored + exempt[0].row_bytes(seen) * len(exempt)
    numbers = tuple(torch.from_numpy(x) for x in (read, mean, cost * decoded))
    if chosen:
        numbers = _chosen_reads(torch.stack(chosen), cost, decoded)
    return RowStats(
        kept_max=torch.from_numpy(kept_keys.copy()),
        read_max=numbers[0],
        read_mean=numbers[1],
        keys_read=numbers[2],
        dense_read_mean=_exempt_reads(first, seen, decoded),
        bytes=torch.from_numpy(bytes_stored),
        sliding_read_mean=_exempt_reads(sliding, seen, decoded),
    )


def _chosen_reads(
    each: Tensor, others: Counts, decoded: npt.NDArray[np.bool_]
) -> tuple[Tensor, ...]:
    """`read_max`, `read_mean` and `keys_read` where layers chose; each (B,)."""
    now = devices.put(decoded, each.device)
    most, mean, cost = each[:, 0].amax(0), each[:, 1].sum(0) / len(each), each[:, 2].sum(0)
    total = cost.long() + devices.put(others, each.device)
    return most.long() * now, mean * now, total * now


def _exempt_reads(
    layers: Sequence[Layer], seen: Counts, decoded: npt.NDArray[np.bool_]
) -> Tensor | None:
    """Keys read by a query head of these layers, which are all alike, (B,); None for no layer."""
    return torch.from_numpy(layers[0].mean_reads(seen) * decoded) if layers else None


def cache_stats(
    method: Method,
    engine: str,
    layers: Sequence[Layer],
    seen: Counts,
    kept: Sequence[Sequence[Tensor]],
    read: Sequence[Sequence[Tensor]],
    per_layer: bool,
    anatomy: Anatomy,
    state_bytes: int,
) -> CacheStats:
    """The summary of a cache, from the positions its layers hold."""
    each = tuple(
        _layer_stats(layer, i < method.dense_layers, seen, kept[i], read[i])
        for i, layer in enumerate(layers)
    )
    sparse = [x for x in each if not x.dense and x.window is None]
    maxima = [x.read_max for x in sparse if x.read_max is not None]
    means = [x.read_mean for x in sparse if x.read_mean is not None]
    return CacheStats(
        backend=method.name,
        params=method.params(),
        engine=engine,
        seen=seen.tolist(),
        kept=max((x.kept for x in sparse), default=0),
        read_max=max(maxima) if maxima else None,
        read_mean=sum(means) / len(means) if means else None,
        bytes=sum(x.bytes for x in each),
        layers=each if per_layer else (),
        sliding=tuple(i for i, x in enumerate(each) if x.window is not None),
        softmax=anatomy.softmax,
        model_layers=anatomy.layers,
        state_bytes=state_bytes * len(seen),
    )


def _layer_stats(
    layer: Layer, first: bool, seen: Counts, kept: Sequence[Tensor], read: Sequence[Tensor]
) -> LayerStats:
    # -1 where a head read fewer than another.
    reads = [(p >= 0).sum(-1).double() for p in read if p.numel()]
    window = layer.geometry.model_window
    return LayerStats(
        dense=first and window is None,
        kept=max(p.shape[-1] for p in kept),
        read_max=int(max(r.max() for r in reads)) if reads else None,
        read_mean=float(sum(r.mean() for r in reads)) / len(reads) if reads else None,
        bytes=int(layer.row_bytes(seen).sum()),
        window=window,
    )
