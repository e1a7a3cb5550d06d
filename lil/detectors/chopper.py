"""Word Salad Chopper: the model itself tells that it repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from attention.errors import InvalidValue
from lil.actions import OnStop, action
from lil.chopper.chunks import ends_chunk
from lil.chopper.streaks import Streaks
from lil.detectors._protocol import Verdict, as_pieces

if TYPE_CHECKING:
    from torch import Tensor

    from lil.chopper.classifier import Classifier


class _Watch:
    """One sequence: its streaks, and the chunk whose number is still to come."""

    def __init__(self, streaks: Streaks) -> None:
        self.streaks = streaks
        self.tokens = 0
        self.ended = 0  # tokens up to the last chunk's end
        self.open: int | None = None  # length of the chunk that ended with no number so far
        self.seen: list[tuple[int, float]] = []
        self.recalled: dict[int, float] | None = None
        self.chop = False
        self.verdict: Verdict | None = None

    def push(self, p: float) -> None:
        assert self.open is not None
        self.seen.append((self.ended, p))
        self.chop = self.streaks.push(self.open, p)
        self.open = None


@dataclass(frozen=True)
class Chopper:
    """Stops when the model's own hidden states say that it repeats itself.

    Word Salad Chopper (Xie et al., 2025), with steps and constants of the authors' offline
    pipeline. A chunk ends at a token with a blank line; from the hidden state at that token a
    linear layer gives the probability that the chunk is word salad; `lil.chopper.streaks` says when
    there are enough such chunks. The verdict keeps everything up to the last cold chunk, and so
    drops the whole streak.

    The number for a token exists one step later, so the token behind the chunk that decided has
    been decoded: `step` in the evidence counts it.

    Where we differ from the paper:
        - its Algorithm 1 keeps as many tokens as the newest chunk is long (line 30); what is meant
          is everything before the streak, as here;
        - it always regenerates; here that is `on_stop="regenerate"`, and the default is to stop.

    What it does not see: a loop without blank lines; and it knows the word salad of the model, the
    block and the kind of problem it was trained on, no other.

    Args:
        weights: the classifier, or its file, or `package:file` for one that a package ships.
        threshold: probability above which a chunk is hot.
        short: tokens from which on a chunk is long.
        long_streak, short_streak: hot long or short chunks in a row that are enough.
        on_stop: what follows a verdict, see `lil.actions`; `regenerate` as in the paper.
        digest: the classifier's, to make sure that the file is the one meant; filled in if None.

    Raises:
        InvalidValue: weights that cannot be used or have another digest, a value outside its range,
            or an unknown action.
    """

    weights: Classifier | str | Path
    threshold: float = 0.5
    short: int = 10
    long_streak: int = 2
    short_streak: int = 5
    on_stop: OnStop = "stop"
    digest: str | None = None
    _watch: list[_Watch] = field(default_factory=list, init=False, repr=False, compare=False)

    name: ClassVar[str] = "chopper"

    def __post_init__(self) -> None:
        from lil.chopper.classifier import Classifier

        object.__setattr__(self, "on_stop", action(self.on_stop))
        self._streaks()  # bad numbers are refused here rather than at the first sequence
        given: object = self.weights
        if isinstance(given, (str, Path)):
            given = Classifier.load(given)
        if not isinstance(given, Classifier):
            raise InvalidValue("weights", given, "a file of `lil chopper train`, or a Classifier")
        if self.digest not in (None, given.digest):
            allowed = f"{given.digest}, which is what {given.source or 'the classifier'} has"
            raise InvalidValue("digest", self.digest, allowed)
        object.__setattr__(self, "weights", given)
        object.__setattr__(self, "digest", given.digest)

    @property
    def classifier(self) -> Classifier:
        """The linear layer, loaded."""
        return self.weights  # type: ignore[return-value]

    @property
    def block(self) -> int:
        """The block whose output is read, counted from the last."""
        return self.classifier.block

    @property
    def signal(self) -> str:
        """The same for all choppers of one classifier, whatever they do with its numbers."""
        return f"chopper-{self.digest}"

    def _streaks(self) -> Streaks:
        return Streaks(self.threshold, self.short, self.long_streak, self.short_streak)

    def params(self) -> dict[str, object]:
        """The parameters; `weights` is the file, None for a classifier that never was in one."""
        return {
            "weights": self.classifier.source,
            "threshold": self.threshold,
            "short": self.short,
            "long_streak": self.long_streak,
            "short_streak": self.short_streak,
            "on_stop": action(self.on_stop).to_dict(),
            "digest": self.digest,
        }

    def clone(self) -> Chopper:
        return replace(self)

    def quiet(self) -> Chopper:
        """A clone that takes note of every chunk's probability and never fires."""
        return replace(self, threshold=1.0)  # nothing is above it

    def start(self, prompt: bytes = b"") -> None:  # noqa: ARG002 - generated chunks alone count
        self._watch[:] = [_Watch(self._streaks())]

    def _started(self, method: str) -> _Watch:
        if not self._watch:
            raise RuntimeError(f"Chopper.{method} before Chopper.start(prompt)")
        return self._watch[0]

    def update(self, pieces: Sequence[bytes]) -> Verdict | None:
        """See generated tokens, one element each; the verdict one token after the streak is full.

        Raises:
            InvalidValue: one bytes or str object instead of a sequence of tokens, or no stored
                number for a chunk.
            RuntimeError: `start` was not called, or `see` was not since a chunk ended.
        """
        watch = self._started("update")
        for piece in as_pieces(pieces):
            if watch.verdict is not None:
                break
            if watch.open is not None:
                watch.push(self._recalled(watch))
            watch.tokens += 1
            if watch.chop:
                watch.verdict = self._judge(watch)
            elif ends_chunk(piece):
                watch.open, watch.ended = watch.tokens - watch.ended, watch.tokens
        return watch.verdict

    def _recalled(self, watch: _Watch) -> float:
        if watch.recalled is None:
            raise RuntimeError(
                f"Chopper.update: a chunk ended with token {watch.ended}, and Chopper.see has not "
                "been given its hidden state (or Chopper.recall its number)"
            )
        if watch.ended not in watch.recalled:
            allowed = f"a number for the chunk that ends with token {watch.ended}"
            raise InvalidValue(f"signal {self.signal}", sorted(watch.recalled), allowed)
        return watch.recalled[watch.ended]

    def _judge(self, watch: _Watch) -> Verdict:
        streaks = watch.streaks
        evidence = {
            "step": watch.tokens,
            "probabilities": list(streaks.hot),
            "long_streak": streaks.long,
            "short_streak": streaks.brief,
            "kept": streaks.kept,
            "dropped": watch.tokens - streaks.kept,
        }
        return Verdict(self.name, streaks.kept, evidence, anchor=streaks.kept)

    @property
    def wants(self) -> bool:
        """Whether a chunk has just ended whose number is not known."""
        return any(watch.open is not None and watch.recalled is None for watch in self._watch)

    def see(self, hidden: Tensor) -> None:
        """The hidden state at the newest token, which ended a chunk, (hidden size,).

        Raises:
            InvalidValue: of another size than the classifier's.
            FloatingPointError: it is not finite.
            RuntimeError: it is not wanted.
        """
        watch = self._started("see")
        if not self.wants:
            raise RuntimeError("Chopper.see: the newest token did not end a chunk")
        watch.push(self.classifier.probability(hidden))

    def seen(self) -> Sequence[tuple[int, float]]:
        """(Generated tokens up to a chunk's end, its probability), ascending."""
        return tuple(pair for watch in self._watch for pair in watch.seen)

    def recall(self, signal: Sequence[tuple[int, float]]) -> None:
        """Take probabilities from here instead of from hidden states, until the next `start`.

        Raises:
            InvalidValue: not ascending pairs of tokens and probability.
            RuntimeError: `start` was not called.
        """
        watch = self._started("recall")
        last = 0
        for tokens, p in signal:
            if not (tokens > last and 0 <= p <= 1):
                allowed = "ascending pairs of generated tokens and a probability"
                raise InvalidValue(f"signal {self.signal}", (tokens, p), allowed)
            last = tokens
        watch.recalled = {int(tokens): float(p) for tokens, p in signal}

    def returns(self) -> Sequence[int]:
        """Where the last cold chunk ended, and the newest chunk's end while it may be cold.

        None where the verdict ends the row: then nothing is decoded from there.
        """
        if action(self.on_stop).ends:
            return ()
        found = []
        for watch in self._watch:
            found.append(watch.streaks.kept)
            if watch.open is not None:
                found.append(watch.ended)
        return found
