"""RaaS: pages that no query has looked at for longest go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attention.contract import (
    Compressing,
    Counts,
    Dropping,
    Geometry,
    Slots,
    Step,
    check_int,
    check_pages,
    check_share,
    fixed,
    gpu,
)


class RaaSLayer(Compressing):
    """Whole pages are dropped, so slots in order of age are pages too; all but the last are full.

    A page's stamp is the largest of its tokens' stamps.
    """

    on_device = True

    def __init__(self, geometry: Geometry, backend: RaaS) -> None:
        super().__init__(geometry, backend)
        self.page, self.alpha, self.gqa = backend.page, backend.alpha, backend.gqa
        self.stamp = self.remember("stamp", dtype=torch.int32)

    def remembered(self, step: Step) -> Sequence[tuple[Slots, Tensor]]:
        def stamps() -> Tensor:
            return self.arriving(step)[:, None].expand(-1, self.geometry.Hkv, -1).contiguous()

        return [(self.stamp, step.memo("stamp", stamps))]

    def arriving(self, step: Step) -> Tensor:
        """The stamp each column's token comes with, (B, T)."""
        if step.decode and not (step.past < step.prompt).any():
            return step.seen_tokens[:, None].to(torch.int32)
        # A prompt is read at once.
        read = step.tensor(np.minimum(step.prompt, step.seen))[:, None]
        return torch.where(step.generated(), step.positions() + 1, read).to(torch.int32)

    def reread(self, q: Tensor, step: Step) -> None:
        engine = self.geometry.engine
        # The current token came with a stamp of its own, so its page needs none.
        for probs, occupancy, now in self.columns(q, step):
            engine.restamp(self.stamp, probs, occupancy, now, self.page, self.gqa, self.alpha)

    def learn(self, probs: Tensor, step: Step) -> None:
        occupancy, now = step.holding(self.stored_tokens + 1, "compressing"), step.seen_tokens
        engine = self.geometry.engine
        engine.restamp(self.stamp, probs, occupancy, now, self.page, self.gqa, self.alpha)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        assert self.store is not None
        splits = gpu.attend_splits(counts, self.store, q, k, v, scaling, logits=True)
        (stamps,), how = fixed(self.stamp), (self.page, self.gqa, self.alpha)
        gpu.choices().restamp(splits, counts.seen, counts.live, stamps, *how)
        return gpu.join_splits(counts, splits)

    def target(self, seen: int, room: int) -> int:  # noqa: ARG002
        return self.limit - self.page + seen % self.page

    def spared(self, prompt: Counts) -> Counts:
        return -(-prompt // self.page) * self.page

    def least_room(self) -> int:
        return self.page

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        S = k.shape[2]
        stamps = functional.pad(self.stamp.data[rows, :, :S], (0, -S % self.page))
        stamp = stamps.view(*stamps.shape[:2], -1, self.page).amax(-1)
        # Among equal stamps the younger page is worth more.
        age = torch.arange(stamp.shape[-1], device=k.device, dtype=torch.float64)
        worth = stamp + age / len(age)
        if S % self.page:
            worth[..., -1] = float("inf")
        return worth.repeat_interleave(self.page, -1)[..., :S]


@dataclass(frozen=True, kw_only=True)
class RaaS(Dropping):
    """Drops the page whose stamp is oldest; pages that receive attention are stamped anew.

    RaaS, arXiv 2502.11147. At each step the better half of the pages, or all above `alpha`, are
    stamped with the number of tokens seen, and the page of the current token always. Among equal
    stamps the oldest page goes. A score is the largest true probability of a page's tokens, for the
    authors Quest's bound of q.k; all that is held is read anyway. Pages with a token of the prompt
    stay for ever and count. Their code (DerekHJH/RaaS) stamps the newest page once, leaves it out
    of the better half, and keeps no prompts. One set of pages is kept per KV head.

    Args:
        budget: tokens a decode query may read, current token included; a multiple of `page`, at
            least two pages.
        page: tokens per page.
        alpha: score above which a page is stamped, from 0 to 1; None for the better half.
        keep_prompt: keep the pages of the prompt; a prompt of more than budget - page tokens is
            then refused. Otherwise it is read whole and its newest pages stay.
        gqa: "sum", "mean" or "max" of the scores of a KV head's query heads.
    """

    name: ClassVar[str] = "raas"
    source: ClassVar[str] = "RaaS: pages by when they were last needed (arXiv 2502.11147)"
    layer_class = RaaSLayer
    choices: ClassVar = {"gqa": ("sum", "mean", "max")}
    page: int = 16
    alpha: float | None = None
    keep_prompt: bool | int = True
    gqa: str = "max"

    def __post_init__(self) -> None:
        check_int("page", self.page, 1)
        super().__post_init__()
        check_pages(self.budget, self.page)
        if self.alpha is not None:
            check_share("alpha", self.alpha)
