"""Cycle: the newest tokens are one block, repeated."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from attention.errors import check_int
from lil.detectors.base.base import Detector, Verdict, Watcher
from lil.detectors.base.region import OUTSIDE

# Copies of a block above `max_period`.
_LONG = 3


@dataclass(frozen=True)
class Cycle(Detector):
    """Stops when the newest tokens are one block repeated exactly, as vLLM's repetition detection.

    The block has `min_period` to `max_period` tokens and occurs `repeats` times back to back, the
    last time at the very end. A longer one, up to `long_period`, occurs at least three times, since
    honest texts have such a block twice. Where several periods fit, the evidence names the
    shortest. The detector compares tokens by their bytes.

    Where we differ from vLLM (`repetition_detection`): its parameters have no defaults, and
    `long_period`, `min_tokens` and `outside` are ours. While a model thinks, two equal rounds of
    `max_period` are enough; elsewhere a user may have requested the block, and all copies together
    need `outside` tokens.

    What it does not see: a block that changes at all, be it by a counter or a word; `recurrence`
    sees some of these. What it may stop though it should not: in a thinking part, an enumeration
    that is written out twice, equal lines, and tables whose rows are the same.

    Args:
        min_period, max_period: lengths of the block, in tokens.
        repeats: copies of the block.
        min_tokens: tokens of all copies together.
        outside: the same where the model is not known to be thinking, if it is more.
        long_period: length of the longest block, in tokens; without effect up to `max_period`.
        on_stop: what follows; not `regenerate`: the beginning of a loop is known only at its end,
            and a state that dropped tokens cannot go back to it.
        region: what is watched, see `Detector`.

    Raises:
        InvalidValue: a number that is no integer, a period below 1, max_period below min_period,
            repeats below 2, another number below 0, unknown action, or `regenerate`.
    """

    min_period: int = 1
    max_period: int = 512
    repeats: int = 2
    min_tokens: int = 60
    outside: int = field(default=OUTSIDE, metadata={"left_out": OUTSIDE})
    long_period: int = field(default=4096, metadata={"left_out": 0})

    name: ClassVar[str] = "cycle"
    served: ClassVar[bool] = True
    ladder = ("repeats", (32, 24, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2))

    def __post_init__(self) -> None:
        super().__post_init__()
        least = check_int("min_period", self.min_period, 1)
        check_int("max_period", self.max_period, least, f"at least min_period = {least}")
        check_int("repeats", self.repeats, 2)
        for name in ("min_tokens", "outside", "long_period"):
            check_int(name, getattr(self, name), 0)

    def copies(self, period: int) -> int:
        """How many blocks of this length are enough."""
        return self.repeats if period <= self.max_period else max(self.repeats, _LONG)

    def watch(self, prompt: bytes = b"") -> Repeats:
        return Repeats(self, prompt)


class Repeats(Watcher[Cycle]):
    """The newest tokens, and the periods that hold there.

    A period must hold for many tokens: those that must hold for n tokens are looked for at every
    n-th at the latest, and backwards to where they began.
    """

    def __init__(self, cycle: Cycle, prompt: bytes = b"") -> None:
        super().__init__(cycle, prompt)
        self.ids: dict[bytes, int] = {}
        self.newest: list[int] = []
        # By period: the tokens there were when it began to hold.
        self.holding: dict[int, int] = {}
        self.longest = max(cycle.max_period, cycle.long_period)
        self.looks = _looks(cycle, self.longest)
        self.every = min(every for every, _ in self.looks)

    @property
    def patience(self) -> int:
        """Up to the next look, or to where a period has held for long enough in any text."""
        tokens, holding = self.tokens, self.holding.items()
        of, least = self.detector, self.detector.min_tokens
        due = [_needed(period, of, least) - tokens + since for period, since in holding]
        return max(0, min(self.every - tokens % self.every, *due, self.every) - 1)

    def absorb(self, pieces: Sequence[bytes]) -> None:
        newest, more, ids = self.newest, len(pieces), self.ids
        if len(newest) > 4 * self.longest:
            del newest[: -2 * self.longest]
        newest += [ids.setdefault(piece, len(ids)) for piece in pieces]
        if self.holding:
            latest = newest[-more:]
            self.holding = {
                period: since
                for period, since in self.holding.items()
                if newest[-more - period : -period] == latest
            }

    def push(self, piece: bytes) -> Verdict | None:
        self.absorb((piece,))
        for every, periods in self.looks:
            if not self.tokens % every:
                self._look(periods, every)
        if not self.holding:
            return None
        of = self.detector
        least = of.min_tokens if self.tracker.thinking else max(of.min_tokens, of.outside)
        fits = [
            period
            for period, since in self.holding.items()
            if self.tokens - since >= _needed(period, of, least)
        ]
        return self._verdict(min(fits)) if fits else None

    def _look(self, periods: tuple[int, ...], every: int) -> None:
        """Find those of these periods that hold and did not at the last look."""
        newest = self.newest
        token, reach = newest[-1], len(newest)
        for period in periods:
            if period >= reach:
                break
            if newest[-1 - period] == token and period not in self.holding:
                length = 1
                most = min(every, reach - period)
                while length < most and newest[-1 - length] == newest[-1 - length - period]:
                    length += 1
                self.holding[period] = self.tokens - length

    def _verdict(self, period: int) -> Verdict:
        length = self.tokens - self.holding[period] + period
        evidence = {
            "step": self.tokens,
            "period": period,
            "repeats": length // period,
            "first_token": self.tokens - length,
        }
        return Verdict("cycle", self.tokens, evidence)


@functools.lru_cache(maxsize=128)
def _looks(of: Cycle, longest: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Distances between two looks, in tokens, and the periods that are looked for then."""
    sought: dict[int, list[int]] = {}
    for period in range(of.min_period, longest + 1):
        most = min(_needed(period, of, of.min_tokens), longest)
        sought.setdefault(2 ** (most.bit_length() - 1), []).append(period)
    return tuple((every, tuple(periods)) for every, periods in sought.items())


def _needed(period: int, of: Cycle, least: int) -> int:
    """How many of the newest tokens must equal the one a period before them."""
    # A block repeated m times makes m - 1 blocks equal to what lies a period before them.
    return max(period * of.copies(period), least) - period
