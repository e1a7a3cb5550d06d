"""Base class of methods that know pages by a summary and choose them by a score."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention.core import devices
from attention.core.step import Counts, DeviceStep, Step
from attention.engines import gpu
from attention.engines.engine import page_scores
from attention.errors import InvalidValue
from attention.layers.layer import Geometry
from attention.layers.selecting import Choice, Selecting


class Paged(Selecting):
    """A decode query reads the last page and the budget // page - 1 others with the best score.

    A method answers two questions: `summary`, what is remembered of the keys of a page, and
    `products`, the vectors whose largest product with that is what a page is worth to a query.
    Summaries are kept up to date at every token; pages begun by no token are never chosen; among
    equals the older page wins. The page a crop cuts through is summarised anew.

    Args:
        size: numbers remembered of a page, per KV head; as many as a key has by default.
        dtype: of summaries; that of keys by default.
    """

    def __init__(
        self,
        geometry: Geometry,
        backend: Any,
        size: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(geometry, backend, backend.page)
        tail = (geometry.D if size is None else size,)
        self.summaries = self.slots("summaries", tail, dtype=dtype, unit=self.page)

    @abstractmethod
    def summary(self, k: Tensor, mask: Tensor) -> Tensor:
        """What is remembered of pages, (B, Hkv, P, size).

        Args:
            k: keys of P pages, (B, Hkv, P, page, D).
            mask: which of them are tokens of the row, (B, 1, P, page, 1); the others hold anything.
        """

    @abstractmethod
    def products(self, q: Tensor) -> Tensor:
        """Vectors of which a page is worth the largest product with its summary, (B, H, M, size).

        H is Hkv or Hq, one set of pages per KV head or query head; q is scaled, (B, Hkv, G, D).
        """

    def alone(self, k: Tensor) -> Tensor | None:  # noqa: ARG002
        """What is remembered of pages of one key, (B, Hkv, 1, size), if pages have keys' maxima.

        A page's other keys are then not looked at again. None for all others.
        """
        return None

    def notice(self, k: Tensor, step: Step) -> None:
        if isinstance(step, DeviceStep):
            self.renew(torch.arange(step.rows, device=step.device), step.seen_tokens)
            return
        self.summaries.fit(step.longest)
        single = self.alone(k) if step.decode else None
        if single is None:
            self.summarise(step.past, step.seen)
            return
        number = step.memo(("page", self.page), lambda: step.past // self.page)
        at = step.flat(number, k.shape[1], self.summaries.capacity, "summary")
        begun = step.memo(("begun", self.page), lambda: self.begun(step))
        self.geometry.engine.raise_to(self.summaries, at, single, begun)

    def renew(self, rows: Tensor, seen: Tensor) -> None:
        """Compute the summary of the last page of rows that have seen so many tokens, (N,) each."""
        k, last = self.k.data, seen - 1
        pages = k.view(*k.shape[:2], -1, self.page, k.shape[3])
        keys = pages[rows, :, last // self.page][:, :, None]
        mask = torch.arange(self.page, device=k.device) <= last[:, None] % self.page
        summary = self.summary(keys, mask[:, None, None, :, None])[:, :, 0]
        self.summaries.data[rows, :, last // self.page] = summary.to(self.summaries.data.dtype)

    def table(
        self, q: Tensor, step: DeviceStep, counts: gpu.DeviceCounts | None = None
    ) -> tuple[Tensor, Tensor]:
        if type(self).choose is not Paged.choose:
            return super().table(q, step, counts)
        scores = page_scores(self.products(q), self.summaries.data).to(torch.float32)
        if counts is None:  # a rehearsal
            return scores, scores
        scores = (scores + 0.0).contiguous()  # both zeros are one
        table, read = gpu.choices().select(
            scores, counts.seen, counts.live, self.quota - 1, page=self.page
        )
        return table, read

    def begun(self, step: Step) -> Tensor | None:
        """Which rows begin a page, once for each KV head, (B * Hkv,); None for none."""
        first = step.past % self.page == 0
        return step.tensor(first.repeat(self.geometry.Hkv)) if first.any() else None

    def summarise(self, start: Counts, seen: Counts) -> None:
        """Compute the summaries of all pages that hold a token from start[r] on."""
        first, last = int(start.min()) // self.page, int(self.pages(seen).max())
        keys = self.k.data[:, :, first * self.page : last * self.page]
        position = torch.arange(first * self.page, last * self.page, device=keys.device)
        mask = position < devices.put(seen, keys.device)[:, None]
        summaries = self.summary(
            keys.view(*keys.shape[:2], -1, self.page, keys.shape[-1]),
            mask.view(len(mask), 1, -1, self.page, 1),
        )
        size = self.summaries.data.shape[-1]
        if summaries.shape[-1] != size:
            own = f"super().__init__(geometry, backend, size={summaries.shape[-1]})"
            allowed = f"{size}, or `{own}` in {type(self).__name__}.__init__"
            raise InvalidValue("summary", f"{summaries.shape[-1]} numbers a page", allowed)
        self.summaries.data[:, :, first:last] = summaries

    def choose(self, q: Tensor, step: Step) -> Choice:
        def ends() -> tuple[Counts, tuple[Tensor, Tensor]]:
            """How many pages are before each row's last one, (B,); that page, and its tokens."""
            last = self.pages(step.seen) - 1
            tokens = step.tensor(step.seen - last * self.page)
            return last, (step.tensor(last)[:, None], tokens[:, None])

        others, last = step.memo(("last page", self.page), ends)
        competing = step.holding(others, ("pages", self.page))
        pages, counts = self.geometry.engine.best_pages(
            self.products(q), self.summaries.data, competing, self.quota - 1, last, self.page
        )
        return Choice(pages, counts > 0, counts)

    def crop(self, rows: Counts, seen: Counts) -> None:
        """Forget all but the first seen[i] tokens of row rows[i], in the summaries too."""
        cut, device = seen % self.page > 0, self.geometry.device
        self.renew(*(torch.as_tensor(x[cut], device=device) for x in (rows, seen)))

    def reads(self, seen: Counts) -> Counts:
        pages, quotas = self.pages(seen), self.quotas(seen)
        full = (quotas - 1) * self.page
        return np.where(pages <= quotas, seen, full + seen - (pages - 1) * self.page)

    def overhead(self, seen: Counts) -> Counts:
        """The summaries in keys' worth."""
        pages, g = self.pages(seen), self.geometry
        summaries = -(-pages * self.summaries.width // (g.D * g.dtype.itemsize)) * g.Hkv
        return np.where(pages <= self.quotas(seen), 0, summaries)

    def row_bytes(self, seen: Counts) -> Counts:
        known = self.summaries.data
        summary_bytes = self.pages(seen) * (known.shape[1] * known.shape[3] * known.dtype.itemsize)
        return super().row_bytes(seen) + summary_bytes
