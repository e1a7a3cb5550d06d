"""Base class of methods that keep all tokens and choose the pages a decode query reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attention.core import devices
from attention.core.kernels import group
from attention.core.step import Counts, DeviceStep, HostNumber, Step
from attention.engines import QKV, gpu
from attention.errors import InvalidValue
from attention.layers.layer import Geometry, KeepAll, Layer, Method, row_lists


@dataclass(frozen=True)
class Choice:
    """Pages one decode query reads."""

    # Page numbers, each at most once, (B, H, U); H is 1, Hkv or Hq: one set per layer, KV head or
    # query head.
    pages: Tensor
    live: Tensor  # False where an entry only fills up the row, (B, H, U)
    counts: Tensor | None = None  # tokens on each page, where a method knows them, (B, H, U)

    def each(self, change: Callable[[Tensor], Tensor]) -> Choice:
        """All of it, changed alike."""
        counts = None if self.counts is None else change(self.counts)
        return Choice(change(self.pages), change(self.live), counts)

    def mask(self, pages: int) -> Tensor:
        """Which of so many pages are read, (B, H, pages)."""
        hit = self.live.new_zeros((*self.pages.shape[:2], pages), dtype=torch.int8)
        return hit.scatter_add_(2, self.pages, self.live.to(torch.int8)) > 0


class Choosing(Layer):
    """A decode query reads all, or chosen pages of `page` tokens; a device step leaves `traces`."""

    page: int
    _chosen: Choice | None = None
    longest_then = 0  # tokens of the longest row when pages were chosen

    @property
    def chosen(self) -> Choice | None:
        """What the last decode query read; None where it read all."""
        if self._chosen is None and self.traces:
            rows = len(next(iter(self.state.values())).data)
            table, read = (x[:rows] for x in self.traces)
            first = torch.arange(table.shape[2], device=table.device) * self.page
            counts = (read[..., None] - first).clamp_(0, self.page)
            self._chosen = Choice(table.long().masked_fill(counts == 0, 0), counts > 0, counts)
        return self._chosen

    @chosen.setter
    def chosen(self, choice: Choice | None) -> None:
        self._chosen, self.traces = choice, ()

    def select(self, index: Tensor) -> None:
        chosen = self.chosen  # of the rows as they are
        super().select(index)
        if chosen is not None:
            self.chosen = chosen.each(lambda x: x.index_select(0, index))

    def settle(self, step: Step) -> tuple[()]:
        self._chosen, self.longest_then = None, step.longest
        return ()


class Selecting(Choosing, KeepAll):
    """Everything is kept; a decode query reads `quota` pages of `page` tokens.

    While all pages of all rows fit, attention is dense and nothing is chosen. A method answers
    `choose`, and updates what it knows of the keys in `notice`. Without a budget it always chooses.
    What was read is counted in the choice, but for sets of KV heads where a method answers `reads`.
    One that `hands_on` chooses for the `Reading` layers behind it, too, and with `reads_all` for
    them alone.
    """

    # Whether `Reading` layers behind it, up to the next that does so, read what it chose.
    hands_on = False
    # Where `step` finds the new token, as in `gpu.Store`: `selected` stores it, but for "paged".
    place: ClassVar[str] = "table"
    scaling = 1.0  # of the queries that `choose` is handed

    def __init__(self, geometry: Geometry, backend: Method, page: int = 1) -> None:
        super().__init__(geometry, backend, page)
        self.page, self.quota = page, (self.budget or 0) // page
        # What a choice can be handed on between: layers of equal pages and heads.
        self._sets = page, geometry.Hq, geometry.Hkv
        self.share: float | None = getattr(backend, "share", None)
        self.least = (getattr(backend, "least", None) or 0) // page

    @abstractmethod
    def choose(self, q: Tensor, step: Step) -> Choice:
        """Pages to read, where some row has more than are allowed.

        Args:
            q: (B, Hkv, G, D), scaled.
        """

    def hand_on(self, choice: object, step: Step | gpu.DeviceCounts) -> None:
        """Let the `Reading` layers behind this one, in this forward, read what it chose."""
        step.handed = self._sets, choice

    def handed(self, step: Step | gpu.DeviceCounts) -> Any:
        """What the last layer handed on in this forward, for `Reading` layers.

        Raises:
            InvalidValue: nothing, or by a layer of other pages or heads.
        """
        sets, choice = step.handed or (None, None)
        if sets != self._sets:
            allowed = f"a layer before it that hands on a choice of page, Hq, Hkv = {self._sets}"
            raise InvalidValue(f"choice read by layer {self.geometry.index}", sets, allowed)
        return choice

    def notice(self, k: Tensor, step: Step) -> None:
        """Take in the keys of this forward, already stored; k is (B, Hkv, T, D)."""

    def pages(self, seen: Counts) -> Counts:
        """Pages begun, (B,)."""
        return -(-seen // self.page)

    def dense(self, step: Step) -> bool:
        if self.share is None:
            return step.longest <= self.quota * self.page
        return bool((self.pages(step.seen) <= self.quotas(step.seen)).all())

    def quotas(self, seen: Counts) -> Counts:
        """Pages that decode queries read of rows that have more, (B,)."""
        if self.share is None:
            return np.full_like(seen, self.quota)
        wanted = np.rint(seen * self.share / self.page).astype(np.int64)
        return np.clip(wanted, self.least, self.quota)

    def choose_shares(self, q: Tensor, step: Step) -> Choice:
        """`choose` by the quota of each row: once for all rows that have the same."""
        if self.share is None:
            return self.choose(q, step)
        quotas, most, choices = self.quotas(step.seen), self.quota, []
        sizes = np.unique(quotas)
        for size in sizes.tolist():
            self.quota = size
            choices.append(self.choose(q, step))
        self.quota = most
        width = max(choice.pages.shape[2] for choice in choices)
        of, rows = step.tensor(np.searchsorted(sizes, quotas)), torch.arange(step.rows)

        def own(parts: Sequence[Tensor]) -> Tensor:
            """Of each row its own part, filled up."""
            wide = [functional.pad(x, (0, width - x.shape[2])) for x in parts]
            return torch.stack(wide)[of, rows.to(of.device)]

        known = [choice.counts for choice in choices if choice.counts is not None]
        pages, live = own([x.pages for x in choices]), own([x.live for x in choices])
        return Choice(pages, live, own(known) if known else None)

    def obstacle(self) -> str | None:
        return super().obstacle() if self.share is None else "reads a share of lengths of the host"

    def check(self, step: Step) -> None:
        self.check_budget(step.longest if self.dense(step) else self.quota * self.page)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        assert self.store is not None
        if self.reads_all and not self.hooked and not counts.dense:
            splits = gpu.attend_splits(counts, self.store, q, k, v, scaling, logits=True)
            self.hand_on(self.pick(splits, counts), counts)
            return gpu.join_splits(counts, splits)
        answer = self.answered if self.hooked else self.selected
        table, read = answer(q, k, v, scaling, counts)
        if table is not None and self.hands_on:
            self.hand_on((table, read), counts)
        if table is None or read is None or self.reads_all:
            return gpu.attend(counts, self.store, q, k, v, scaling)
        self.traces = table, read
        store = replace(self.store, place=self.place)
        pages = gpu.Pages(store.keys, store.values, table, read, self.page)
        return gpu.attend(counts, store, q, k, v, scaling, pages)

    def selected(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Store the new token, and the pages to read as `gpu.Pages` has them; Nones where dense."""
        if counts.dense or self.store is None:
            return None, None
        if self.place == "paged":
            table, read = self.handed(counts)
            return table, read
        splits = gpu.attend_splits(counts, self.store, q, k, v, scaling, logits=True)
        return self.pick(splits, counts)

    def pick(self, splits: gpu.Splits, counts: gpu.DeviceCounts) -> tuple[Tensor, Tensor]:
        """The pages to read, from the logits of all slots."""
        raise NotImplementedError(self.geometry.method)

    def answered(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """`selected` by hooks."""
        step, D, self.scaling = DeviceStep(counts.seen[: len(q)]), q.shape[3], scaling
        with self.hooking(len(q)):
            at = step.past_tokens[:, None, None, None].expand(-1, k.shape[1], 1, D)
            for slots, new in ((self.k, k), (self.v, v)):
                slots.data.scatter_(2, at, new)
            self.notice(k, step)
            if counts.dense:
                return None, None
            return self.table(group(q, k.shape[1], scaling), step, counts)

    def table(
        self,
        q: Tensor,
        step: DeviceStep,
        counts: gpu.DeviceCounts | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """What `choose` answers, as `gpu.Pages` has it."""
        choice, Hkv = self.choose(q, step), self.geometry.Hkv
        if choice.counts is not None:
            raise HostNumber("Choice.counts, where a step reads all tokens of a page")
        self.check_budget(choice.pages.shape[2] * self.page)
        filled = self.counts(choice, step.seen_tokens)
        # What is not read comes behind all pages, where nobody looks.
        pages = choice.pages.masked_fill(filled == 0, torch.iinfo(torch.int32).max).sort().values
        both = (x.to(torch.int32) for x in (pages, filled.sum(-1)))
        table, read = (x.expand(-1, max(x.shape[1], Hkv), *x.shape[2:]).contiguous() for x in both)
        return table, read

    def rehearse(self, step: DeviceStep) -> None:
        g = self.geometry
        self.notice(self.k.data[:, :, :1], step)
        self.table(self.k.data.new_zeros(step.rows, g.Hkv, g.G, g.D), step)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        g, self.scaling = self.geometry, scaling
        self.append(k, v, step)
        self.notice(k, step)
        self.chosen = None
        if self.dense(step):
            self.check_budget(step.longest)
            return self.attend_all(q, scaling, step)
        scaled = group(q, g.Hkv, scaling)
        choice = self.choose_shares(scaled, step)
        if self.hands_on:
            self.hand_on(choice, step)
        if self.reads_all:
            return self.attend_all(q, scaling, step)
        if choice.pages.shape[1] == 1:
            choice = choice.each(lambda x: x.expand(-1, g.Hkv, -1))
        self.chosen, self.longest_then = choice, step.longest
        self.check_budget(choice.pages.shape[2] * self.page)
        # G query heads share a KV head's set, or each has its own.
        query = scaled.view(step.rows, choice.pages.shape[1], -1, g.D)
        counts = choice.counts
        counts = self.counts(choice, step.seen_tokens) if counts is None else counts * choice.live
        qkv = QKV(query, self.k.data, self.v.data, g.sink_logits)
        return g.engine.attend_pages(qkv, choice.pages, counts, self.page).out

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        out = super().prefill(q, k, v, scaling, step)
        self.notice(k, step)
        self.chosen = None
        return out

    def counts(self, choice: Choice, seen: Tensor) -> Tensor:
        """Tokens to read of each chosen page, (B, H, U)."""
        filled = (seen[:, None, None] - choice.pages * self.page).clamp_(0, self.page)
        return filled * choice.live

    def read_pages(self, chosen: Choice, longest: int) -> Tensor:
        """Which pages a choice reads of rows of at most so many tokens, (B, H, P)."""
        # A row replaced since the choice may have been longer than all that are left.
        return chosen.mask(-(-max(self.longest_then, longest) // self.page))

    def measured(self, seen: Counts) -> Tensor | None:
        by_length = type(self).reads is not Selecting.reads
        if by_length and self.traces and self.traces[0].shape[1] == self.geometry.Hkv:
            return None
        if self.chosen is None:
            return None
        pages = self.chosen.pages
        if by_length and pages.shape[1] == self.geometry.Hkv:
            return None
        seen_tokens = devices.put(seen, pages.device)
        counted = self.counts(self.chosen, seen_tokens).sum(-1).double()  # of each set, (B, H)
        # What several heads of a group read costs once.
        hit = self.read_pages(self.chosen, int(seen.max()))
        read = hit.view(len(hit), self.geometry.Hkv, -1, hit.shape[2]).any(2).sum(1)
        first = torch.arange(hit.shape[2], device=pages.device) * self.page
        cost = (read * (seen_tokens[:, None] - first).clamp_(0, self.page)).sum(1)
        cost = cost + devices.put(self.overhead(seen), pages.device)
        return torch.stack((counted.amax(1), counted.sum(1) / counted.shape[1], cost.double()))

    def read_positions(self, row: int, seen: int) -> Tensor:
        if self.chosen is None:
            return self.kept_positions(row, seen)
        read = self.read_pages(self.chosen, seen)[row].repeat_interleave(self.page, -1)[:, :seen]
        return row_lists(torch.arange(seen, device=read.device).expand(read.shape), read)


class Reading(Selecting):
    """Reads what the last layer before it that hands its choice on chose in the same forward.

    Where columns of a forward are decode queries each has a step, and a choice, of its own.
    """

    on_device = True
    place = "paged"

    def choose(self, q: Tensor, step: Step) -> Choice:  # noqa: ARG002
        choice: Choice = self.handed(step)
        return choice


class Likeliest(Selecting):
    """Reads the current token and the others with most probability; pages of one token."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Any) -> None:
        super().__init__(geometry, backend)
        self.gqa: str = backend.gqa

    def choose(self, q: Tensor, step: Step) -> Choice:
        # A mean ranks as its sum does, without the rounding of a division.
        slots, counts = self.geometry.engine.likeliest(
            self.looking(q), step.occupancy(), self.quota, largest=self.gqa == "max"
        )
        return Choice(slots, counts > 0, counts)

    def pick(self, splits: gpu.Splits, counts: gpu.DeviceCounts) -> tuple[Tensor, Tensor]:
        table, read = gpu.choices().select(
            splits, counts.seen, counts.live, self.quota - 1, largest=self.gqa == "max"
        )
        return table, read

    def looking(self, q: Tensor) -> QKV:
        """The query and all it may read."""
        return QKV(q, self.k.data, self.v.data, self.geometry.sink_logits)

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.quotas(seen))
