"""Detectors that ask the model for an answer, while the text goes on as if nobody had asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from attention.errors import InvalidValue, check_int
from lil.chopper.chunks import ends_chunk, ends_sentence
from lil.detectors.base.base import Verdict
from lil.detectors.base.signals import SignalDetector, SignalWatcher
from lil.trace import Signal

#: What trials cost, tokens and keys read; each is a signal of its own, `<signal>:<cost>`.
COSTS = ("tokens", "keys", "seconds")
_NOTHING = b" \t\r\n.!?\"')]}*`"  # a token of nothing else begins no sentence or chunk


@dataclass
class Trial:
    """A trial answer: the ids that a row's copy reads, and what it says behind them.

    `best` and `entropies`, in nats, are those of the next token, at each of the answer's.
    """

    asking: Asking
    ids: list[int]
    answer: bytes = b""
    best: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    ended: bool = False
    tokens: int = 0  # read so far
    keys: float = 0.0
    seconds: float = 0.0

    def read(self, keys: float, token: int, piece: bytes | None, best: float, doubt: float) -> None:
        """The next id was read; what follows it has no piece where it ends the text."""
        self.tokens, self.keys = self.tokens + 1, self.keys + keys
        if self.tokens < len(self.ids):
            return
        self.ids.append(token)
        self.best.append(min(best, 0.0))
        self.entropies.append(max(doubt, 0.0))
        text = self.answer + (piece or b"")
        end = self.asking.end(text)
        self.answer = text[:end]
        self.ended = end is not None or piece is None or len(self.best) == self.asking.tokens


@dataclass(frozen=True)
class Asking(SignalDetector):
    """A detector whose numbers are of trial answers; an action `answer` goes on to the real one.

    At some tokens, until the thinking ends, a copy of the row reads `cue` and decodes an answer
    greedily, without penalties, to `eos`, the end of its line or of the braces that the cue opens,
    that token included, or to `tokens` of them. A number exists one token later: `step` in the
    evidence counts the token behind, which the verdict drops as it does a word.

    Args:
        cue: what is read first; the end of the thinking that is open replaces another's in it.
        at: "word", "sentence" (its end, as for `margin`) or "chunk" (a blank line), if anything was
            said in it, or every so many tokens.
        words: of "word", separated by blanks: tokens, but for blanks, in whose place it asks.
        tokens: most tokens of an answer.

    Raises:
        InvalidValue: a value that cannot be used, unknown action, or `regenerate`.
    """

    cue: str = "\n**Final Answer**\n\\boxed{"
    at: str | int = "word"
    words: str = "Wait"
    tokens: int = 20
    never: ClassVar[float]  # the value of `ladder`'s parameter that never fires

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("cue", self.cue), ("words", self.words)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidValue(name, value, "a text with a word in it")
        if self.at not in ("word", "sentence", "chunk"):
            check_int("at", self.at, 1, "word, sentence, chunk, or a number of tokens")
        check_int("tokens", self.tokens, 1)

    @abstractmethod
    def number(self, trial: Trial) -> float:
        """What an answer comes to, at least 0."""

    @abstractmethod
    def evidence(self, numbers: Sequence[float]) -> dict[str, float]:
        """Why the newest number brings a verdict; empty where it does not."""

    @property
    def cues(self) -> frozenset[str]:
        return frozenset([self.cue])

    @property
    def signal(self) -> str:
        where = self.words if self.at == "word" else self.at
        return f"{self.name}-{where}-{self.tokens}-{self.cue}"

    def end(self, answer: bytes) -> int | None:
        """Where the text behind the cue has the answer's end."""
        opened = depth = self.cue.count("{") - self.cue.count("}")
        for at, mark in enumerate(answer.decode("latin-1")):
            depth += (mark == "{") - (mark == "}")
            if (opened > 0 and not depth) or (mark == "\n" and answer[:at].strip()):
                return at
        return None

    def quiet(self) -> Self:
        """One that takes note of every number and never fires."""
        return replace(self, **{self.ladder[0]: self.never})  # type: ignore[arg-type]

    def anew(self) -> None:
        """An answer is not asked about."""

    def require_tokens(self, table: Sequence[bytes]) -> None:
        super().require_tokens(table)
        if self.at == "word" and {x.strip() for x in table}.isdisjoint(self.words.encode().split()):
            raise InvalidValue("words", self.words, "words of which one at least is a token")

    def watch(self, prompt: bytes = b"") -> AskingWatcher:
        return AskingWatcher(self, prompt)


class AskingWatcher(SignalWatcher[Asking]):
    """Asks; a number's place is how many tokens were read before the cue, which a verdict keeps."""

    event: ClassVar[str] = "is one to ask at"
    least: ClassVar[float] = 0

    def __init__(self, detector: Asking, prompt: bytes = b"") -> None:
        super().__init__(detector, prompt)
        self._begun = False  # something was written in this sentence or chunk
        self._costs: dict[str, dict[int, float]] = {name: {} for name in COSTS}

    def asks(self, piece: bytes) -> bool:
        at, begun = self.detector.at, self._begun or bool(piece.strip(_NOTHING))
        if at == "word":
            return piece.strip() in self.detector.words.encode().split() and self.tokens > 1
        if isinstance(at, int):
            return self.tokens % at == 0
        due = begun and (ends_chunk if at == "chunk" else ends_sentence)(piece)
        self._begun = begun and not due
        return due

    def push(self, piece: bytes) -> Verdict | None:
        if self.tracker.ended:
            return None
        verdict = super().push(piece)
        if self.pending is not None:
            self.pending -= self.detector.at == "word"
        return verdict

    def number(self, reading: Trial) -> float:
        return self.detector.number(reading)

    def judge(self) -> Verdict | None:
        if not self.numbers or self.numbers[-1][0] < self.tokens - 2:  # judged already
            return None
        why = self.detector.evidence([x for _, x in self.numbers])
        evidence = {"step": self.tokens, **why}
        return Verdict(self.detector.name, self.numbers[-1][0], evidence) if why else None

    def asking(self) -> Sequence[AskingWatcher]:
        return [self] if self.wants else []

    def hear(self, trial: Trial) -> None:
        """The answer to what it asks at the newest token."""
        for name in COSTS:
            self._costs[name][self.pending or 0] = float(getattr(trial, name))
        self.see(trial)

    def seen(self) -> Mapping[str, Signal]:
        """(Place, number), ascending; and what was asked there has cost."""
        signals = dict(super().seen())
        places = {*dict(self.numbers), self.pending}
        for name, of in self._costs.items():
            costs = tuple((place, x) for place, x in of.items() if place in places)
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
        asked = [] if self.pending is None else [self.pending]
        return [*asked, self.tokens] if self.detector.at == "word" else asked


def asked(signals: Mapping[str, Signal]) -> dict[str, float]:
    """What questions cost, of all signals: a sum for each of `COSTS`."""
    items = [(name.rpartition(":")[2], signal) for name, signal in signals.items()]
    return {cost: sum(x for end, of in items if end == cost for _, x in of) for cost in COSTS}
