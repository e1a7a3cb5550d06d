"""Oracle of `raas`: pages with stamps of when they last mattered; the oldest stamp goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer, Slot


class RaaSLayer(Layer):
    """Reads everything it holds; drops whole pages, per KV head, the prompt's never.

    A decode step stamps the pages whose largest probability is in the top half, or above alpha, and
    the current one. A prefill stamps the pages of its tokens.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        page: int = 16,
        alpha: float | None = None,
        keep_prompt: bool | int = True,
        gqa: str = "max",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.page, self.alpha = budget, page, alpha
        self.keeps, self.gqa = keep_prompt, gqa
        self.stamps: list[dict[int, int]] = [{} for _ in range(self.Hkv)]  # by page held
        self.prompt_pages: set[int] = set()
        self.decoding = False

    def forward(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        first, after = self.n, self.n + len(q)
        self.decoding = len(q) == 1 and first > 0
        touched = {position // self.page for position in range(first, after)}
        for j in range(self.Hkv):
            for page in touched:
                self.stamps[j][page] = after
        if not self.decoding:
            stays = after if self.keeps is True else min(after, self.keeps)
            self.prompt_pages |= {page for page in touched if page * self.page < stays}
            protected = len(self.prompt_pages) * self.page
            if self.keeps and protected > self.budget - self.page:
                raise ValueError(f"prompt pages hold {protected} tokens, budget {self.budget}")
        return super().forward(q, k, v)

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        del query
        for slot, p in zip(seen, probabilities, strict=True):
            slot.score[h % self.G] = p

    def step(self, q: np.ndarray) -> np.ndarray:
        out = super().step(q)
        for j in range(self.Hkv):
            for page in self.refreshed(j):
                self.stamps[j][page] = self.n
        return out

    def refreshed(self, j: int) -> list[int]:
        """Pages which the current query marked important, for KV head j."""
        pages = sorted(self.stamps[j])
        scores = np.array(
            [
                self.reduce(
                    np.max(
                        [s.score for s in self.slots[j] if s.position // self.page == page], axis=0
                    ),
                    self.gqa,
                )
                for page in pages
            ]
        )
        if self.alpha is None:
            return [
                pages[i] for i in self.best(scores, max(1, len(pages) // 2), probabilities=True)
            ]
        self.margin = min(self.margin, float(np.abs(scores / self.alpha - 1).min()))
        return [page for page, score in zip(pages, scores, strict=True) if score > self.alpha]

    def cut(self) -> None:
        filled = self.n // self.page  # pages from here on are still being filled
        for j in range(self.Hkv):
            if len(self.slots[j]) < self.budget:
                continue
            while len(self.slots[j]) > self.budget - self.page + self.n % self.page:
                candidates = [
                    page
                    for page in self.stamps[j]
                    if page < filled and not (self.keeps and page in self.prompt_pages)
                ]
                gone = min(candidates, key=lambda page: (self.stamps[j][page], page))
                del self.stamps[j][gone]
                self.slots[j] = [s for s in self.slots[j] if s.position // self.page != gone]
