"""Detectors that ask for a number at some tokens, made of what the model computes there."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from attention.errors import InvalidValue
from lil.detectors.base.base import Detector, Verdict, Watcher
from lil.trace import Signal


class SignalDetector(Detector):
    """A detector whose watchers make one signal."""

    @property
    @abstractmethod
    def signal(self) -> str:
        """Its name, the same for all detectors that make the same numbers."""

    @property
    def signals(self) -> frozenset[str]:
        return frozenset([self.signal])


D = TypeVar("D", bound=SignalDetector)


class SignalWatcher(Watcher[D]):
    """Asks at some tokens, and judges when the number has come: one token later."""

    #: What a token did at which it asks, for messages.
    event: ClassVar[str]
    #: Bounds of a number.
    least: ClassVar[float] = -math.inf
    most: ClassVar[float] = math.inf

    def __init__(self, detector: D, prompt: bytes = b"") -> None:
        super().__init__(detector, prompt)
        # Generated tokens up to the one whose number is still to come.
        self.pending: int | None = None
        self.numbers: list[tuple[int, float]] = []
        self.recalled: dict[int, float] | None = None

    @abstractmethod
    def asks(self, piece: bytes) -> bool:
        """Whether the newest token's number is wanted."""

    @abstractmethod
    def number(self, reading: Any) -> float:
        """What the model computed, as one number."""

    def take(self, tokens: int, number: float) -> None:
        """The number of the `tokens`-th token."""

    @abstractmethod
    def judge(self) -> Verdict | None:
        """The verdict that the numbers so far bring, once `tokens` are there."""

    def push(self, piece: bytes) -> Verdict | None:
        """See the next token; the verdict one token after the number that decided."""
        if self.pending is not None:
            self._settle(self._recalled(self.pending))
        verdict = self.judge()
        if verdict is None and self.asks(piece):
            self.pending = self.tokens
        return verdict

    def _settle(self, number: float) -> None:
        assert self.pending is not None
        tokens, self.pending = self.pending, None
        self.numbers.append((tokens, number))
        self.take(tokens, number)

    def _recalled(self, tokens: int) -> float:
        if self.recalled is None:
            raise RuntimeError(
                f"{self.detector.name}: `see` has not been given what the model computed at token "
                f"{tokens}, which {self.event} (nor `recall` its number)"
            )
        if tokens not in self.recalled:
            allowed = f"a number for token {tokens}, which {self.event}"
            raise InvalidValue(f"signal {self.detector.signal}", sorted(self.recalled), allowed)
        return self.recalled[tokens]

    @property
    def wants(self) -> bool:
        """Whether it asks at the newest token, and does not know."""
        return self.pending is not None and self.recalled is None

    def see(self, reading: Any) -> None:
        """What was computed at the newest token."""
        if not self.wants:
            raise RuntimeError(f"{self.detector.name}: the newest token is none that {self.event}")
        self._settle(self.number(reading))

    def seen(self) -> Mapping[str, Signal]:
        """(Generated tokens at the check, the number), ascending."""
        return {self.detector.signal: tuple(self.numbers)}

    def recall(self, signals: Mapping[str, Signal]) -> None:
        """Take numbers from here instead of from the model."""
        name, last = self.detector.signal, 0
        for tokens, number in signals[name]:
            if not (tokens > last and self.least <= number <= self.most):
                bounds = "" if math.isinf(self.most) else f" from {self.least:g} to {self.most:g}"
                allowed = f"ascending pairs of generated tokens and a number{bounds}"
                raise InvalidValue(f"signal {name}", (tokens, number), allowed)
            last = tokens
        self.recalled = {int(tokens): float(number) for tokens, number in signals[name]}
