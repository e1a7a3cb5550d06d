"""Guardian, the early stop of the Less-is-Less paper (section 5, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from attention.errors import InvalidValue, check_int, check_number
from lil.compression import codecs
from lil.compression.meter import Meter
from lil.detectors.base.base import Detector, Verdict, Watcher

#: The paper's t = 20 bytes per f = 250 tokens.
RATE = 0.08


@dataclass(frozen=True)
class Guardian(Detector):
    """Stops when the text no longer gains information ("Lil: Less is Less", Algorithm 1).

    Every `f` generated tokens the compressed size of prompt and output is compared with the last
    one, the first time with the compressed prompt; when it grew by less than `rate * f` bytes the
    generation ends. The evidence holds step, sizes, growth and threshold.

    Where we differ from the paper:
        - its checks fall at f - 1, 2f - 1, ... tokens, ours at f, 2f, ...;
        - it drops the token sampled at the stop, which we keep;
        - it fixes t = 20 bytes with f = 250. Here the rate t / f = 0.08 is the parameter: a
          verbatim loop costs 3-14 bytes per 250 tokens, so that t = 20 would never see it at f >=
          1000;
        - it watches all of an output; that is `region="output"` here.

    What it does not see: counter loops ("For k=1 ... For k=600") grow by 33-51 bytes per 250 tokens
    and paraphrase loops by 30-41, above the threshold of 20. With `deflate` a loop longer than its
    32 KiB window looks like fresh text. What it stops though it should not: an honest second pass
    that repeats the first, and regular text: at the paper's setting 5 of 14 real JSON files and 4
    of 60 Python sources.

    Args:
        f: generated tokens between checks.
        rate: bytes a generated token must add on average for the text to count as new; 0.08 if
            neither it nor `t` is given.
        codec: compressor of the meter.
        t: the threshold as the paper has it, in bytes per `f` tokens: another way to give the rate.
        on_stop: what follows a verdict. The paper only stops; `regenerate` goes back to the last
            check.
        region: what is watched, see `Detector`.

    Raises:
        InvalidValue: f not an integer of at least 1, rate or t not a number above 0, a `t` that is
            not `rate * f`, unknown codec or action.
    """

    f: int = 250
    rate: float | None = None  # a number once it is made
    codec: str = "deflate"
    t: float | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "guardian"
    ladder = ("rate", (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12))
    anchors: ClassVar[bool] = True
    aliases = (("rate", "t"),)
    served: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("f", self.f, 1)
        values = {name: getattr(self, name) for name in ("rate", "t")}
        for name, value in values.items():
            if value is not None:
                check_number(name, value, "a number above 0", above=0)
        if self.t is not None:
            if self.rate is not None and not math.isclose(self.t, self.rate * self.f):
                raise InvalidValue("t", self.t, f"rate * f = {self.rate * self.f:g}, or no rate")
            object.__setattr__(self, "rate", self.t / self.f)
            object.__setattr__(self, "t", None)  # a copy with another f scales it
        elif self.rate is None:
            object.__setattr__(self, "rate", RATE)
        Meter(self.codec)  # an unknown codec is refused here rather than at the first sequence

    @property
    def uses(self) -> Sequence[Any]:
        return (codecs.find(self.codec),)

    @property
    def threshold(self) -> float:
        """Growth in bytes per `f` tokens below which the generation ends."""
        # Rounded: 0.07 * 100 is 7.000000000000001 in binary, and 7 bytes must not fall below it.
        return round((self.rate or RATE) * self.f, 9)

    def watch(self, prompt: bytes = b"") -> Growth:
        return Growth(self, prompt)


class Growth(Watcher[Guardian]):
    """What has been compressed, and what waits for the next check."""

    def __init__(self, guardian: Guardian, prompt: bytes) -> None:
        super().__init__(guardian, prompt)
        self.meter = Meter(guardian.codec).feed(prompt)
        self.size = self.meter.size()
        self.pending: list[bytes] = []

    @property
    def patience(self) -> int:
        return self.detector.f - len(self.pending) - 1

    def absorb(self, pieces: Sequence[bytes]) -> None:
        self.pending += pieces

    def push(self, piece: bytes) -> Verdict | None:
        self.pending.append(piece)
        if len(self.pending) < self.detector.f:
            return None
        before, self.size = self.size, self.meter.feed(b"".join(self.pending)).size()
        self.pending.clear()
        threshold = self.detector.threshold
        if self.size - before >= threshold:
            return None
        evidence = {
            "step": self.tokens,
            "previous_bytes": before,
            "compressed_bytes": self.size,
            "growth_bytes": self.size - before,
            "threshold_bytes": threshold,
        }
        return Verdict("guardian", self.tokens, evidence, anchor=self.tokens - self.detector.f)

    def returns(self) -> Sequence[int]:
        """The last check, for `regenerate`; the others leave nothing that is kept."""
        return [self.tokens - len(self.pending)] if self.detector.action.rewinds else ()
