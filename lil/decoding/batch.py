"""Rows that are decoded together, in one cache and one ledger, and steps on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attention import AttentionCache, RowStats
from attention.core import devices
from lil.decoding.choosing import BatchPenalties, Chooser
from lil.decoding.lane import Lane
from lil.decoding.ledger import Ledger, StepCost
from lil.decoding.sampling import NotFiniteError
from lil.hidden_states import HiddenStates
from lil.penalties import Penalty


class StepResult(NamedTuple):
    """Tokens and costs of a step, on the host; rows may have ended since."""

    rows: list[Lane]
    tokens: list[int]
    cost: StepCost | None
    states: HiddenStates


class Flight:
    """A launched step whose results are on their way to the host.

    `stats` is None where prompts were read; `checked` is (B,).
    """

    def __init__(
        self,
        rows: Sequence[Lane],
        checked: Tensor,
        stats: RowStats | None,
        states: HiddenStates,
    ) -> None:
        self.rows = list(rows)
        self._tokens = devices.fetch(checked)
        self._stats = None if stats is None else _fetched(stats)
        self._states = states.snapshot(devices.fetch)
        self._there: torch.cuda.Event | None = None
        if checked.device.type == "cuda":
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record(torch.cuda.current_stream(checked.device))

    @property
    def over(self) -> bool:
        """Whether all its rows have ended, so that nobody asks what it brings."""
        return all(row.finish is not None for row in self.rows)

    def land(self) -> StepResult:
        """What it brought; waits until the device has made this step."""
        if self._there is not None:
            self._there.synchronize()
        tokens: list[int] = self._tokens.tolist()
        if min(tokens) < 0:
            pairs = zip(self.rows, tokens, strict=True)
            if any(token < 0 and row.finish is None for row, token in pairs):
                raise NotFiniteError
        cost = None if self._stats is None else StepCost.of(self._stats)
        return StepResult(self.rows, tokens, cost, self._states)


def _fetched(stats: RowStats) -> RowStats:
    """Statistics with all numbers on their way to the host; most are there."""
    values = {column.name: getattr(stats, column.name) for column in fields(stats)}
    away = {name: x for name, x in values.items() if x is not None and x.device.type != "cpu"}
    return replace(stats, **{name: devices.fetch(x) for name, x in away.items()}) if away else stats


class Batch:
    """Rows under one backend; a row's index is its place in cache, ledger and newest."""

    def __init__(
        self, cache: AttentionCache, device: torch.device, penalties: Sequence[Penalty]
    ) -> None:
        self.cache = cache
        self.rows: list[Lane] = []
        self.ledger = Ledger(0)
        self.penalties = BatchPenalties(penalties)
        self.chooser: Chooser | None = None  # where graphs hold what follows the scores
        self.flight: Flight | None = None  # launched, and not looked at so far
        self.newest: Tensor = torch.zeros(0, dtype=torch.int64, device=device)
        # A row's share of all decode steps, had it been here from the start.
        self.seconds = 0.0
        # Detectors, meters and actions are timed after a step: the next one pays for them.
        self.unbilled = 0.0

    def bill(self, seconds: float) -> None:
        """One decode step, shared evenly."""
        self.seconds += (seconds + self.unbilled) / len(self.rows)
        self.unbilled = 0.0

    def bill_prompts(self, rows: Sequence[Lane], seconds: float) -> None:
        """One reading of newcomers' prompts, shared by tokens."""
        per_token = seconds / sum(len(row.prefix) for row in rows)
        for row in rows:
            row.prefill_sec = per_token * len(row.prompt_ids)
            row.started_at = self.seconds

    def charge(self, result: StepResult) -> None:
        """What a decode step cost; rows that had ended when it was made pay nothing."""
        if result.cost is None:
            return
        if result.rows == self.rows:  # lanes have no equality of their own: the same ones
            self.ledger.add(result.cost)
            return
        going = [i for i, row in enumerate(result.rows) if row.finish is None]
        places = [result.rows[i].place for i in going]
        self.ledger.add(result.cost.select(going), places)

    def add_rows(self, places: Sequence[int], cache: AttentionCache) -> None:
        """Put the rows of `cache`, whose prompts were read, at these ascending places."""
        there = len(self.rows)
        more = max(0, max(places) + 1 - len(self.newest))
        self.newest = torch.cat((self.newest, self.newest.new_zeros(more)))
        self.ledger.grow(more)
        self.ledger.admit(places, StepCost.of(cache.row_stats()))
        if cache is self.cache:
            return
        inside = [i for i, place in enumerate(places) if place < there]
        beyond = [i for i, place in enumerate(places) if place >= there]
        if inside:
            self.cache.replace_rows([places[i] for i in inside], cache, inside)
        if beyond:
            self.cache.append_rows(cache.clone(beyond))

    def keep(self, places: Sequence[int]) -> None:
        """Drop all rows but these."""
        self.rows = [self.rows[place] for place in places]
        for place, row in enumerate(self.rows):
            row.place = place
        self.ledger.select(places)
        self.newest = self.newest[list(places)]
        if self.rows:
            self.cache.select_rows(places)
        else:
            self.cache.reset()
            self.flight = None

    def take_over(self, row: Lane, other: Batch, cache: AttentionCache) -> None:
        """A row of another batch joins this one with its costs; `cache` holds its state."""
        # Copied: the next prompt's token is written to the place that this row leaves.
        newest = other.newest[row.place : row.place + 1].clone()
        column = other.ledger.column(row.place)
        row.started_at += self.seconds - other.seconds
        if self.rows:
            self.cache.append_rows(cache)
        else:
            self.cache = cache
        self.newest = torch.cat((self.newest, newest))
        self.ledger.append(column)
        row.place = len(self.rows)
        self.rows.append(row)
