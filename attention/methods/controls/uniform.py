"""H2O with a mask that made its softmax uniform: a control, not a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attention.contract import Backend, Full, Geometry, KeepAll, Step


class UniformLayer(KeepAll):
    """A query of zeros weighs all keys alike."""

    def __init__(self, geometry: Geometry, backend: Uniform) -> None:
        super().__init__(geometry, Full())
        self.until = backend.budget

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.append(k, v, step)
        within = step.memo(
            "within", lambda: step.tensor(step.seen <= self.until)[:, None, None, None]
        )
        return self.attend_all(q * within, scaling, step)


@dataclass(frozen=True, kw_only=True)
class Uniform(Backend):
    """Weighs all tokens alike in every decode query that has seen more than `budget`.

    A control: it reproduces a defect of a public long-decode harness, whose H2O mask made the
    softmax uniform over all tokens once the budget was exceeded. All tokens are kept and read, so
    no budget binds.

    Args:
        budget: tokens seen up to which attention is full, current token included; at least 1.
        dense_layers: first layers left as they are, none as in `h2o`; 2 in the harness.
    """

    name: ClassVar[str] = "uniform"
    role = "control"
    source: ClassVar[str] = "control: uniform attention above the budget, a defect of a harness"
    layer_class = UniformLayer
    budget: int
