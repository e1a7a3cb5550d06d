"""Oracle of `quest(rule="moments")`: pages by the mean and the spread of their keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .quest import QuestLayer


class QuestMomentsLayer(QuestLayer):
    """As `QuestLayer`, but a page is worth q.mean + factor * spread as seen by the query.

    spread="norm": the length of q times the root mean square distance of the page's keys from
    their mean. spread="coordinate": the sum over coordinates of |q| times standard deviation.
    With any other `rule` this is QuestLayer.
    """

    def __init__(
        self,
        *args: Any,
        rule: str = "",
        factor: float = 0.5,
        spread: str = "norm",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if spread not in ("norm", "coordinate"):
            raise ValueError(f"no spread {spread!r}")
        self.rule, self.factor, self.spread = rule, factor, spread

    def worth(self, query: np.ndarray, inside: np.ndarray) -> float:
        if self.rule != "moments":
            return super().worth(query, inside)
        mean = inside.mean(0)
        away = inside - mean
        if self.spread == "norm":
            seen = math.sqrt((query * query).sum()) * math.sqrt((away * away).sum(1).mean())
        else:
            seen = float((np.abs(query) * np.sqrt((away * away).mean(0))).sum())
        return float(query @ mean) + self.factor * seen
