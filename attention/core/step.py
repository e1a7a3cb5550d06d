"""What one forward adds to each row: computed once, shared by all layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention.core import devices

Counts = npt.NDArray[np.int64]
X = TypeVar("X")


class Occupancy:
    """How many slots of each row hold a token, from the first on, (B,), and the `most` of these."""

    def __init__(self, counts: Counts, device: torch.device) -> None:
        self.counts, self.device = counts, device
        self.most = int(counts.max())
        self._halves: dict[int, tuple[Tensor, Tensor]] = {}

    @cached_property
    def tensor(self) -> Tensor:
        """The counts on the device, (B,)."""
        return devices.put(self.counts, self.device)

    @cached_property
    def hidden(self) -> Tensor | None:
        """Which of the slots 0..most lie behind those held, (B, 1, 1, S); None when none do."""
        if (self.counts == self.most).all():
            return None
        slots = torch.arange(self.most, device=self.device)
        return (slots >= self.tensor[:, None])[:, None, None]

    def halves(self, page: int) -> tuple[Tensor, Tensor]:
        """Which pages of slots a row has not, and which places are the better half of those it has.

        (B, P) each, for as many pages as the most slots fill; the half of one page is that page.
        """
        if page not in self._halves:
            number, pages = np.arange(-(-self.most // page)), -(-self.counts // page)[:, None]
            missing, better = number >= pages, number < np.maximum(pages // 2, 1)
            put = devices.put
            self._halves[page] = put(missing, self.device), put(better, self.device)
        return self._halves[page]


@dataclass(frozen=True, eq=False)
class Cut:
    """Rows that are cut together."""

    rows: Counts  # (R,)
    size: int  # tokens that each holds, S
    most: int  # tokens that each keeps
    window: int  # newest tokens whose queries give the scores
    # These among all remembered, as in `Slots.flat`, oldest first, (R, Hq * window).
    queries: Counts
    spared: Counts  # first tokens of each that stay, (R,)

    def inputs(self, places: int) -> Counts:
        """Rows, spared tokens, number of the row in the cut and queries of P `places`, P each.

        Behind the rows the last one is repeated.
        """
        of = np.minimum(np.arange(places), len(self.rows) - 1)
        return np.concatenate((self.rows[of], self.spared[of], of, self.queries[of].reshape(-1)))


class Step:
    """One forward of T columns, left padded: row r brings new[r] real tokens, its last columns.

    Lengths live on the host as well, so that deciding what to do never waits for the device.

    Args:
        past: real tokens each row had seen before, (B,).
        new: real tokens each row brings, (B,).
        prompt: how many of each row's first tokens are its prompt, (B,); by default those of its
            first forward.
        whole: how many of each row's first tokens are read as a prompt, (B,); the others are decode
            queries. By default all, but for a single column on top of something.

    Attributes:
        decode: one column, in which every row's token is a decode query.
        behind: where it is not, how many newest tokens of each row are decode queries, (B,).
        handed: what the last layer chose that `hands_on`; see `Selecting.hand_on`.
        scope: the budget of the layer that runs: what layers share may follow from it.
    """

    scope: int | None = None

    def __init__(
        self,
        past: Counts,
        new: Counts,
        T: int,
        device: torch.device,
        prompt: Counts | None = None,
        whole: Counts | None = None,
    ) -> None:
        self.rows, self.T, self.device = len(past), T, device  # B rows
        self.decode, behind = T == 1 and bool(past.any()), np.zeros_like(new)
        if whole is not None:
            behind = np.maximum(past + new - np.maximum(whole, past), 0)
            # A first token sees itself alone, however it is read.
            self.decode = self.decode and not (new - behind)[past > 0].any()
        self.idle: list[int] = []
        if self.decode:
            # A row that is still all padding writes a token nobody reads and is emptied afterwards;
            # this keeps a one-token step one vectorised step for all rows.
            self.idle = [int(r) for r in np.flatnonzero(new == 0)]
            new, behind = np.ones_like(new), np.zeros_like(new)
        self.behind = behind
        self.past, self.new, self.seen = past, new, past + new
        self.prompt = np.where(past == 0, self.seen, 0) if prompt is None else prompt
        self.longest = int(self.seen.max())
        self.padded = bool((new < T).any())
        self.handed: tuple[Hashable, Any] | None = None
        self._memos: dict[Hashable, Any] = {}

    def decodes(self, exact_until: float) -> bool:
        """Whether tokens of a longer forward must be read as decode queries, one by one."""
        return bool((self.seen[self.behind > 0] > exact_until).any())

    @cached_property
    def turns(self) -> list[tuple[list[int], list[tuple[slice, Step]]]]:
        """Rows with as many decode queries each, and the steps that they are read in.

        First the columns of prompts, at once, then the others one by one.
        """
        groups, reading = [], self.new > self.behind
        for behind, reads in sorted(set(zip(self.behind.tolist(), reading.tolist(), strict=True))):
            rows = np.flatnonzero((self.behind == behind) & (reading == reads))
            past, read = self.past[rows], self.new[rows] - behind
            prompt, first = self.prompt[rows], self.T - behind
            steps = []
            if reads:
                whole = Step(past, read, first, self.device, prompt, past + read)
                steps.append((slice(0, first), whole))
            for n in range(behind):
                part = Step(past + read + n, np.ones_like(past), 1, self.device, prompt)
                steps.append((slice(first + n, first + n + 1), part))
            groups.append((rows.tolist(), steps))
        return groups

    def memo(self, key: Hashable, make: Callable[[], X]) -> X:
        """`make()`, computed by the first layer that asks and handed to all of its budget."""
        place = self.scope, key
        if place not in self._memos:
            self._memos[place] = make()
        value: X = self._memos[place]
        return value

    def tensor(self, counts: Counts | npt.NDArray[np.bool_] | list[int]) -> Tensor:
        """Host numbers on the device."""
        return devices.put(counts, self.device)

    def inputs(self, cut: Cut) -> Tensor:
        """What `Layer.shorten_together` needs of a cut, on the device."""
        return self.memo(cut, lambda: self.tensor(cut.inputs(len(cut.rows))))

    @property
    def past_tokens(self) -> Tensor:
        """`past` on the device, (B,)."""
        return self.memo("past", lambda: self.tensor(self.past))

    @property
    def seen_tokens(self) -> Tensor:
        """`seen` on the device, (B,)."""
        return self.memo("seen", lambda: self.past_tokens + self.tensor(self.new))

    def flat(self, slot: Counts, H: int, capacity: int, key: Hashable) -> Tensor:
        """Index (B*H,) into `Slots.flat` of one slot per row, the same in all H heads."""
        return self.memo(
            ("flat", key, H, capacity),
            lambda: self.tensor(np.arange(self.rows * H) * capacity + slot.repeat(H)),
        )

    def occupancy(self, limit: int | None = None) -> Occupancy:
        """What rows hold that keep all they see, this forward's tokens included."""
        return self.holding(self.seen if limit is None else np.minimum(self.seen, limit), limit)

    def holding(self, counts: Counts, key: Hashable) -> Occupancy:
        """Rows that hold so many slots, (B,)."""
        return self.memo(("held", key), lambda: Occupancy(counts, self.device))

    def last_visible(self, before: Counts, key: Hashable) -> Tensor:
        """Newest slot each query may see when the new tokens follow `before` held ones.

        (B, T), or (1, T) when all rows agree. A padding query sees slot 0, so that it stays
        finite; nobody reads what it computes.
        """

        def make() -> Tensor:
            first = before + self.new - self.T
            if (first == first[0]).all():
                first = first[:1]
            columns = torch.arange(self.T, device=self.device)
            return (self.tensor(first)[:, None] + columns).clamp_min_(0)

        return self.memo(("last", key), make)

    def real(self) -> Tensor | None:
        """Which columns are real tokens, (B, T); None when all are."""
        if not self.padded:
            return None
        columns = torch.arange(self.T, device=self.device)
        return self.memo("real", lambda: columns >= self.tensor(self.T - self.new)[:, None])

    def generated(self) -> Tensor:
        """Which columns are real tokens behind their row's prompt, (B, T)."""
        behind = np.maximum(self.prompt, self.past)[:, None]
        return self.memo("generated", lambda: self.positions() >= self.tensor(behind))

    def positions(self) -> Tensor:
        """Position of each column's token, (B, T); before the past for padding."""
        first, columns = self.past + self.new - self.T, torch.arange(self.T, device=self.device)
        return self.memo("positions", lambda: self.tensor(first)[:, None] + columns)

    def join(self, stored: Tensor | None, counts: Counts, new: Tensor, fill: float = 0.0) -> Tensor:
        """The slots that rows store, counts[r] each, and their real new tokens, without gaps.

        (B, H, C, ...) and left padded (B, H, T, ...) to (B, H, max(counts + new), ...); `new`
        itself where nothing is stored nor padded.
        """
        widest, most = int((counts + self.new).max()), int(counts.max())
        if most == 0 and not self.padded:
            return new
        out = new.new_full((*new.shape[:2], widest, *new.shape[3:]), fill)
        if stored is not None and most:
            out[:, :, :most] = stored[:, :, :most]
        self.write(out, counts, new)
        return out

    def write(self, out: Tensor, counts: Counts, new: Tensor) -> None:
        """Write the real new tokens of each row into `out` from slot counts[r] on."""
        if not self.padded and (counts == counts[0]).all():
            out[:, :, int(counts[0]) : int(counts[0]) + self.T] = new
            return
        # Rows differ in length only in a prefill, where a loop over rows costs little.
        for r, (start, n) in enumerate(zip(counts.tolist(), self.new.tolist(), strict=True)):
            out[r, :, start : start + n] = new[r, :, self.T - n :]


class HostNumber(RuntimeError):  # noqa: N818 - it names what was asked for
    """A hook asked for a number of the host, which a step that a GPU replays would repeat."""


class DeviceStep(Step):
    """A decode step whose numbers are on the device alone, as hooks see it where it is captured.

    Args:
        past: tokens that each row had seen before, (R,).
        known: what else the device knows, by its key in `memo`.

    Raises:
        HostNumber: anything else is asked for.
    """

    def __init__(self, past: Tensor, known: dict[Hashable, Any] | None = None) -> None:
        self.T, self.decode, self.padded, self.device = 1, True, False, past.device
        self.rows = len(past)
        past = past.long()
        known = {"past": past, "seen": past + 1, **(known or {})}
        self._memos = {(None, key): value for key, value in known.items()}

    def tensor(self, counts: object) -> NoReturn:  # noqa: ARG002
        raise HostNumber("step.tensor, a copy of host numbers")

    def __getattr__(self, name: str) -> NoReturn:
        raise HostNumber(f"step.{name}, a number of the host")
