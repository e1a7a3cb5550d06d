"""Kascade: a few anchor layers choose tokens per KV head, the layers behind them read the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    Choice,
    Counts,
    Geometry,
    Growing,
    InvalidValue,
    KeepAll,
    Layer,
    Likeliest,
    Reading,
    Step,
    check_ints,
    gpu,
)


class AnchorLayer(Likeliest):
    """Looks at every key, reads what it chooses, and hands it on."""

    on_device = hands_on = True

    def overhead(self, seen: Counts) -> Counts:
        """The keys looked at."""
        return np.where(seen > self.quotas(seen), seen * self.geometry.Hkv, 0)


class FirstLayer(AnchorLayer):
    """The first anchor, which reads everything."""

    on_device = reads_all = True
    reads, overhead = KeepAll.reads, KeepAll.overhead


class ReuseLayer(Reading):
    """A KV head reads what the head of the last anchor chose that its map names."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Kascade) -> None:
        super().__init__(geometry, backend)
        maps, self.heads = backend.maps, None
        if maps is not None:
            self.heads = torch.tensor(maps[geometry.index], device=geometry.device)

    def mapped(self, x: Tensor) -> Tensor:
        """Of each anchor's head, (B, H, ...), to that of this layer's."""
        return x if self.heads is None else x.index_select(1, self.heads)

    def handed(self, step: Step | gpu.DeviceCounts) -> Any:
        choice = super().handed(step)
        if isinstance(choice, Choice):
            return choice.each(self.mapped)
        return [self.mapped(x) for x in choice]

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.quotas(seen))


@dataclass(frozen=True, kw_only=True)
class Kascade(Growing):
    """Reads the current token and the others most probable in the last anchor layer.

    Kascade, arXiv 2512.16391; the rule of `DecodeOnlyKascadeStrategy` in microsoft/kascade. An
    anchor takes, per KV head, the tokens of largest probability over the group; a layer behind it
    reads what the head of the anchor chose that `maps` names. The first layer is always an anchor
    and reads everything; the others look at every key, which is part of their cost. The authors
    read a tenth of the text, at least 128 tokens, perhaps not the current one, and sparse prompts.

    Args:
        budget: tokens a decode query may read, current token included.
        anchors: numbers of layers, as the authors measure them for a model; by default, which is
            ours, one in seven at equal distances, at least two.
        maps: for each layer of the model, anchors too, the anchor's head that each of its KV heads
            follows; by default its own.
        gqa: "sum", "mean" or "max" of the probabilities of a KV head's query heads.
    """

    name: ClassVar[str] = "kascade"
    source: ClassVar[str] = "Kascade: anchor layers choose for those behind (arXiv 2512.16391)"
    layer_class = AnchorLayer
    choices: ClassVar = {"gqa": ("sum", "mean", "max")}
    budget: int
    anchors: Sequence[int] | None = None
    maps: Sequence[Sequence[int]] | None = None
    gqa: str = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchors is not None:
            self._resolve("anchors", check_ints("anchors", self.anchors, 0))
        if self.maps is not None:
            allowed = "`anchors`, and a row of its heads' numbers for each layer"
            if self.anchors is None or not isinstance(self.maps, Sequence):
                raise InvalidValue("maps", self.maps, allowed)
            maps = tuple(check_ints("maps", row, 0, allowed) for row in self.maps)
            self._resolve("maps", maps)

    def check_heads(self, heads: Sequence[int], groups: Sequence[int]) -> None:  # noqa: ARG002
        maps = heads if self.maps is None else self.maps
        if len(maps) != len(heads):
            raise InvalidValue("maps", f"{len(maps)} rows", f"{len(heads)}, one for each layer")
        for row, H in zip(self.maps or (), heads, strict=False):
            if len(row) != H or max(row) >= H:
                raise InvalidValue("maps", row, f"rows of {H} numbers below {H}, one a KV head")

    def choosing_layers(self, windows: Sequence[int | None]) -> tuple[int, ...]:
        L = len(windows)
        count = min(L, max(2, -(-L // 7)))
        anchors = self.layers_of("anchors", windows, [i * L // count for i in range(count)])
        return tuple(sorted({*anchors, *self.layers_of("", windows, [0])}))

    def layer(self, geometry: Geometry) -> Layer:
        anchors = self.choosing_layers(geometry.windows)
        if geometry.index not in anchors:
            return ReuseLayer(geometry, self)
        return (FirstLayer if geometry.index == anchors[0] else AnchorLayer)(geometry, self)
