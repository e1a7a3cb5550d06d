"""TOVA: the token the last query cares least for goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attention.contract import Dropping, Evicting, Step, fixed, gpu, over_group


class TOVALayer(Evicting):
    """Nothing is remembered: the last query's probabilities decide at once."""

    on_device = True
    learners = 1

    def learn(self, mass: Tensor, step: Step) -> None:  # noqa: ARG002
        mean = over_group(mass.flatten(1, 2), "mean", 1)
        self.last = mean[:, None].expand(-1, self.geometry.Hkv, -1)

    def worth(self, S: int, step: Step) -> Tensor:  # noqa: ARG002
        return self.last[:, :, :S]

    def eviction(self, spared: Tensor, recent: Tensor) -> gpu.Eviction:
        (following,) = fixed(self.next)
        return gpu.Eviction("last", following, spared, recent, shared=True)


@dataclass(frozen=True, kw_only=True)
class TOVA(Dropping):
    """Drops the token with the smallest probability under the last query, averaged over heads.

    TOVA, arXiv 2401.06104; schwartz-lab-NLP/TOVA. One set serves all heads of a layer. No token
    is exempt, neither the first nor the current one. After a prompt the tokens with the largest
    probability under its last query stay; with `keep_prompt`, all of it.
    """

    name: ClassVar[str] = "tova"
    source: ClassVar[str] = "TOVA: what the last query attends to (arXiv 2401.06104)"
    least_budget: ClassVar[int] = 2
    layer_class = TOVALayer
