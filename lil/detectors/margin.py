"""Margin: at the end of a sentence the model nearly ends its thinking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from attention.errors import InvalidValue, check_number
from lil.chopper.chunks import ends_sentence
from lil.detectors.base.base import Verdict
from lil.detectors.base.signals import SignalDetector, SignalWatcher

if TYPE_CHECKING:
    from lil.hidden_states import Reading


@dataclass(frozen=True)
class Margin(SignalDetector):
    """Stops where a sentence ends and the end of thinking is nearly as likely as what comes next.

    ThinkBrake (Song et al., arXiv 2510.00546). The margin is the log-probability of the most likely
    next token minus that of `end`, before penalties and temperature; below `below` the generation
    stops. A sentence ends with a token whose text ends in a period, an exclamation or question
    mark, or a line end, closing marks and blanks behind it left aside.

    Where we differ from the paper: the rule of what ends a sentence; no verdict where the model
    goes on with `end` by itself; the default is to stop, and `on_stop="answer"` gives `end`. The
    number for a token exists one step later: `step` in the evidence counts the token behind the
    deciding sentence, which the verdict drops.

    Args:
        below: margin, in nats, below which the thinking ends; 0 never ends it.
        end: text of the one token that ends the thinking.
        on_stop: what follows; not `regenerate`.

    Raises:
        InvalidValue: a number outside its range, an empty `end`, unknown action, or `regenerate`.
    """

    below: float = 0.25
    end: str = "</think>"

    name: ClassVar[str] = "margin"
    ladder = ("below", (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("below", self.below, "a number of at least 0", least=0)
        if not isinstance(self.end, str) or not self.end:
            raise InvalidValue("end", self.end, "the text of a token")

    @property
    def compared(self) -> frozenset[bytes]:
        return frozenset([self.end.encode()])

    @property
    def signal(self) -> str:
        return f"margin-{self.end}"

    def quiet(self) -> Margin:
        """One that takes note of every margin and never fires."""
        return replace(self, below=0)

    def require_tokens(self, table: Sequence[bytes]) -> None:
        super().require_tokens(table)
        if self.end.encode() not in table:
            allowed = f"one with a token {self.end!r}, or another `end`"
            raise InvalidValue("tokenizer", f"{len(table)} tokens for {self.name}", allowed)

    def watch(self, prompt: bytes = b"") -> Margins:
        return Margins(self, prompt)


class Margins(SignalWatcher[Margin]):
    """The newest margin."""

    event: ClassVar[str] = "ended a sentence"
    least: ClassVar[float] = 0

    def __init__(self, margin: Margin, prompt: bytes = b"") -> None:
        super().__init__(margin, prompt)
        self.end = margin.end.encode()
        self.over = False  # thinking has ended
        self.narrow: tuple[int, float] | None = None

    def push(self, piece: bytes) -> Verdict | None:
        self.over = self.over or piece == self.end
        return super().push(piece)

    def asks(self, piece: bytes) -> bool:
        return not self.over and ends_sentence(piece)

    def number(self, reading: Reading) -> float:
        return reading.margin(self.end)

    def take(self, tokens: int, number: float) -> None:
        if number < self.detector.below:
            self.narrow = tokens, number

    def judge(self) -> Verdict | None:
        if self.narrow is None or self.over:
            return None
        tokens, margin = self.narrow
        evidence = {"step": self.tokens, "margin": margin, "below": self.detector.below}
        return Verdict("margin", tokens, evidence)

    def returns(self) -> Sequence[int]:
        """The end of the newest sentence, while its margin may be narrow."""
        if self.detector.action.ends or self.pending is None:
            return ()
        return [self.pending]
