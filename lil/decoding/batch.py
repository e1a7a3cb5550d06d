"""Rows that are decoded together: one cache, one ledger, one newest token each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention import AttentionCache
from lil.decoding.lane import Lane
from lil.decoding.ledger import Ledger
from lil.decoding.penalised import Penalised
from lil.penalties import Penalty


class Batch:
    """Rows under one backend; a row's index is its place in cache, ledger and newest.

    Args:
        cache: of the backend, empty.
        device: of the model.
        penalties: of all rows.
    """

    def __init__(
        self, cache: AttentionCache, device: torch.device, penalties: Sequence[Penalty]
    ) -> None:
        self.cache = cache
        self.rows: list[Lane] = []
        self.ledger = Ledger(0)
        self.penalised = Penalised(penalties)
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

    def welcome(self, places: Sequence[int], cache: AttentionCache) -> None:
        """Newcomers' states and costs take these places, some of them behind the rows there are.

        Args:
            places: of the rows of `cache`; new places ascend, and none is left out.
            cache: with their prompts read; the batch's own where it was empty.
        """
        there = len(self.rows)
        more = max(0, max(places) + 1 - len(self.newest))
        self.newest = torch.cat((self.newest, self.newest.new_zeros(more)))
        self.ledger.grow(more)
        self.ledger.admit(places, cache.row_stats())
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

    def take_over(self, row: Lane, other: Batch, cache: AttentionCache) -> None:
        """A row of another batch joins this one, `cache` holding its state; it stays there too.

        Its costs go on from what they were.
        """
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
