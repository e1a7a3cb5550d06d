"""H2O: the tokens that received most attention, and the newest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from attention.backend import Backend, one_of, whole
from attention.errors import InvalidValue
from attention.evicting import Evicting
from attention.layer import Geometry, Layer
from attention.step import Step

GQA = ("sum", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class H2O(Backend):
    """Keeps the `heavy` tokens with the largest summed probability and the newest ones.

    H2O, arXiv 2306.14048; FMInference/H2O, `utils_real_drop`. A slot's score is the sum over all
    queries so far, the prompt's included, of the probability they gave it, never normalised or
    decayed. The authors attend first and evict afterwards, so their queries read budget + 1 tokens;
    this equals their code with heavy = budget // 2 and recent = budget - budget // 2 - 1. They
    score per query head of a model without grouped heads; here one set is kept per KV head.

    Args:
        budget: tokens a decode query may read, current token included; at least 2.
        heavy: tokens kept for their score, below `budget`; budget // 2 by default. The other
            budget - heavy are the newest, the current one included.
        gqa: how the scores of the G query heads of a KV head become one: "sum", "mean" or "max".

    Raises:
        InvalidValue: a parameter is out of range.
    """

    name: ClassVar[str] = "h2o"
    source: ClassVar[str] = "H2O: heavy hitters and the newest tokens (arXiv 2306.14048)"
    budget: int
    heavy: int | None = None
    gqa: str = "sum"

    def __post_init__(self) -> None:
        whole("budget", self.budget, 2)
        if self.heavy is not None:
            allowed = f"an integer from 0 to budget - 1 = {self.budget - 1}"
            if whole("heavy", self.heavy, 0, allowed) >= self.budget:
                raise InvalidValue("heavy", self.heavy, allowed)
        one_of("gqa", self.gqa, GQA)

    @property
    def exact_until(self) -> float:
        return self.budget

    def params(self) -> dict[str, Any]:
        heavy = self.budget // 2 if self.heavy is None else self.heavy
        return super().params() | {"heavy": heavy}

    def layer(self, geometry: Geometry) -> Layer:
        return H2OLayer(geometry, self.budget, self.params()["heavy"], self.gqa)


class H2OLayer(Evicting):
    """Scores are sums per KV head, or per query head where the largest of the group counts."""

    def __init__(self, geometry: Geometry, budget: int, heavy: int, gqa: str) -> None:
        super().__init__(geometry, budget)
        self.recent, self.gqa = budget - heavy, gqa
        tail = (geometry.G,) if gqa == "max" else ()
        self.score = self.remember("score", tail, dtype=geometry.wide)

    def learn(self, mass: Tensor, step: Step) -> None:  # noqa: ARG002
        score = self.score.data[:, :, : mass.shape[-1]]
        score += mass.transpose(2, 3) if self.gqa == "max" else mass.sum(2)

    def worth(self, S: int, step: Step) -> Tensor:
        score = self.score.data[:, :, :S]
        if self.gqa == "max":
            score = score.amax(-1)
        elif self.gqa == "mean":
            score = score / self.geometry.G
        oldest_recent = step.once(
            "recent", lambda: (step.seen_tokens - self.recent + 1)[:, None, None]
        )
        return score.masked_fill(self.position.data[:, :, :S] >= oldest_recent, float("inf"))
