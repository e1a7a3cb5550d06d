"""LazyEviction: tokens go that were attended to long ago, against how long that ever took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.contract import (
    AUTO,
    Compressing,
    Dropping,
    Geometry,
    InvalidValue,
    Step,
    check_int,
    check_number,
    interval,
    over_group,
)


class LazyLayer(Compressing):
    """Times are tokens seen."""

    def __init__(self, geometry: Geometry, backend: Lazy) -> None:
        super().__init__(geometry, backend)
        self.backend, self.quarter = backend, backend.window == interval(backend.budget)
        # When a token was attended to, 0 before the first query, and the longest time between.
        self.last = self.remember("last", dtype=torch.int32)
        self.longest = self.remember("longest", dtype=torch.int32)

    def target(self, seen: int, room: int) -> int:
        return super().target(seen, room) if self.quarter else self.limit - self.backend.window

    def least_room(self) -> int:
        return 4 if self.quarter else 2 * self.backend.window + 1

    def learn(self, probs: Tensor, step: Step, now: Tensor | None = None) -> None:
        """`now` is the tokens seen, where they are not the step's, (B,)."""
        state = self.position, self.last, self.longest
        position, last, longest = (slots.data[:, :, : probs.shape[3]] for slots in state)
        now = (step.seen_tokens if now is None else now).to(torch.int32)[:, None, None]
        # Times of a token begin just before the first query that could attend to it.
        new = (last == 0) & (position >= 0) & (position < now)
        last.copy_(torch.where(new, now - 1, last))
        active = over_group(probs, self.backend.gqa, 2) >= self.backend.alpha
        longest.copy_(torch.maximum(longest, (now - last) * (active & (last > 0))))
        last.copy_(torch.maximum(last, now * active))

    def reread(self, q: Tensor, step: Step) -> None:
        for probs, _, now in self.columns(q, step):
            self.learn(probs, step, now)

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        S, state = k.shape[2], (self.position, self.last, self.longest)
        position, last, longest = (x.data[rows, :, :S].to(torch.float64) for x in state)
        idle = position[:, :, -1:] + 1 - last
        # `exp` gives equal numbers equal bits in any slot; `sigmoid` does not.
        soon = 2 / (1 + torch.exp(1 + idle / (longest + 1e-5)))
        often = (2 / (1 + torch.exp(longest - 1))).masked_fill(longest == 0, 0)
        window = (self.room // 4).clamp(max=128) if self.quarter else self.backend.window
        newest = torch.arange(S, device=k.device) >= S - window
        return (soon + often).masked_fill(newest, float("inf"))


@dataclass(frozen=True, kw_only=True)
class Lazy(Dropping):
    """Keeps the newest tokens, and those whose longest time without attention may not be over.

    LazyEviction, arXiv 2506.15969; Halo-949/LazyEviction. A decode query, not a prompt's, attends
    to a token to which it gives `alpha` of its probability. A token's worth falls with the time
    since then against the longest time between two such queries, and with the latter. Formulas are
    those of their code, not of their text; times are integers, theirs of the model's dtype. They
    let budget + window tokens stand and choose per query head; here a row that reaches the budget
    is compressed to budget - window, per KV head. Of equal worths, often 0, the older stays.

    Args:
        budget: tokens a decode query may read, current token included; more than 2 * window.
        window: newest tokens kept, and tokens lost at once; min(128, budget // 4) by default.
        keep_prompt: the prompt stays; the default of the window follows from the rest.
        alpha: probability from which on a token is attended to, above 0.
        gqa: "max", "mean" or "sum" of the probabilities of a KV head's query heads.
    """

    name: ClassVar[str] = "lazy"
    source: ClassVar[str] = "LazyEviction: by times without attention (arXiv 2506.15969)"
    layer_class = LazyLayer
    choices: ClassVar = {"gqa": ("max", "mean", "sum")}
    window: int = AUTO
    alpha: float = 1e-4
    gqa: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is AUTO:
            check_int("budget", self.budget, 4)
            self._resolve("window", interval(self.budget))
        least = 2 * check_int("window", self.window, 1) + 1
        check_int("budget", self.budget, least, f"an integer above 2 * window = {least - 1}")
        most = math.inf if self.gqa == "sum" else 1
        check_number("alpha", self.alpha, "a probability above 0", above=0, most=most)

    def check_heads(self, heads: Sequence[int], groups: Sequence[int]) -> None:  # noqa: ARG002
        if self.alpha > min(groups):
            raise InvalidValue("alpha", self.alpha, f"at most {min(groups)}, query heads a KV head")
