"""Full attention, stored without copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from attention.contract.backend import Backend
from attention.layers.layer import Geometry, KeepAll, Layer


@dataclass(frozen=True, kw_only=True)
class Full(Backend):
    """Every query reads every earlier token: equal to transformers' own attention.

    Differs from it in speed only: the store is preallocated and grown by doubling where
    DynamicCache copies all of it each step, and the keys of a group are not repeated.
    """

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "softmax attention over all tokens (arXiv 1706.03762)"
    budget: None = field(default=None, init=False, repr=False)

    @property
    def exact_until(self) -> float:
        return math.inf

    def layer(self, geometry: Geometry) -> Layer:
        return KeepAll(geometry, budget=None)
