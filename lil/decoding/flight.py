"""One step on its way: the device has been given it, and the host has not looked yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attention import RowStats
from attention.core import devices
from lil.decoding.lane import Lane
from lil.decoding.ledger import Spent
from lil.decoding.sampling import NotFiniteError
from lil.hidden_states import HiddenStates


class Landed(NamedTuple):
    """What a step brought, on the host.

    Attributes:
        rows: it was made for; some may have ended since, and its numbers are not theirs.
        tokens: one a row.
        spent: what it cost each row; None where prompts were read.
        states: hidden states at the tokens it read.
    """

    rows: list[Lane]
    tokens: list[int]
    spent: Spent | None
    states: HiddenStates


class Flight:
    """A step that has been launched; what it computes is on its way to the host.

    Args:
        rows: it was made for.
        tokens: chosen, (B,).
        finite: whether their scores were finite, (B,).
        stats: what it cost; None where prompts were read.
        states: hidden states of its forward.
    """

    def __init__(
        self,
        rows: Sequence[Lane],
        tokens: Tensor,
        finite: Tensor,
        stats: RowStats | None,
        states: HiddenStates,
    ) -> None:
        self.rows = list(rows)
        # No token is below 0.
        self._tokens = devices.fetch(torch.where(finite, tokens, -1))
        self._stats = None if stats is None else _fetched(stats)
        self._states = states.held(devices.fetch)
        self._there: torch.cuda.Event | None = None
        if tokens.device.type == "cuda":
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record(torch.cuda.current_stream(tokens.device))

    @property
    def over(self) -> bool:
        """Whether all its rows have ended, so that nobody asks what it brings."""
        return all(row.finish is not None for row in self.rows)

    def land(self) -> Landed:
        """What it brought; waits until the device has made this step.

        Raises:
            FloatingPointError: scores of a row that goes on are not finite.
        """
        if self._there is not None:
            self._there.synchronize()
        tokens: list[int] = self._tokens.tolist()
        for row, token in zip(self.rows, tokens, strict=True):
            if token < 0 and row.finish is None:
                raise NotFiniteError
        spent = None if self._stats is None else Spent.of(self._stats)
        return Landed(self.rows, tokens, spent, self._states)


def _fetched(stats: RowStats) -> RowStats:
    """Statistics with all numbers on their way to the host; most are there."""
    held = {one.name: getattr(stats, one.name) for one in fields(stats)}
    away = {name: x for name, x in held.items() if x is not None and x.device.type != "cpu"}
    return replace(stats, **{name: devices.fetch(x) for name, x in away.items()}) if away else stats
