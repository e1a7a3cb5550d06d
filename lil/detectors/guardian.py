"""Guardian, the early stop of the Less-is-Less paper (section 5, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from attention.errors import InvalidValue
from lil.actions import OnStop, action
from lil.compression.meter import Meter
from lil.detectors._protocol import Verdict, as_pieces


@dataclass
class _Watch:
    """One sequence under watch: what has been compressed and what waits for the next check."""

    meter: Meter
    size: int
    tokens: int = 0
    pending: list[bytes] = field(default_factory=list)
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Guardian:
    """Stops when the text no longer gains information ("Lil: Less is Less", Algorithm 1).

    Every `f` generated tokens the compressed size of prompt and output is compared with the last
    one, the first time with the compressed prompt; when it grew by less than `rate * f` bytes the
    generation ends. The evidence holds step, sizes, growth and threshold.

    Where we differ from the paper:
        - the paper's counter starts at 1 and is raised after the test, so its checks fall at f - 1,
          2f - 1, ...; here they fall after f, 2f, ... generated tokens;
        - the paper drops the token sampled at the stop; here it is kept;
        - the paper fixes t = 20 bytes with f = 250. Here the rate t / f = 0.08 is the parameter, so
          that another f scales t: with t fixed at 20 a verbatim loop at f >= 1000 is never seen,
          because each loop still costs 3-14 bytes per 250 tokens.

    What it does not see: counter loops ("For k=1 ... For k=600") still grow by 33-51 bytes per 250
    tokens and paraphrase loops by 30-41, above the threshold of 20; honest JSON or tables sit at
    42-93, so a threshold that caught the former would begin to cut the latter. With `deflate` a
    loop longer than its 32 KiB window looks like fresh text.

    Args:
        f: generated tokens between checks.
        rate: bytes a generated token must add on average for the text to count as new.
        codec: compressor of the meter.
        on_stop: what follows a verdict, see `lil.actions`. The paper only stops; `regenerate` goes
            back to the last check, all that is known to carry information.

    Raises:
        InvalidValue: f below 1, rate not above 0, unknown codec or action.
    """

    f: int = 250
    rate: float = 0.08
    codec: str = "deflate"
    on_stop: OnStop = "stop"
    _watch: list[_Watch] = field(default_factory=list, init=False, repr=False, compare=False)

    name: ClassVar[str] = "guardian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_stop", action(self.on_stop))
        if self.f < 1:
            raise InvalidValue("f", self.f, "at least 1 token")
        if not self.rate > 0:
            raise InvalidValue("rate", self.rate, "a number of bytes per token above 0")
        Meter(self.codec)  # an unknown codec is refused here rather than at the first sequence

    @property
    def threshold(self) -> float:
        """Growth in bytes per `f` tokens below which the generation ends."""
        # Rounded: 0.07 * 100 is 7.000000000000001 in binary, and 7 bytes must not fall below it.
        return round(self.rate * self.f, 9)

    def params(self) -> dict[str, object]:
        told = action(self.on_stop).to_dict()
        return {"f": self.f, "rate": self.rate, "codec": self.codec, "on_stop": told}

    def clone(self) -> Guardian:
        return replace(self)

    def start(self, prompt: bytes = b"") -> None:
        meter = Meter(self.codec).feed(prompt)
        self._watch[:] = [_Watch(meter, meter.size())]

    def update(self, pieces: Sequence[bytes]) -> Verdict | None:
        """See generated tokens, one element each; the verdict if their text stopped being new.

        Raises:
            InvalidValue: one bytes or str object instead of a sequence of tokens.
            RuntimeError: `start` was not called.
        """
        if not self._watch:
            raise RuntimeError("Guardian.update before Guardian.start(prompt)")
        pieces = as_pieces(pieces)
        watch = self._watch[0]
        seen = 0
        while watch.verdict is None and seen < len(pieces):
            take = min(self.f - len(watch.pending), len(pieces) - seen)
            watch.pending.extend(pieces[seen : seen + take])
            seen += take
            if len(watch.pending) == self.f:
                watch.verdict = self._check(watch)
        return watch.verdict

    def _check(self, watch: _Watch) -> Verdict | None:
        watch.tokens += len(watch.pending)
        size = watch.meter.feed(b"".join(watch.pending)).size()
        watch.pending.clear()
        before, watch.size = watch.size, size
        if size - before >= self.threshold:
            return None
        evidence = {
            "step": watch.tokens,
            "previous_bytes": before,
            "compressed_bytes": size,
            "growth_bytes": size - before,
            "threshold_bytes": self.threshold,
        }
        return Verdict(self.name, watch.tokens, evidence, anchor=watch.tokens - self.f)

    def returns(self) -> Sequence[int]:
        """The last check, for `regenerate`; the others leave nothing that is kept."""
        if not action(self.on_stop).rewinds:
            return ()
        return [watch.tokens for watch in self._watch]
