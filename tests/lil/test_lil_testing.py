"""The checks for authors: all that ships passes them, and each check finds its defect."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import lil
from attention.errors import InvalidValue
from lil import codecs, detectors, penalties
from lil.chopper.classifier import Classifier
from lil.penalties import StatefulPenalty
from lil.testing import CHECKS, ContractBroken, check

SALAD = Classifier(torch.ones(64), 5.0, -1, "a model that knows it")
FIRES = {
    "guardian": {"f": 40, "on_stop": "regenerate"},
    "cycle": {},
    "budget": {"tokens": 90},
    "chopper": {"weights": SALAD},
    "recurrence": {},
    "stall": {"drift": -0.5},
    "margin": {},
    "either": {"parts": [{"name": "margin", "below": 0.01}, "recurrence"]},
    "both": {"parts": ["margin", "guardian", {"name": "either", "parts": "cycle+recurrence"}]},
}


@pytest.mark.parametrize("name", detectors.names())
def test_every_detector_keeps_the_contract(name: str) -> None:
    # A classifier that was never in a file cannot be built again from its path.
    left = {"declared"} if name == "chopper" else set()
    found = check(detectors.get(name, **FIRES[name]), skip=left)
    assert set(found) == set(CHECKS["detector"]) - left


@pytest.mark.parametrize("name", penalties.names())
def test_every_penalty_keeps_the_contract(name: str) -> None:
    assert set(check(penalties.get(name))) == set(CHECKS["penalty"])


@pytest.mark.parametrize("name", codecs.names())
def test_every_codec_keeps_the_contract(name: str) -> None:
    assert set(check(codecs.find(name))) == set(CHECKS["codec"])


# ---------------------------------------------------------------- with one defect each


@dataclass(frozen=True)
class Forgotten(lil.Budget):
    """Leaves a parameter out of what is stored."""

    name: ClassVar[str] = "forgotten"
    patience: int = field(default=3, compare=False)

    def params(self) -> dict[str, Any]:
        return {**super().params(), "seen": (1, 2)}


@dataclass(frozen=True)
class Mine(lil.Detector):
    """Fires at token 30; made of a watcher with one thing wrong."""

    name: ClassVar[str] = "mine"
    kind: type[lil.Watcher[Any]] = field(default=lil.Watcher, compare=False)

    def watch(self, prompt: bytes = b"") -> lil.Watcher[Any]:
        return self.kind(self)


class Sound(lil.Watcher[Mine]):
    def push(self, piece: bytes) -> lil.Verdict | None:
        if self.tokens % 30:
            return None
        return lil.Verdict("mine", self.tokens, {"step": self.tokens, "piece": piece.decode()})


class NoStep(Sound):
    def push(self, piece: bytes) -> lil.Verdict | None:
        return lil.Verdict("mine", 30, {"why": "so"}) if super().push(piece) else None


class ByUpdate(Sound):
    """Counts updates instead of tokens."""

    def update(self, pieces: Any) -> lil.Verdict | None:
        self.tokens += 1
        self.verdict = self.verdict or (self.push(b"") if pieces else None)
        return self.verdict


class Changing(Sound):
    def update(self, pieces: Any) -> lil.Verdict | None:
        if self.verdict is not None and not pieces:
            return None
        return super().update(pieces)


class Shared(Sound):
    """Counts the tokens of all sequences together, from each beginning on."""

    count: ClassVar[dict[int, int]] = {}

    def __init__(self, detector: Mine) -> None:
        super().__init__(detector)
        self.count.clear()

    def push(self, piece: bytes) -> lil.Verdict | None:
        self.count[0] = self.count.get(0, 0) + 1
        ended = self.count[0] >= 30
        return lil.Verdict("mine", self.tokens, {"step": self.tokens}) if ended else None


class OnlyLive(Sound):
    """Takes a stored trace for something else."""

    def recall(self, signals: Any) -> None:
        self.tokens = 5 + len(signals)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (NoStep, "evidence", "step"),
        (ByUpdate, "cuts", "in updates of"),
        (Changing, "lasting", "gives None"),
        (Shared, "apart", "beside another"),
        (OnlyLive, "replayed", "replayed: "),
    ],
)
def test_a_detectors_defect_is_named(kind: Any, name: str, message: str) -> None:
    others = set(CHECKS["detector"]) - {name}
    with pytest.raises(ContractBroken, match=f"mine fails the check '{name}'.*{message}"):
        check(Mine(kind=kind), skip=others)
    assert check(Mine(kind=Sound), skip=["declared"])


def test_a_detectors_parameters_must_come_back() -> None:
    with pytest.raises(ContractBroken, match="declared"):
        check(Forgotten(tokens=30))


def test_a_detector_must_fire() -> None:
    with pytest.raises(ContractBroken, match="no verdict in 1000 tokens"):
        check(lil.Budget(tokens=5000))
    text = [b"x"] * 12
    assert "at token 12" in check(lil.Budget(tokens=12), text=text)["evidence"]


@dataclass(frozen=True, kw_only=True)
class Less(lil.Penalty):
    """A token that stands in the history is worth one less."""

    name: ClassVar[str] = "less"

    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row, n in enumerate(lengths.tolist()):
            scores[row, history[row, history.shape[1] - n :].unique()] -= 1
        return scores


@dataclass(frozen=True, kw_only=True)
class Tuple(Less):
    name: ClassVar[str] = "tuple"

    def params(self) -> dict[str, Any]:
        return {**super().params(), "tokens": [1]}


class NeutralCopies(Less):
    neutral = True  # type: ignore[assignment]


class Writes(Less):
    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        scores -= super().penalise(history, lengths, scores) * 0 + 1
        return scores


class CountsPadding(Less):
    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        return super().penalise(history, torch.full_like(lengths, history.shape[1]), scores)


class AlwaysThePrompt(Less):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        lengths = torch.full((len(input_ids),), input_ids.shape[1])
        return self.penalise(input_ids, lengths, scores)


class Remembers(StatefulPenalty):
    """Counts tokens, but never those after the first call."""

    name: ClassVar[str] = "remembers"

    def begin(self, history: Tensor, vocabulary: int, /) -> Tensor:
        counts = torch.zeros(len(history), vocabulary, dtype=torch.float64)
        for row, tokens in enumerate(history):
            counts[row, tokens[tokens >= 0].unique()] = 1
        return counts

    def push(self, memory: Tensor, newest: Tensor, live: Tensor | None) -> Tensor:
        return memory

    def apply(self, memory: Tensor, scores: Tensor) -> Tensor:
        return scores - memory.to(scores.dtype)


class KeepsDrafts(Less):
    """Remembers the longest ids it was called with."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        longest = self.__dict__.get("longest", input_ids)
        if input_ids.shape[1] >= longest.shape[1]:
            longest = input_ids
        object.__setattr__(self, "longest", longest)
        return self.penalise(longest, torch.full((len(longest),), longest.shape[1]), scores)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (Tuple, "declared"),
        (NeutralCopies, "neutral"),
        (lambda: penalties.get("no_repeat_ngram", ngram_size=60), "neutral"),
        (Writes, "untouched"),
        (CountsPadding, "rows"),
        (AlwaysThePrompt, "prompt"),
        (Remembers, "steps"),
        (KeepsDrafts, "drafts"),
    ],
)
def test_a_penaltys_defect_is_named(made: Callable[[], lil.Penalty], name: str) -> None:
    with pytest.raises(ContractBroken, match=f"fails the check '{name}'"):
        check(made(), skip=set(CHECKS["penalty"]) - {name})


def test_a_sound_penalty_and_neutral_ones_pass() -> None:
    assert check(Less())
    assert "gives back" in check(penalties.get("lz", alpha=0))["neutral"]


class Plain(lil.Codec):
    """zlib over everything, a stream of bytes."""

    name: ClassVar[str] = "plain"

    def __init__(self, symbols: codecs.Symbols) -> None:
        self.data = bytearray()

    def feed(self, data: bytes) -> None:
        self.data += data

    def size(self) -> int:
        return len(zlib.compress(bytes(self.data)))

    def copy(self) -> lil.Codec:
        twin = type(self)(codecs.TEXT)
        twin.data = bytearray(self.data)
        return twin


class Nameless(Plain):
    name = "no name"


class NothingIsNothing(Plain):
    def size(self) -> int:
        return super().size() if self.data else None  # type: ignore[return-value]


class ByPieces(Plain):
    def feed(self, data: bytes) -> None:
        self.data += zlib.compress(data)


class Closes(Plain):
    def size(self) -> int:
        self.data += b"end"
        return super().size()


class SharesData(Plain):
    def copy(self) -> lil.Codec:
        return self


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Nameless, "declared"),
        (NothingIsNothing, "empty"),
        (ByPieces, "cuts"),
        (Closes, "open"),
        (SharesData, "copy"),
    ],
)
def test_a_codecs_defect_is_named(kind: type[lil.Codec], name: str) -> None:
    with pytest.raises(ContractBroken, match=f"fails the check '{name}'"):
        check(kind, skip=set(CHECKS["codec"]) - {name})
    assert check(Plain)


def test_what_is_none_of_the_three_is_refused() -> None:
    with pytest.raises(InvalidValue, match="thing = 3"):
        check(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="did you mean 'cuts'"):
        check(lil.Budget(tokens=9), skip=["cut"])
