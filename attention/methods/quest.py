"""Quest: all tokens stay, the current query reads the pages that can matter most to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from attention.contract import (
    Geometry,
    Growing,
    InvalidValue,
    Layer,
    Paged,
    check_int,
    check_number,
    check_pages,
    fixed,
    gpu,
)


class QuestLayer(Paged):
    """A page is known by the maxima of k and of -k, side by side.

    The bound is then one product: sum of max(q M, q m) = relu(q).M + relu(-q).max(-k), and for the
    sum or mean over a group the queries can be added before it.
    """

    on_device = True

    def __init__(self, geometry: Geometry, backend: Quest) -> None:
        super().__init__(geometry, backend, size=2 * geometry.D)
        self.gqa = backend.gqa

    def summary(self, k: Tensor, mask: Tensor) -> Tensor:
        # A page that is begun holds its first token.
        known = torch.where(mask, k, k[:, :, :, :1])
        return torch.cat((known.amax(3), -known.amin(3)), dim=-1)

    def alone(self, k: Tensor) -> Tensor:
        return torch.cat((k, -k), dim=-1)

    def products(self, q: Tensor) -> Tensor:
        signed = torch.cat((q, -q), dim=-1).relu_().to(self.geometry.wide)
        if self.gqa == "query_head":
            return signed.flatten(1, 2)[:, :, None]
        # A mean ranks as its sum does.
        return signed if self.gqa == "max" else signed.sum(2, keepdim=True)

    def selected(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        keys, values, bounds = fixed(self.k, self.v, self.summaries)
        scores = gpu.choices().estimate_pages(
            q, k, v, scaling, keys, values, bounds, counts.seen, counts.live, self.page, self.gqa
        )
        if counts.dense:
            return None, None
        others, page = self.quota - 1, self.page
        table, read = gpu.choices().select(scores, counts.seen, counts.live, others, page=page)
        return table, read


class MomentsLayer(Paged):
    """A page is known by the mean of its keys, and by how far they lie from it.

    The score is one product, too: q.mean + factor |q|.spread, where |q| is the length of q or
    its absolute values.
    """

    def __init__(self, geometry: Geometry, backend: Quest) -> None:
        self.norm, self.factor, self.gqa = backend.spread == "norm", backend.factor, backend.gqa
        numbers = geometry.D + (1 if self.norm else geometry.D)
        super().__init__(geometry, backend, size=numbers, dtype=geometry.wide)

    def summary(self, k: Tensor, mask: Tensor) -> Tensor:
        k, n = k.to(self.geometry.wide).where(mask, 0), mask.sum(3).clamp(min=1)
        mean = k.sum(3) / n
        # Squares of distances, as a difference of mean squares cancels.
        away = (k - mean[..., None, :]).where(mask, 0).square().sum(3) / n
        spread = (away.sum(-1, keepdim=True) if self.norm else away).sqrt()
        return torch.cat((mean, spread), dim=-1)

    def products(self, q: Tensor) -> Tensor:
        q = q.to(self.geometry.wide)
        size = torch.linalg.vector_norm(q, dim=-1, keepdim=True) if self.norm else q.abs()
        both = torch.cat((q, self.factor * size), dim=-1)
        if self.gqa == "query_head":
            return both.flatten(1, 2)[:, :, None]
        return both if self.gqa == "max" else both.sum(2, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class Quest(Growing):
    """Reads the last page and the budget // page - 1 others with the largest upper bound of q.k.

    Quest, arXiv 2406.10774; the rule of mit-han-lab/Quest's CUDA path. The bound of a page is the
    sum over D of max(q max_k, q min_k) on roped keys, kept up to date at every token. The authors'
    models have no grouped heads; here one set is chosen per KV head, by the bounds of its G query
    heads reduced, or one per query head as they do. Attention is dense while all pages fit.
    With rule="moments" a page is scored by mean and spread of its keys instead, as in UNIQUE
    (arXiv 2605.27740), whose pages have 8 tokens and whose heads are reduced by "max".

    Args:
        budget: tokens a decode query may read; a multiple of `page`, at least two pages.
        page: tokens per page.
        dense_layers: first layers left dense, as the authors do; exempt from the budget.
        gqa: "sum", "mean" or "max" over the group, or "query_head" for a set per query head; "sum"
            by default.
        rule: "bounds", or "moments": q.mean + factor * spread.
        factor: weight of the spread under "moments".
        spread: "norm", the length of q times the root mean square distance of keys from their
            mean; "coordinate", the sum over D of |q| times standard deviation.
    """

    name: ClassVar[str] = "quest"
    source: ClassVar[str] = "Quest: pages by an upper bound of q.k (arXiv 2406.10774)"
    layer_class = QuestLayer
    choices: ClassVar = {
        "gqa": ("sum", "mean", "max", "query_head"),
        "rule": ("bounds", "moments"),
        "spread": ("norm", "coordinate"),
    }
    budget: int
    page: int = 16
    dense_layers: int = 2
    gqa: str = "sum"
    # Under the default rule nothing of the others is part of what results are stored under.
    rule: str = field(default="bounds", metadata={"left_out": "bounds"})
    factor: float = field(default=0.5, metadata={"left_out": 0.5})
    spread: str = field(default="norm", metadata={"left_out": "norm"})

    def __post_init__(self) -> None:
        check_int("page", self.page, 1)
        super().__post_init__()
        check_pages(self.budget, self.page)
        check_number("factor", self.factor, "a number of at least 0", least=0)
        for name, default in (("factor", 0.5), ("spread", "norm")):
            if self.rule == "bounds" and getattr(self, name) != default:
                raise InvalidValue(name, getattr(self, name), 'nothing, without rule="moments"')

    def layer(self, geometry: Geometry) -> Layer:
        return (QuestLayer if self.rule == "bounds" else MomentsLayer)(geometry, self)
