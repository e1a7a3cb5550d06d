"""Recurrence: every one of the newest tokens ends a passage that has stood there often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from attention.errors import check_int
from lil.detectors.base.base import Detector, Verdict, Watcher
from lil.detectors.base.region import OUTSIDE

# Bits of a token's number in a passage; there are fewer different tokens than that.
_BITS = 32


@dataclass(frozen=True)
class Recurrence(Detector):
    """Stops when `run` tokens in a row each end a passage of k tokens generated often before.

    Ours. A loop says the same many times, an honest second pass once or twice; compressed size
    cannot distinguish these. Passages may overlap, need not follow one another, and are compared by
    the bytes of their tokens.

    What it does not see: loops that change a word or a number within every k tokens, as counters
    and paraphrases do. What it may stop though it should not: in a thinking part, tables and data
    with the same long line over and over. State: some 250 bytes a token at most.

    Args:
        k: tokens of a passage.
        before: times a passage must have ended earlier in the generation.
        run: tokens in a row that must each end such a passage.
        outside: the same where the model is not known to be thinking, if it is more.
        on_stop: what follows; not `regenerate`, as for `cycle`.
        region: what is watched, see `Detector`.

    Raises:
        InvalidValue: a number that is no integer of at least 1 (`outside`: 0), unknown action, or
            `regenerate`.
    """

    k: int = 16
    before: int = 4
    run: int = 60
    outside: int = field(default=OUTSIDE, metadata={"left_out": OUTSIDE})

    name: ClassVar[str] = "recurrence"
    served: ClassVar[bool] = True
    ladder = ("run", (640, 480, 320, 240, 180, 140, 100, 80, 60, 40, 30, 20, 10))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("k", "before", "run"):
            check_int(name, getattr(self, name), 1)
        check_int("outside", self.outside, 0)

    def watch(self, prompt: bytes = b"") -> Occurrences:
        return Occurrences(self, prompt)


class Occurrences(Watcher[Recurrence]):
    """How often each passage has ended, and for how many tokens that was often."""

    def __init__(self, recurrence: Recurrence, prompt: bytes = b"") -> None:
        super().__init__(recurrence, prompt)
        self.ids: dict[bytes, int] = {}
        self.times: dict[int, int] = {}
        self.passage = 0  # the numbers of the newest k tokens, side by side
        self.mask = (1 << _BITS * recurrence.k) - 1
        self.streak = 0

    def push(self, piece: bytes) -> Verdict | None:
        of = self.detector
        token = self.ids.setdefault(piece, len(self.ids))
        self.passage = (self.passage << _BITS | token) & self.mask
        if self.tokens < of.k:
            return None
        before = self.times.get(self.passage, 0)
        self.times[self.passage] = before + 1
        self.streak = self.streak + 1 if before >= of.before else 0
        if self.streak < (of.run if self.tracker.thinking else max(of.run, of.outside)):
            return None
        first = self.tokens - self.streak
        evidence = {"step": self.tokens, "first_token": first, "times_before": before}
        return Verdict("recurrence", self.tokens, evidence)
