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
from attention.layers.layer import Layer


@dataclass(frozen=True)
class RowStats:
    """Numbers of the last forward, one per row; cheap enough for every step.

    On the host, but for what was read where that follows from what was chosen, as in `oracle` with
    `top_p`. `read_*` and `keys_read` are 0 after a prefill.

    Attributes:
        kept_max: keys kept after the step, the most over sparsified layers and heads.
        read_max, read_mean: keys read by the decode query, over sparsified layers and query heads.
        keys_read: keys read, summed over all layers and KV heads, dense layers included; with one
            set per query head the union over the group; a page bound vector or a block's
            representative counts as one key.
        dense_read_mean: keys read by a query head of a dense layer, or of one that chooses for
            others alone; None without such layers.
        bytes: keys, values and method state of the row, without spare room; not other states.
    """

    kept_max: Tensor
    read_max: Tensor
    read_mean: Tensor
    keys_read: Tensor
    dense_read_mean: Tensor | None
    bytes: Tensor


@dataclass(frozen=True)
class CacheStats:
    """A whole cache, by `RowStats`; `kept` and `read_*` over sparsified layers only.

    Attributes:
        engine: what decode queries read keys and values with.
        seen: real tokens per row.
        kept: most keys kept by a head of any row.
        read_max, read_mean: keys the last decode query read; None after a prefill.
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
    own = [x for x in layers if x.geometry.model_window is None]
    first = [x for x in own if x.geometry.index < dense or x.reads_all]
    sparse = [x for x in own if x.geometry.index >= dense and not x.reads_all]
    nothing = np.zeros_like(seen)
    measured = [x.measured(seen) for x in sparse]
    chosen = [reads for reads in measured if reads is not None]
    lengths_tell = [x for x, reads in zip(sparse, measured, strict=True) if reads is None]
    # Layers of one kind hold the same, and cost the same unless that depends on what they chose.
    numbers_of = Counter((type(x), x.variety, x.budget) for x in sparse)
    kinds = {(type(x), x.variety, x.budget): x for x in sparse}
    every = [(x, numbers_of[kind]) for kind, x in kinds.items()]
    exempt = [(x[0], len(x)) for x in (first, sliding) if x]
    counted = [(x, n) for x, n in every if any(x is y for y in lengths_tell)]
    stored = sum((x.row_bytes(seen) * n for x, n in every + exempt), nothing)
    kept = np.maximum.reduce([nothing, *(x.kept(seen) for x, _ in every)])
    cost = sum((x.cost(seen) * n for x, n in counted + exempt), nothing)
    read = np.maximum.reduce([nothing, *(x.reads(seen) * decoded for x, _ in counted)])
    # The mean over heads, which may differ.
    reads = ((x.cost(seen) - x.overhead(seen)) / x.key_heads * n for x, n in counted)
    shares = (x * decoded / len(sparse) for x in reads)
    means = sum(shares, np.zeros(len(seen)))
    read_max, read_mean, keys_read = (torch.from_numpy(x) for x in (read, means, cost * decoded))
    if chosen:
        most, mean, costs = torch.stack(chosen, dim=1)  # (layers, B) each
        others, now = (devices.put(x, most.device) for x in (cost, decoded))
        read_max, read_mean = most.amax(0).long() * now, mean.sum(0) / len(sparse) * now
        if counted:
            read_max = torch.maximum(read_max, devices.put(read, now.device))
            read_mean = read_mean + devices.put(means, now.device)
        keys_read = (costs.sum(0).long() + others) * now
    dense_read = torch.from_numpy(first[0].reads(seen) * decoded).double() if first else None
    kept_max, bytes_stored = torch.from_numpy(kept), torch.from_numpy(stored)
    return RowStats(kept_max, read_max, read_mean, keys_read, dense_read, bytes_stored)
