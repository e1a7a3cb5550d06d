"""Cycle: the newest tokens are one block, repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attention.errors import check_int
from lil.detectors._contract.base import Detector, Verdict, Watcher


@dataclass(frozen=True)
class Cycle(Detector):
    """Stops when the newest tokens are one block repeated exactly, as vLLM's repetition detection.

    The block may have any length from `min_period` to `max_period` tokens and must stand `repeats`
    times back to back, the last time at the very end. Where several periods fit, the evidence names
    the shortest. Tokens are compared by their bytes.

    Where we differ from vLLM (`repetition_detection`): its three parameters have no defaults; and
    `min_tokens` is ours, because four equal tokens are a loop in a proof and a line in a table.

    Twice is enough: an honest second pass is hardly ever the first, token for token, and a loop is.
    `repeats` and `min_tokens` were chosen on the reasoner that ships; what they stop of ordinary
    files `scripts/check_ordinary.py` tells.

    What it does not see: a block that changes at all, be it by a counter or a word. What it may
    stop though it should not: tables whose rows are the same.

    Args:
        min_period, max_period: lengths of the block, in tokens.
        repeats: times the block must stand there.
        min_tokens: tokens that all repeats must take together.
        on_stop: what follows; not `regenerate`: where a loop began is known only
            when its repeats have been read, and a state that dropped tokens cannot go back to it.

    Raises:
        InvalidValue: a number that is no integer, a period below 1, max_period below min_period,
            repeats below 2, min_tokens below 0, unknown action, or `regenerate`.
    """

    min_period: int = 1
    max_period: int = 512
    repeats: int = 2
    min_tokens: int = 60

    name: ClassVar[str] = "cycle"
    ladder = (
        "repeats",
        (32, 24, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        least = check_int("min_period", self.min_period, 1)
        check_int("max_period", self.max_period, least, f"at least min_period = {least}")
        check_int("repeats", self.repeats, 2)
        check_int("min_tokens", self.min_tokens, 0)

    def watch(self, prompt: bytes = b"") -> Repeats:  # noqa: ARG002 - generated tokens alone can loop
        return Repeats(self)


class Repeats(Watcher[Cycle]):
    """The newest tokens, and for each period how long it has held."""

    def __init__(self, cycle: Cycle) -> None:
        super().__init__(cycle)
        self.ids: dict[bytes, int] = {}
        # A ring; the token p places back is at (tokens - p) % size. -1: none yet.
        self.newest = np.full(cycle.max_period, -1)
        # By period from 1: how many newest tokens equal the one a period before them.
        self.held = np.zeros(cycle.max_period, dtype=np.int64)
        # A block repeated m times makes m - 1 blocks equal to what lies a period before them.
        period = np.arange(1, cycle.max_period + 1)
        self.needed = np.maximum(period * cycle.repeats, cycle.min_tokens) - period

    def push(self, piece: bytes) -> Verdict | None:
        token = self.ids.setdefault(piece, len(self.ids))
        at = (self.tokens - 1) % len(self.newest)
        # Distances 1, 2, ... are the places before `at`, newest first.
        back = np.concatenate((self.newest[:at][::-1], self.newest[at:][::-1]))
        self.held += 1
        self.held[back != token] = 0
        self.newest[at] = token
        shorter = self.detector.min_period - 1
        fits = np.flatnonzero(self.held[shorter:] >= self.needed[shorter:])
        if not len(fits):
            return None
        period = int(fits[0]) + self.detector.min_period
        length = int(self.held[period - 1]) + period
        evidence = {
            "step": self.tokens,
            "period": period,
            "repeats": length // period,
            "first_token": self.tokens - length,
        }
        return Verdict("cycle", self.tokens, evidence)
