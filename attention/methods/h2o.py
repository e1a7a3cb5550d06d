"""H2O: the tokens that received most attention, and the newest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    AUTO,
    Counts,
    Dropping,
    Evicting,
    Geometry,
    InvalidValue,
    Layer,
    Step,
    check_flag,
    check_int,
    devices,
    fixed,
    gpu,
    over_group,
)


class H2OLayer(Evicting):
    """Scores are sums per KV head, or per query head where the largest of the group counts."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: H2O) -> None:
        super().__init__(geometry, backend)
        self.backend, self.gqa = backend, backend.gqa
        self.recent = backend.budget - backend.heavy
        self.halves = backend.heavy == backend.budget // 2
        tail = (geometry.G,) if self.gqa == "max" else ()
        self.score = self.remember("score", tail, dtype=geometry.wide)
        if self.gqa != "max" and backend.score_from_prefill:
            self.summed = self.score

    def counts(self, step: Step) -> Tensor | None:
        return super().counts(step) if self.backend.score_from_prefill else step.generated()

    def learn(self, mass: Tensor, step: Step) -> None:
        if step.decode and not self.backend.score_from_prefill and (step.past < step.prompt).any():
            mass = mass * step.generated()[:, None, None]
        score = self.score.data[:, :, : mass.shape[-1]]
        score += mass.transpose(2, 3) if self.gqa == "max" else over_group(mass, "sum", 2)

    def worth(self, S: int, step: Step) -> Tensor:  # noqa: ARG002
        score = self.score.data
        if score.shape[2] > S:
            score = score[:, :, :S]
        if self.gqa == "max":
            return over_group(score, "max", -1)
        return score / self.geometry.G if self.gqa == "mean" else score

    def least_room(self) -> int:
        return 2 if self.halves else self.backend.heavy + 1

    def newest(self, prompt: Counts) -> Counts:
        room = np.maximum(self.limit - prompt, 0)
        return room - (room // 2 if self.halves else self.backend.heavy)

    def eviction(self, spared: Tensor, recent: Tensor) -> gpu.Eviction:
        following, score = fixed(self.next, self.score)
        return gpu.Eviction("score", following, spared, recent, score)


class PerQueryHead(H2OLayer):
    """Gives each query head a copy of its KV head's keys and values, and a set of its own.

    For comparison with code that knows no grouped heads: what is kept takes G times the memory.
    """

    def __init__(self, geometry: Geometry, backend: H2O) -> None:
        super().__init__(replace(geometry, Hkv=geometry.Hq), backend)
        self.key_heads = geometry.Hkv

    def repeated(self, x: Tensor) -> Tensor:
        """(B, Hkv, T, D) to (B, Hq, T, D)."""
        return x.repeat_interleave(self.geometry.Hq // self.key_heads, dim=1)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return super().decode(q, self.repeated(k), self.repeated(v), scaling, step)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return super().prefill(q, self.repeated(k), self.repeated(v), scaling, step)

    def measured(self, seen: Counts) -> Tensor:
        """What any query head of a group reads costs once, summed over KV heads."""
        position = self.position.data
        heads = position.view(len(position), self.key_heads, -1).sort(dim=-1).values
        first = torch.ones_like(heads, dtype=torch.bool)
        first[:, :, 1:] = heads[:, :, 1:] != heads[:, :, :-1]
        cost = (first & (heads >= 0)).sum((1, 2)).double()
        reads = devices.put(self.reads(seen), cost.device, cost.dtype)
        return torch.stack((reads, reads, cost))


@dataclass(frozen=True, kw_only=True)
class H2O(Dropping):
    """Keeps the `heavy` tokens with the largest summed probability and the newest ones.

    H2O, arXiv 2306.14048; FMInference/H2O, `utils_real_drop`. A slot's score is the sum over all
    queries so far, the prompt's included, of the probability they gave it. The authors attend first
    and evict afterwards, so their queries read budget + 1 tokens; this equals their code with
    heavy = budget // 2 and recent = budget - budget // 2 - 1. They score per query head of a model
    without grouped heads; here one set is kept per KV head, unless `gqa` says otherwise.

    Args:
        budget: tokens a decode query may read, current token included; at least 2.
        heavy: tokens kept for their score, below `budget`; budget // 2 by default. The other
            budget - heavy are the newest, the current one included.
        keep_prompt: the prompt stays; heavy and newest tokens share the rest.
        gqa: "sum", "mean" or "max" of the scores of a KV head's query heads; or "query_head" for a
            set per query head, which takes G times the memory.
        score_from_prefill: whether the queries of a prompt score too. If not, a prompt is cut
            among equals, which keeps its oldest tokens.
        dense_layers: first layers left dense; exempt from the budget.
    """

    name: ClassVar[str] = "h2o"
    source: ClassVar[str] = "H2O: heavy hitters and the newest tokens (arXiv 2306.14048)"
    layer_class = H2OLayer
    choices: ClassVar = {"gqa": ("sum", "mean", "max", "query_head")}
    least_budget: ClassVar[int] = 2
    heavy: int = AUTO
    gqa: str = "sum"
    score_from_prefill: bool = True
    dense_layers: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heavy is AUTO:
            self._resolve("heavy", self.budget // 2)
        allowed = f"an integer from 0 to budget - 1 = {self.budget - 1}"
        if check_int("heavy", self.heavy, 0, allowed) >= self.budget:
            raise InvalidValue("heavy", self.heavy, allowed)
        check_flag("score_from_prefill", self.score_from_prefill)

    def layer(self, geometry: Geometry) -> Layer:
        return (PerQueryHead if self.gqa == "query_head" else H2OLayer)(geometry, self)
