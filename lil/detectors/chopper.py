"""Word Salad Chopper: the model itself tells that it repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attention.errors import InvalidValue
from lil.chopper.chunks import BLANK_LINE, Streaks, ends_chunk
from lil.detectors.base.base import Verdict
from lil.detectors.base.signals import SignalDetector, SignalWatcher

if TYPE_CHECKING:
    from lil.chopper.classifier import Classifier
    from lil.hidden_states import Reading


@dataclass(frozen=True)
class Chopper(SignalDetector):
    """Stops when the model's own hidden states say that it repeats itself.

    Word Salad Chopper (Xie et al., 2025), with steps and constants of the authors' offline
    pipeline. A chunk ends at a token with a blank line; a linear layer gives the probability, from
    the hidden state at that token, that the chunk is word salad; `lil.chopper.chunks` counts such
    chunks. The verdict drops the whole streak, up to the last cold chunk. The number for a token
    exists one step later: `step` in the evidence counts the token behind the deciding chunk.

    Where we differ from the paper: its Algorithm 1 keeps as many tokens as the newest chunk is long
    (line 30), and we keep everything before the streak; it always regenerates, which is
    `on_stop="regenerate"` here, and the default is to stop.

    What it does not see: a loop without blank lines, and the word salad of another model, block or
    kind of problem than it was trained on.

    Args:
        weights: the classifier, or its file, or `package:file` for one that a package ships.
        threshold: probability above which a chunk is hot.
        short: tokens from which on a chunk is long.
        long_streak, short_streak: hot long or short chunks in a row that are enough.
        digest: the classifier's, to make sure that the file is the one meant; filled in if None.
        on_stop: what follows a verdict; `regenerate` as in the paper.

    Raises:
        InvalidValue: weights that cannot be used or have another digest, a value outside its range,
            or an unknown action.
    """

    weights: Classifier | str | Path
    threshold: float = 0.5
    short: int = 10
    long_streak: int = 2
    short_streak: int = 5
    digest: str | None = None

    name: ClassVar[str] = "chopper"
    ladder = ("long_streak", (16, 12, 10, 8, 7, 6, 5, 4, 3, 2))
    anchors: ClassVar[bool] = True
    trained = ("weights", "scripts/training/train_chopper.py")

    def __post_init__(self) -> None:
        from lil.chopper.classifier import Classifier

        super().__post_init__()
        self.streaks()  # bad numbers are refused here rather than at the first sequence
        weights: object = self.weights
        if isinstance(weights, (str, Path)):
            weights = Classifier.load(weights)
        if not isinstance(weights, Classifier):
            raise InvalidValue(
                "weights", weights, "a file of scripts/training/train_chopper.py, or a Classifier"
            )
        if self.digest not in (None, weights.digest):
            allowed = f"{weights.digest}, which is what {weights.source or 'the classifier'} has"
            raise InvalidValue("digest", self.digest, allowed)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "digest", weights.digest)

    @property
    def classifier(self) -> Classifier:
        """The linear layer, loaded."""
        return self.weights  # type: ignore[return-value]

    @property
    def blocks(self) -> frozenset[int]:
        return frozenset([self.classifier.block])

    @property
    def signal(self) -> str:
        return f"chopper-{self.digest}"

    def streaks(self) -> Streaks:
        """The rule at the beginning of a sequence."""
        return Streaks(self.threshold, self.short, self.long_streak, self.short_streak)

    def params(self) -> dict[str, Any]:
        """The parameters; `weights` is the file, None for a classifier that never was in one."""
        return super().params() | {"weights": self.classifier.source}

    def identity(self) -> dict[str, Any]:
        """The digest names the weights, not their file."""
        record = super().identity()
        del record["weights"]
        return record

    def quiet(self) -> Chopper:
        """One that takes note of every chunk's probability and never fires."""
        return replace(self, threshold=1.0)  # nothing is above it

    def require_tokens(self, table: Sequence[bytes]) -> None:
        super().require_tokens(table)
        if not any(map(ends_chunk, table)):
            allowed = f"one with a token that holds {BLANK_LINE!r}: no other ends a chunk"
            raise InvalidValue("tokenizer", f"{len(table)} tokens for {self.name}", allowed)

    def watch(self, prompt: bytes = b"") -> Chunks:
        return Chunks(self, prompt)


class Chunks(SignalWatcher[Chopper]):
    """The streaks so far, and the chunk whose number is still to come."""

    event: ClassVar[str] = "ended a chunk"
    least: ClassVar[float] = 0
    most: ClassVar[float] = 1

    def __init__(self, chopper: Chopper, prompt: bytes = b"") -> None:
        super().__init__(chopper, prompt)
        self.streaks = chopper.streaks()
        self.ended = 0  # tokens up to the end of the last chunk whose number has come
        self.chop = False

    def asks(self, piece: bytes) -> bool:
        return ends_chunk(piece)

    def number(self, reading: Reading) -> float:
        classifier = self.detector.classifier
        return classifier.probability(reading.hidden(classifier.block))

    def take(self, tokens: int, number: float) -> None:
        length, self.ended = tokens - self.ended, tokens
        self.chop = self.streaks.push(length, number)

    def judge(self) -> Verdict | None:
        if not self.chop:
            return None
        streaks = self.streaks
        evidence = {
            "step": self.tokens,
            "probabilities": list(streaks.hot),
            "long_streak": streaks.long,
            "short_streak": streaks.brief,
            "kept": streaks.cold_end,
            "dropped": self.tokens - streaks.cold_end,
        }
        return Verdict("chopper", streaks.cold_end, evidence, anchor=streaks.cold_end)

    def returns(self) -> Sequence[int]:
        """Where the last cold chunk ended, and the newest chunk's end while it may be cold."""
        if self.detector.action.ends:
            return ()
        return [self.streaks.cold_end, *([] if self.pending is None else [self.pending])]
