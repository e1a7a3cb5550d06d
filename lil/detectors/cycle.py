"""Cycle: the newest tokens are one block, repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attention.errors import InvalidValue
from lil.actions import OnStop, action
from lil.detectors._protocol import Verdict, as_pieces, onward


class _Watch:
    """One sequence: its newest tokens, and for each period how long it has held."""

    def __init__(self, periods: int) -> None:
        self.ids: dict[bytes, int] = {}
        self.tokens = 0
        # A ring; the token p places back is at (tokens - p) % size. -1: none yet.
        self.newest: npt.NDArray[np.int64] = np.full(periods, -1)
        # By period from 1: how many newest tokens equal the one a period before them.
        self.held: npt.NDArray[np.int64] = np.zeros(periods, dtype=np.int64)
        self.verdict: Verdict | None = None

    def push(self, piece: bytes) -> None:
        token = self.ids.setdefault(piece, len(self.ids))
        size = len(self.newest)
        at = self.tokens % size
        # Distances 1..size are the places before `at`, newest first.
        back = np.concatenate((self.newest[:at][::-1], self.newest[at:][::-1]))
        self.held += 1
        self.held[back != token] = 0
        self.newest[at] = token
        self.tokens += 1


@dataclass(frozen=True)
class Cycle:
    """Stops when the newest tokens are one block repeated exactly, as vLLM's repetition detection.

    The block may have any length from `min_period` to `max_period` tokens and must stand `repeats`
    times back to back, the last time at the very end. Where several periods fit, the evidence names
    the shortest. Tokens are compared by their bytes.

    Where we differ from vLLM (`repetition_detection`): its three parameters have no defaults; and
    `min_tokens` is ours, because four equal tokens are a loop in a proof and a line in a table.

    What it does not see: a block that changes at all, be it by a counter or a word.

    Args:
        min_period, max_period: lengths of the block, in tokens.
        repeats: times the block must stand there.
        min_tokens: tokens that all repeats must take together.
        on_stop: what follows, see `lil.actions`; not `regenerate`: where a loop began is known only
            when its repeats have been read, and a state that dropped tokens cannot go back to it.

    Raises:
        InvalidValue: a period below 1, max_period below min_period, repeats below 2, min_tokens
            below 0, unknown action, or `regenerate`.
    """

    min_period: int = 1
    max_period: int = 512
    repeats: int = 4
    min_tokens: int = 100
    on_stop: OnStop = "stop"
    _watch: list[_Watch] = field(default_factory=list, init=False, repr=False, compare=False)

    name: ClassVar[str] = "cycle"

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_stop", onward(self.name, self.on_stop))
        if self.min_period < 1:
            raise InvalidValue("min_period", self.min_period, "at least 1 token")
        if self.max_period < self.min_period:
            allowed = f"at least min_period = {self.min_period}"
            raise InvalidValue("max_period", self.max_period, allowed)
        if self.repeats < 2:
            raise InvalidValue("repeats", self.repeats, "at least 2")
        if self.min_tokens < 0:
            raise InvalidValue("min_tokens", self.min_tokens, "at least 0")

    def params(self) -> dict[str, object]:
        return {
            "min_period": self.min_period,
            "max_period": self.max_period,
            "repeats": self.repeats,
            "min_tokens": self.min_tokens,
            "on_stop": action(self.on_stop).to_dict(),
        }

    def clone(self) -> Cycle:
        return replace(self)

    def start(self, prompt: bytes = b"") -> None:  # noqa: ARG002 - generated tokens alone can loop
        self._watch[:] = [_Watch(self.max_period)]

    def update(self, pieces: Sequence[bytes]) -> Verdict | None:
        """See generated tokens, one element each; the verdict if they end in a cycle.

        Raises:
            InvalidValue: one bytes or str object instead of a sequence of tokens.
            RuntimeError: `start` was not called.
        """
        if not self._watch:
            raise RuntimeError("Cycle.update before Cycle.start(prompt)")
        watch = self._watch[0]
        for piece in as_pieces(pieces):
            if watch.verdict is not None:
                break
            watch.push(piece)
            watch.verdict = self._judge(watch)
        return watch.verdict

    def _judge(self, watch: _Watch) -> Verdict | None:
        period = np.arange(self.min_period, self.max_period + 1)
        # A block repeated m times makes m - 1 blocks equal to what lies a period before them.
        needed = np.maximum(period * self.repeats, self.min_tokens) - period
        fits = np.flatnonzero(watch.held[self.min_period - 1 :] >= needed)
        if not len(fits):
            return None
        shortest = int(period[fits[0]])
        length = int(watch.held[shortest - 1]) + shortest
        evidence = {
            "step": watch.tokens,
            "period": shortest,
            "repeats": length // shortest,
            "first_token": watch.tokens - length,
        }
        return Verdict(self.name, watch.tokens, evidence)

    def returns(self) -> Sequence[int]:
        """None: what is kept is never left."""
        return ()
