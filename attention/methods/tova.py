"""TOVA: the token the last query cares least for goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attention.contract.backend import Backend
from attention.core.kernels import added
from attention.core.step import Step
from attention.errors import check_int
from attention.layers.evicting import Evicting
from attention.layers.layer import Geometry, Layer


@dataclass(frozen=True, kw_only=True)
class TOVA(Backend):
    """Drops the token with the smallest probability under the last query, averaged over heads.

    TOVA, arXiv 2401.06104; schwartz-lab-NLP/TOVA. One set serves all heads of a layer. No token
    is exempt, neither the first nor the current one. After a prompt the tokens with the largest
    probability under its last query stay.

    Args:
        budget: tokens a decode query may read, current token included; at least 2.

    Raises:
        InvalidValue: a parameter is out of range.
    """

    name: ClassVar[str] = "tova"
    source: ClassVar[str] = "TOVA: what the last query attends to (arXiv 2401.06104)"
    budget: int

    def __post_init__(self) -> None:
        check_int("budget", self.budget, 2)

    @property
    def exact_until(self) -> float:
        return self.budget

    def layer(self, geometry: Geometry) -> Layer:
        return TOVALayer(geometry, self.budget)


class TOVALayer(Evicting):
    """Nothing is remembered: the last query's probabilities decide at once."""

    def counts(self, step: Step) -> Tensor:
        return step.newest(1)

    def learn(self, mass: Tensor, step: Step) -> None:  # noqa: ARG002
        g = self.geometry
        mean = added(mass.flatten(1, 2), 1) / g.Hq
        self.last = mean[:, None].expand(-1, g.Hkv, -1)

    def worth(self, S: int, step: Step) -> Tensor:  # noqa: ARG002
        return self.last[:, :, :S]
