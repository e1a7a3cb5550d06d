"""Oracle: all tokens stay, the current query reads those with most probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attention.contract import (
    Choice,
    Geometry,
    Growing,
    InvalidValue,
    Layer,
    Likeliest,
    Selecting,
    Step,
    check_number,
    devices,
)


class ShareLayer(Likeliest):
    """With `top_p` every head has its own number of tokens."""

    def __init__(self, geometry: Geometry, backend: Oracle) -> None:
        super().__init__(geometry, backend)
        assert backend.top_p is not None
        self.top_p = backend.top_p

    def choose(self, q: Tensor, step: Step) -> Choice:
        weight, rank = self.geometry.engine.likelihood(
            self.looking(q), step.occupancy(), largest=self.gqa == "max"
        )
        index = rank.argsort(dim=-1, descending=True, stable=True)
        share = (weight / weight.sum(-1, keepdim=True)).gather(2, index)
        # The tokens before the one that reaches top_p, and it; a hidden slot has no share.
        live = (share.cumsum(-1) - share < self.top_p) & (share > 0)
        live[..., 0] = True
        # The device alone knows how many they are, so all are listed, and most are not live.
        most = int(live.sum(-1).max()) if devices.is_synchronous(live.device) else step.longest
        return Choice(index[..., :most], live[..., :most])

    reads = Selecting.reads  # counted: it does not follow from lengths


@dataclass(frozen=True, kw_only=True)
class Oracle(Growing):
    """Reads the current token and, per KV head, the others with the largest true probability.

    A control: the upper bound of the methods that select. Finding the tokens takes a look at every
    key, which is not counted as read. With `top_p` a head reads the fewest tokens that hold this
    share of the probability (as in Twilight, arXiv 2502.02770); no budget then binds.

    Args:
        budget: tokens a decode query may read, current token included; None with `top_p`.
        top_p: share of the reduced probability that is read, above 0 and below 1; None with
            `budget`.
        gqa: "sum", "mean" or "max" of the probabilities of a KV head's query heads.
    """

    name: ClassVar[str] = "oracle"
    role = "control"
    source: ClassVar[str] = "control: the tokens with most probability, known beforehand"
    layer_class = Likeliest
    choices: ClassVar = {"gqa": ("sum", "mean", "max")}
    aliases = (("budget", "top_p"),)
    budget: int | None = None
    top_p: float | None = None
    gqa: str = "sum"

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.top_p is None):
            raise InvalidValue("budget", self.budget, "either a budget or top_p")
        super().__post_init__()
        if self.top_p is not None:
            check_number("top_p", self.top_p, "a number above 0 and below 1", above=0, below=1)

    @property
    def exact_until(self) -> float:
        return 0 if self.budget is None else super().exact_until

    def layer(self, geometry: Geometry) -> Layer:
        return (Likeliest if self.top_p is None else ShareLayer)(geometry, self)
