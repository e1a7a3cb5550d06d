"""Detectors that ask the model for an answer, while the text goes on as if nobody had asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

from attention.errors import InvalidValue, check_int
from lil.chopper.chunks import ends_chunk, ends_sentence
from lil.detectors.base.base import Verdict
from lil.detectors.base.signals import SignalDetector, SignalWatcher
from lil.trace import Signal

#: Values of `at` that are no number of tokens.
PLACES = ("word", "sentence", "chunk")
#: What a question costs: the tokens that the model read for it, the keys that these read, seconds.
#: Each is a signal of its own, `<signal>:<cost>`.
COSTS = ("tokens", "keys", "seconds")
# Where a token has nothing else, no sentence or chunk has begun.
_NOTHING = b" \t\r\n.!?\"')]}*`"


class Reply(NamedTuple):
    """An answer; of each of its tokens the best log-probability and the entropy; what it cost."""

    answer: bytes
    best: Sequence[float]
    entropies: Sequence[float]
    costs: tuple[float, float, float]


@dataclass(frozen=True)
class Asking(SignalDetector):
    """A detector whose numbers are of trial answers.

    At some tokens the row's state is copied, the copy reads `cue` and decodes an answer greedily,
    without penalties, and is dropped. An answer ends at `eos`, where the braces that the cue opens
    are closed or else with its line, or after `tokens`; what ends it counts as a token of it. When
    the thinking has ended, nothing is asked. A number exists one token later: `step` in the
    evidence counts the token behind, which the verdict drops, as it does the word asked at.

    Args:
        cue: what is read before an answer; the end of what was opened, or of the marks in the
            model's chat template, takes the place of another's end in it.
        at: where it asks: "word", "sentence" or "chunk", or every so many tokens. A sentence ends
            as for `margin`, a chunk with a blank line, and neither where nothing was said in it.
        words: of "word", separated by blanks: tokens, but for blanks, in whose place it asks.
        tokens: most tokens of an answer.
    """

    cue: str = "\n**Final Answer**\n\\boxed{"
    at: str | int = "word"
    words: str = "Wait"
    tokens: int = 20

    #: What the parameter of `ladder` has where it never fires.
    never: ClassVar[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.cue, str) or not self.cue:
            raise InvalidValue("cue", self.cue, "a text")
        if self.at not in PLACES:
            check_int("at", self.at, 1, f"one of {', '.join(PLACES)}, or a number of tokens")
        if not isinstance(self.words, str) or not self.words.split():
            raise InvalidValue("words", self.words, "words with blanks between them")
        check_int("tokens", self.tokens, 1)

    @abstractmethod
    def number(self, reply: Reply) -> float:
        """What an answer comes to, at least 0."""

    @abstractmethod
    def evidence(self, numbers: Sequence[float]) -> dict[str, float] | None:
        """Why the newest number brings a verdict; None where it does not."""

    @property
    def cues(self) -> frozenset[str]:
        return frozenset([self.cue])

    @property
    def signal(self) -> str:
        where = self.words if self.at == "word" else self.at
        return f"{self.name}-{where}-{self.tokens}-{self.cue}"

    def end(self, answer: bytes) -> int | None:
        """Where the text that follows the cue has an answer's end."""
        depth = self.cue.count("{") - self.cue.count("}")
        if depth <= 0:
            end = answer.find(b"\n", len(answer) - len(answer.lstrip()))
            return None if end < 0 else end
        for at, byte in enumerate(answer):
            depth += (byte == ord("{")) - (byte == ord("}"))
            if not depth:
                return at
        return None

    def quiet(self) -> Self:
        """One that takes note of every number and never fires."""
        values: Any = {self.ladder[0]: self.never}
        return replace(self, **values)

    def anew(self) -> None:
        """An answer is not asked about."""

    def require_tokens(self, table: Sequence[bytes]) -> None:
        super().require_tokens(table)
        words = self.words.encode().split()
        if self.at == "word" and not any(piece.strip() in words for piece in table):
            allowed = f"one with a token for one of the words {self.words!r}, or others"
            raise InvalidValue("tokenizer", f"{len(table)} tokens for {self.name}", allowed)

    def watch(self, prompt: bytes = b"") -> AskingWatcher:
        return AskingWatcher(self, prompt)


class AskingWatcher(SignalWatcher[Asking]):
    """Asks, and judges one token later.

    A number's place is how many tokens the model had read before the cue; a verdict keeps them.
    """

    event: ClassVar[str] = "is one to ask at"
    least: ClassVar[float] = 0

    def __init__(self, detector: Asking, prompt: bytes = b"") -> None:
        super().__init__(detector, prompt)
        self._words = frozenset(detector.words.encode().split())
        self._replaces = detector.at == "word"
        self._said = self._new = False  # something in this sentence or chunk; a number to judge
        self._places: list[int] = []
        self._costs: dict[str, dict[int, float]] = {name: {} for name in COSTS}

    def asks(self, piece: bytes) -> bool:
        at = self.detector.at
        if self._replaces:
            return piece.strip() in self._words and self.tokens > 1
        if isinstance(at, int):
            return self.tokens % at == 0
        self._said = self._said or bool(piece.strip(_NOTHING))
        due = self._said and (ends_chunk if at == "chunk" else ends_sentence)(piece)
        self._said = self._said and not due
        return due

    def push(self, piece: bytes) -> Verdict | None:
        if self.tracker.ended:
            return None
        verdict = super().push(piece)
        if self.pending is not None:
            self.pending -= self._replaces
            self._places.append(self.pending)
        return verdict

    def number(self, reading: Reply) -> float:
        return self.detector.number(reading)

    def take(self, tokens: int, number: float) -> None:  # noqa: ARG002
        self._new = True

    def judge(self) -> Verdict | None:
        new, self._new = self._new, False
        found = self.detector.evidence([x for _, x in self.numbers]) if new else None
        if found is None:
            return None
        return Verdict(self.detector.name, self._places[-1], {"step": self.tokens, **found})

    @property
    def wants(self) -> bool:
        return False  # what it reads is no answer

    def asking(self) -> Sequence[AskingWatcher]:
        return [] if self.pending is None or self.recalled is not None else [self]

    def hear(self, reply: Reply) -> None:
        """The answer to what it asks at the newest token."""
        for name, cost in zip(COSTS, reply.costs, strict=True):
            self._costs[name][self._places[-1]] = cost
        self._settle(self.number(reply))

    def seen(self) -> Mapping[str, Signal]:
        """(Place, number), ascending; and what was asked there has cost."""
        signals = dict(super().seen())
        for name, of in self._costs.items():
            costs = tuple((place, of[place]) for place in self._places if place in of)
            signals[f"{self.detector.signal}:{name}"] = costs
        return signals

    def recall(self, signals: Mapping[str, Signal]) -> None:
        super().recall(signals)
        for name in COSTS:
            self._costs[name] = dict(signals.get(f"{self.detector.signal}:{name}", ()))

    def returns(self) -> Sequence[int]:
        """Where it asked at the newest token; also here, where the next token may be a word."""
        if self.detector.action.ends or self.tracker.ended:
            return ()
        asked = [place for place in self._places[-1:] if place >= self.tokens - 1]
        return [*asked, self.tokens] if self._replaces else asked


def asked(signals: Mapping[str, Signal]) -> dict[str, float]:
    """What questions cost, of all signals: a sum for each of `COSTS`."""
    items = [(name.rpartition(":")[2], signal) for name, signal in signals.items()]
    return {cost: sum(x for end, of in items if end == cost for _, x in of) for cost in COSTS}
