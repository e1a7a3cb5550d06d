"""SnapKV, applied in decode: tokens the newest queries and their neighbours attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from attention.contract import (
    AUTO,
    Compressing,
    Dropping,
    Geometry,
    InvalidValue,
    Layer,
    added,
    check_int,
    check_window,
    newest_logits,
    over_group,
    softmax,
)


class SnapKVLayer(Compressing):
    """Scores are computed anew at each compression."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: SnapKV) -> None:
        super().__init__(geometry, backend, observers=backend.window)
        self.kernel, self.gqa, self.usual = backend.kernel, backend.gqa, backend.usual
        self.quarter = backend.window == backend.usual(backend.budget)

    def window(self, room: int) -> int:
        return min(self.usual(room), self.observers) if self.quarter else self.observers

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        window = q.shape[3]
        probs = softmax(newest_logits(q, k), self.geometry.grouped_sinks)
        mass = added(probs[..., :-window], 3)
        score = over_group(mass, self.gqa, 2)
        pooled = functional.avg_pool1d(score, self.kernel, stride=1, padding=self.kernel // 2)
        return functional.pad(pooled, (0, window), value=float("inf"))


@dataclass(frozen=True, kw_only=True)
class SnapKV(Dropping):
    """Keeps the newest tokens, and those their queries attend to, averaged over neighbours.

    SnapKV, arXiv 2404.14469; FasterDecoding/SnapKV. The authors compress the prompt once; here a
    row that reaches the budget, by its prompt or in decode, is compressed to
    budget - min(128, budget // 4) by the same rule. They choose per query head; here one set is
    kept per KV head.

    Args:
        budget: tokens a decode query may read, current token included; at least 4.
        window: newest tokens kept, whose queries score the others; min(32, budget // 4) by default.
        keep_prompt: the prompt stays; the window and what is cut follow from the rest.
        kernel: neighbours over which probability is averaged, itself included; odd. Beyond the
            ends they count as 0.
        gqa: "sum", "mean" or "max" of the probabilities of a KV head's query heads.
    """

    name: ClassVar[str] = "snapkv"
    source: ClassVar[str] = "SnapKV in decode: what the newest queries attend to (arXiv 2404.14469)"
    layer_class: ClassVar[type[Layer]] = SnapKVLayer
    choices: ClassVar = {"gqa": ("sum", "mean", "max")}
    least_budget: ClassVar[int] = 4
    most_window: ClassVar[int] = 32
    window: int = AUTO
    kernel: int = 5
    gqa: str = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is AUTO:
            self._resolve("window", self.usual(self.budget))
        check_window(self.budget, self.window)
        if check_int("kernel", self.kernel, 1) % 2 == 0:
            raise InvalidValue("kernel", self.kernel, "an odd integer")

    def usual(self, room: int) -> int:
        """Newest tokens kept by default where the method has `room` tokens."""
        return min(self.most_window, room // 4)
