"""Window: the newest tokens and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attention.contract import Dropping, Geometry, Layer
from attention.methods.sink import Sink, SinkLayer


@dataclass(frozen=True, kw_only=True)
class Window(Dropping):
    """Keeps the last `budget` tokens, the same in all layers and heads.

    Sliding window attention, as in Longformer, arXiv 2004.05150, applied to a model that was not
    trained with it. The same as `sink` without sinks.

    Args:
        budget: tokens a decode query may read, current token included; at least 1.
    """

    name: ClassVar[str] = "window"
    role = "control"
    source: ClassVar[str] = "a sliding window (arXiv 2004.05150)"
    layer_class = SinkLayer

    def layer(self, geometry: Geometry) -> Layer:
        keep = self.keep_prompt
        sink = Sink(budget=self.budget, sinks=0, positions="absolute", keep_prompt=keep)
        return SinkLayer(geometry, sink)
