"""DuoAttention: some KV heads see everything, the others the first tokens and a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from attention.contract import (
    AUTO,
    Counts,
    Full,
    Geometry,
    InvalidValue,
    KeepAll,
    Layer,
    Step,
    check_share,
    gpu,
)
from attention.methods.sink import Sink, SinkLayer


class DuoLayer(SinkLayer):
    """The streaming heads of a layer, and `whole`, its retrieval heads."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Duo) -> None:
        g, streams = geometry, backend.streams[geometry.index]
        own = (np.flatnonzero(streams == kind) for kind in (False, True))
        self.heads = [torch.as_tensor(x, device=g.device) for x in own]
        groups = torch.arange(g.Hq, device=g.device).view(g.Hkv, g.G)
        self.queries = [groups[x].flatten() for x in self.heads]
        logits = (None if g.sink_logits is None else g.sink_logits[x] for x in self.queries)
        whole, streaming = (
            replace(g, Hq=len(x) * g.G, Hkv=len(x), sink_logits=own_logits)
            for x, own_logits in zip(self.heads, logits, strict=True)
        )
        super().__init__(streaming, backend)
        self.whole = KeepAll(whole, Full())
        self.state |= {"whole k": self.whole.k, "whole v": self.whole.v}
        self.key_heads, self.variety = g.Hkv, streaming.Hkv

    def together(
        self, works: Sequence[Callable[..., Tensor]], q: Tensor, k: Tensor, v: Tensor, *how: Any
    ) -> Tensor:
        """What each work makes of its heads, in their order, (B, T, Hq, D)."""
        out = q.new_empty(len(q), q.shape[2], q.shape[1], v.shape[3])
        for work, heads, queries in zip(works, self.heads, self.queries, strict=True):
            qkv = (x.index_select(1, i) for x, i in ((q, queries), (k, heads), (v, heads)))
            part = work(*qkv, *how).reshape(*out.shape[:2], len(queries), -1)
            out.index_copy_(2, queries, part)
        return out

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.together((self.whole.decode, super().decode), q, k, v, scaling, step)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.together((self.whole.prefill, super().prefill), q, k, v, scaling, step)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        assert self.store is not None
        # Kernels count what they read under the number of a layer.
        stores = self.whole.stored(counts), replace(self.store, index=~self.store.index)
        works = [partial(self.geometry.engine.step, counts, store) for store in stores]
        return self.together(works, q, k, v, scaling)

    def kept(self, seen: Counts) -> Counts:
        return seen

    def cost(self, seen: Counts) -> Counts:
        return self.whole.cost(seen) + super().kept(seen) * self.geometry.Hkv

    def row_bytes(self, seen: Counts) -> Counts:
        return self.cost(seen) * (self.k.width + self.v.width)

    def kept_positions(self, row: int, seen: int) -> Tensor:
        """-1 first in the heads that keep fewer tokens than others."""
        few = super().kept_positions(row, seen)
        every = torch.arange(seen, device=few.device).repeat(self.key_heads, 1)
        every[self.heads[1]] = functional.pad(few, (seen - few.shape[1], 0), value=-1)
        return every


@dataclass(frozen=True, kw_only=True)
class Duo(Sink):
    """Retrieval heads keep and read all; other KV heads `sinks` first tokens and the newest.

    DuoAttention, arXiv 2410.10819; mit-han-lab/duo-attention. A learned gate of each KV head tells
    whether it retrieves; the budget binds the others. The authors read one token more than they
    keep, and break ties of gates by noise; here the later layer and head of equals streams.

    Args:
        budget: tokens a query of a streaming head may read, current token included.
        pattern: gates from 0 to 1, a row for each layer with keys, a number for each KV head; or
            the path of a file of them, such as the authors' `full_attention_heads.tsv` (for the
            sizes in their config.json: `sinks` sink_size, `budget` both and one token more).
        sparsity: share of all heads that stream, those of the smallest gates; None to go by
            `threshold`.
        threshold: heads with a gate above it retrieve, where `sparsity` is None.
        sinks: first tokens kept for ever, below `budget`; min(64, budget // 5) by default.
        keep_prompt: a row's prompt takes the place of `sinks` where it is longer.
    """

    name: ClassVar[str] = "duo"
    source: ClassVar[str] = "DuoAttention: retrieval and streaming heads (arXiv 2410.10819)"
    layer_class = DuoLayer
    sinks: int = AUTO
    positions: str = field(default="absolute", init=False, repr=False)
    pattern: Any
    sparsity: float | None = None
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if usual := self.sinks is AUTO:
            self._resolve("sinks", 0)
        super().__post_init__()
        if usual:
            self._resolve("sinks", min(64, self.budget // 5))
        self._resolve("pattern", gates(self.pattern))
        check_share("threshold", self.threshold)
        if self.sparsity is not None:
            check_share("sparsity", self.sparsity)

    @property
    def streams(self) -> npt.NDArray[np.bool_]:
        """Which heads stream, (layers, Hkv)."""
        values = np.array(self.pattern)
        if self.sparsity is None:
            return values <= self.threshold
        # As many as lie below the quantile; its rounding is none of ours.
        below = math.ceil((values.size - 1) * self.sparsity - 1e-9)
        # Of equal gates those of later layers and heads come first.
        rank = values.ravel()[::-1].argsort(kind="stable").argsort()[::-1]
        return (rank < (values.size if self.sparsity == 1 else below)).reshape(values.shape)

    def check_heads(self, heads: Sequence[int], groups: Sequence[int]) -> None:  # noqa: ARG002
        shape = np.shape(self.pattern)
        if shape != (len(heads), *set(heads)):
            allowed = f"{len(heads)} rows, one a layer with keys, of {sorted(set(heads))} gates"
            raise InvalidValue("pattern", f"{shape[0]} rows of {shape[1]} gates", allowed)

    def layer(self, geometry: Geometry) -> Layer:
        streams = self.streams[geometry.index]
        if streams.all():
            return SinkLayer(geometry, self)
        return DuoLayer(geometry, self) if streams.any() else KeepAll(geometry, Full())


def gates(pattern: Any) -> tuple[tuple[float, ...], ...]:
    """Gates from 0 to 1, of rows of numbers or a file of them."""
    allowed = "rows of as many numbers each, one a layer, or a file of them"
    try:
        if isinstance(pattern, str | PathLike):
            pattern = np.loadtxt(Path(pattern).read_text(encoding="utf-8").splitlines(), ndmin=2)
        values = np.array(pattern, dtype=np.float64).clip(0, 1)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidValue("pattern", pattern, f"{allowed} ({error})") from None
    if values.ndim != 2 or not values.size or np.isnan(values).any():
        raise InvalidValue("pattern", pattern, allowed)
    return tuple(tuple(row) for row in values.tolist())
