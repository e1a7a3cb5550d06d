"""Base class of methods that know pages by a summary and choose them by a score."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from attention.core.kernels import logits, top
from attention.core.step import Counts, Step
from attention.errors import InvalidValue
from attention.layers.layer import Geometry, Method
from attention.layers.selecting import Choice, Selecting


class PagedMethod(Method, Protocol):
    """A backend with a parameter `page`."""

    @property
    def page(self) -> int: ...


class Paged(Selecting):
    """A decode query reads the last page and the budget // page - 1 others with the best score.

    A method answers two questions: `summary`, what is remembered of the keys of a page, and
    `score`, what a page is worth to a query; or `products`, where it is worth a product. Summaries
    are kept up to date at every token; pages begun by no token are never chosen, whatever their
    score; among equals the older page wins. The page a crop cuts through is summarised anew.

    Args:
        size: numbers remembered of a page, per KV head; as many as a key has by default.
        dtype: of summaries; that of keys by default.
    """

    def __init__(
        self,
        geometry: Geometry,
        backend: PagedMethod,
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

    def products(self, q: Tensor) -> Tensor | None:  # noqa: ARG002
        """Vectors of which a page is worth the largest product with its summary, (B, H, M, size).

        The engine then finds the pages without writing down what each is worth. None where worth is
        no such product.

        Args:
            q: (B, Hkv, G, D), scaled.

        Returns:
            H is Hkv or Hq: one set of pages per KV head or query head.
        """
        return None

    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        """What each page is worth to this query, (B, H, P); what `products` say by default.

        Args:
            q: (B, Hkv, G, D), scaled.
            summaries: (B, Hkv, P, size).

        Returns:
            H is 1, Hkv or Hq: one set of pages per layer, KV head or query head.
        """
        vectors = self.products(q)
        if vectors is None:
            raise NotImplementedError(f"{self.geometry.method}: score or products")
        B, Hkv, P, size = summaries.shape
        H, M = vectors.shape[1:3]
        each = logits(vectors.reshape(B * Hkv, -1, size), summaries.flatten(0, 1))
        return each.view(B, Hkv, H // Hkv, M, P).amax(3).flatten(1, 2)

    def alone(self, k: Tensor) -> Tensor | None:  # noqa: ARG002
        """What is remembered of pages of one key, (B, Hkv, 1, size).

        For methods that remember, number by number, the largest of what they would of each key:
        these need not look at a page's other keys again. None for all others.

        Args:
            k: (B, Hkv, 1, D).
        """
        return None

    def notice(self, k: Tensor, step: Step) -> None:
        self.summaries.fit(step.longest)
        if not step.decode:
            self.summarise(step.past, step.seen)
            return
        # Only the page of the new token changes.
        number = step.memo(("page", self.page), lambda: step.past // self.page)
        at = step.flat(number, k.shape[1], self.summaries.capacity, "summary")
        single = self.alone(k)
        if single is None:
            renewed = self.sized(self.renewed(step)).to(self.summaries.data.dtype)
            self.geometry.engine.put(self.summaries, at, renewed.view(*k.shape[:2], 1, -1))
        else:
            begun = step.memo(("begun", self.page), lambda: self.begun(step))
            self.geometry.engine.raise_to(self.summaries, at, single, begun)

    def begun(self, step: Step) -> Tensor | None:
        """Which rows begin a page, once for each KV head, (B * Hkv,); None for none."""
        first = step.past % self.page == 0
        if not first.any():
            return None
        return step.tensor(first.repeat(self.geometry.Hkv))

    def renewed(self, step: Step) -> Tensor:
        """Summaries (B * Hkv, size) of the newest pages, from their keys."""
        Hkv, D = self.geometry.Hkv, self.geometry.D
        pages = step.flat(step.past // self.page, Hkv, self.k.capacity // self.page, "page of keys")
        keys = self.k.flat.view(-1, self.page, D).index_select(0, pages)

        def new() -> Tensor:
            offset = torch.arange(self.page, device=step.device)
            mask = offset <= (step.past_tokens % self.page)[:, None]
            return mask[:, None, None, :, None]

        mask = step.memo(("tokens of the last page", self.page), new)
        return self.summary(keys.view(step.rows, Hkv, 1, self.page, D), mask).flatten(0, 2)

    def summarise(self, start: Counts, seen: Counts) -> None:
        """Compute the summaries of all pages that hold a token from start[r] on."""
        first, last = int(start.min()) // self.page, int(self.pages(seen).max())
        keys = self.k.data[:, :, first * self.page : last * self.page]
        position = torch.arange(first * self.page, last * self.page, device=keys.device)
        mask = position < torch.as_tensor(seen, device=keys.device)[:, None]
        summaries = self.summary(
            keys.view(*keys.shape[:2], -1, self.page, keys.shape[-1]),
            mask.view(len(mask), 1, -1, self.page, 1),
        )
        self.summaries.data[:, :, first:last] = self.sized(summaries)

    def sized(self, summaries: Tensor) -> Tensor:
        """The same summaries, checked to have as many numbers a page as the state."""
        size = self.summaries.data.shape[-1]
        if summaries.shape[-1] != size:
            allowed = (
                f"{size}, or `super().__init__(geometry, backend, size={summaries.shape[-1]})` in "
                f"{type(self).__name__}.__init__"
            )
            raise InvalidValue("summary", f"{summaries.shape[-1]} numbers a page", allowed)
        return summaries

    def scores(self, q: Tensor, compete: Counts, step: Step) -> Tensor:
        """What each page is worth, (B, H, P); -inf from page compete[r] of a row on."""
        pages = int(self.pages(step.seen).max())
        score = self.score(q, self.summaries.data[:, :, :pages])

        def make() -> Tensor:
            number = torch.arange(pages, device=step.device)
            return (number >= step.tensor(compete)[:, None])[:, None]

        return score.masked_fill(step.memo(("no page", pages), make), float("-inf"))

    def last_pages(self, step: Step) -> tuple[Tensor, Tensor]:
        """Each row's last page and the tokens on it, (B, 1) each."""

        def make() -> tuple[Tensor, Tensor]:
            last = self.pages(step.seen) - 1
            return step.tensor(last)[:, None], step.tensor(step.seen - last * self.page)[:, None]

        return step.memo(("last page", self.page), make)

    def choose(self, q: Tensor, step: Step) -> Choice:
        others = step.memo(("others", type(self), self.page), lambda: self.pages(step.seen) - 1)
        vectors = self.products(q)
        if vectors is not None:
            competing = step.holding(others, ("pages", self.page))
            known, always = self.summaries.data, self.last_pages(step)
            pages, counts = self.geometry.engine.pages_to_read(
                vectors, known, competing, self.quota - 1, always, self.page
            )
            return Choice(pages, counts > 0, counts)
        values, index = top(self.scores(q, others, step), self.quota - 1)
        H = index.shape[1]
        last = self.last_pages(step)[0][:, None].expand(-1, H, -1)
        live = torch.cat((values > float("-inf"), torch.ones_like(last, dtype=torch.bool)), -1)
        return Choice(torch.cat((index, last), dim=-1), live)

    def crop(self, rows: Counts, seen: Counts) -> None:
        """Forget all but the first seen[i] tokens of row rows[i], in the summaries too."""
        cut = seen % self.page > 0
        device, D = self.geometry.device, self.geometry.D
        row, page, rest = (
            torch.as_tensor(x[cut], device=device)
            for x in (rows, seen // self.page, seen % self.page)
        )
        keys = self.k.data.view(len(self.k.data), -1, self.k.capacity // self.page, self.page, D)
        mask = torch.arange(self.page, device=device) < rest[:, None]
        summaries = self.summary(keys[row, :, page][:, :, None], mask[:, None, None, :, None])
        self.summaries.data[row, :, page] = summaries[:, :, 0].to(self.summaries.data.dtype)

    def reads(self, seen: Counts) -> Counts:
        pages = self.pages(seen)
        full = (self.quota - 1) * self.page
        return np.where(pages <= self.quota, seen, full + seen - (pages - 1) * self.page)

    def overhead(self, seen: Counts) -> Counts:
        """The summaries in keys' worth."""
        pages, g = self.pages(seen), self.geometry
        summaries = -(-pages * self.summaries.data.shape[-1] // g.D) * g.Hkv
        return np.where(pages <= self.quota, 0, summaries)

    def row_bytes(self, seen: Counts) -> Counts:
        known = self.summaries.data
        summary_bytes = self.pages(seen) * (known.shape[1] * known.shape[3] * known.dtype.itemsize)
        return super().row_bytes(seen) + summary_bytes
