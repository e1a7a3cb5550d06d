"""What follows a verdict: stop, answer, regenerate, densify or reheat."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias

from attention.errors import InvalidValue, check_choice, check_int, check_number
from lil.thinking import KNOWN, closing, own_marks

#: What may follow a second verdict.
SECOND = ("stop", "nothing")

#: The Word Salad Chopper's cue (paper, section 4.3), for models that think in English prose.
FOCUS = "I can find a clearer solution if I focus on the core problem."


@dataclass(frozen=True, kw_only=True)
class Action:
    """What happens to a row when its detector fires.

    After an action that goes on, the row's detectors begin anew behind the cut. A row acts once at
    most, or `retries` times where its action has them, and the next verdict ends it.
    """

    name: ClassVar[str]
    ends: ClassVar[bool] = False  # the row is finished
    rewinds: ClassVar[bool] = False  # back to the last token that still carried information
    anchored: ClassVar[bool] = False  # impossible where the detector cannot tell which that is
    dense: ClassVar[bool] = False  # full attention from here on

    @property
    def watched(self) -> bool:
        """Whether a second verdict ends the row."""
        return getattr(self, "second", "nothing") == "stop"

    @property
    def tries(self) -> int:
        """How many verdicts of a row are acted upon."""
        return getattr(self, "retries", 1)

    @property
    def gives(self) -> tuple[str, int | None]:
        """Text given next, token by token, and the most tokens generated after it."""
        return "", None

    @property
    def heat(self) -> tuple[float, int]:
        """The temperature of the next tokens, and how many of them have it; none by default."""
        return 0.0, 0

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters, JSON-able; `action` gives the object back."""
        return {"name": self.name, **asdict(self)}

    def identity(self) -> dict[str, Any]:
        """What runs in which it is taken are stored under."""
        record = self.to_dict()
        for key, first in (("second", "nothing"), ("retries", 1)):  # as were all actions once
            if record.get(key) == first:
                del record[key]
        return record


@dataclass(frozen=True, kw_only=True)
class Stop(Action):
    """The generation ends with what the verdict keeps (the Lil paper's only action)."""

    name: ClassVar[str] = "stop"
    ends: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class CueAction(Action):
    """An action after which the model reads a few words.

    Raises:
        InvalidValue: an empty cue, `tokens` below 1, or another `second`.
    """

    cue: str
    tokens: int
    second: str = "stop"

    def __post_init__(self) -> None:
        check_choice("second", self.second, SECOND)
        if not isinstance(self.cue, str) or not self.cue:
            raise InvalidValue("cue", self.cue, "a text")
        object.__setattr__(self, "tokens", check_int("tokens", self.tokens, 1))

    @property
    def gives(self) -> tuple[str, int | None]:
        return self.cue, self.tokens


@dataclass(frozen=True, kw_only=True)
class Answer(CueAction):
    """The model reads the end of thinking and answers within a few tokens.

    As budget forcing in s1 (arXiv 2501.19393). Where the output holds the cue already, or the
    prompt has ended the thinking, the row stops.

    Args:
        cue: text that ends the thinking; the end of what was opened, or of the marks in the
            model's chat template, takes the place of another's end in it.
        tokens: most tokens of the answer.
        second: what follows a second verdict: "stop" or "nothing".
    """

    name: ClassVar[str] = "answer"
    cue: str = "</think>"
    tokens: int = 256


@dataclass(frozen=True, kw_only=True)
class Regenerate(CueAction):
    """Back to the last token that still carried information, a cue, and on from there.

    The Word Salad Chopper's second half (paper, section 4.3). Where we differ: a verdict after the
    last try stops, unless `second` is "nothing". Dropped tokens are charged.

    Args:
        cue: text that starts the new try; its words must be in the model's vocabulary.
        tokens: most tokens generated after it.
        second: what follows a verdict after the first: "nothing", or "stop" behind the last try.
        retries: tries that a row has.
    """

    name: ClassVar[str] = "regenerate"
    rewinds: ClassVar[bool] = True
    anchored: ClassVar[bool] = True
    cue: str = FOCUS
    tokens: int = 4096
    retries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "retries", check_int("retries", self.retries, 1))


@dataclass(frozen=True, kw_only=True)
class Densify(Action):
    """The row goes on under full attention; for backends that keep every key.

    Keys and values stay as the sparse method computed them. `second` says what follows a second
    verdict: "stop" or "nothing".
    """

    name: ClassVar[str] = "densify"
    dense: ClassVar[bool] = True
    second: str = "stop"

    def __post_init__(self) -> None:
        check_choice("second", self.second, SECOND)


@dataclass(frozen=True, kw_only=True)
class Reheat(Action):
    """Back to the last token that still carried information, and on at a higher temperature.

    Ours; models loop less at high temperatures (arXiv 2512.12895). Where the detector cannot tell
    which token that was, the row goes on from the newest. Top-k, top-p and the row's random stream
    stay, of which a greedy run takes a number for each of these tokens. The first token of an
    output always stays. Dropped tokens are charged. Captured steps of a run with it do not hold the
    choice of the token.

    Args:
        temperature: of the next tokens.
        tokens: how many have it; the others have the run's.
        retries: verdicts that are acted upon before the next one stops the row.

    Raises:
        InvalidValue: a temperature that is not above 0, or `tokens` or `retries` below 1.
    """

    name: ClassVar[str] = "reheat"
    rewinds: ClassVar[bool] = True
    temperature: float = 1.0
    tokens: int = 100
    retries: int = 1

    def __post_init__(self) -> None:
        allowed = "a number above 0"
        check_number("temperature", self.temperature, allowed, above=0, below=math.inf)
        for name in ("tokens", "retries"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))

    @property
    def watched(self) -> bool:
        return True

    @property
    def heat(self) -> tuple[float, int]:
        return self.temperature, self.tokens


#: How an action is given: as it is, by name, or as `Action.to_dict` wrote it.
OnStop: TypeAlias = Action | str | Mapping[str, Any]

ACTIONS: Mapping[str, type[Action]] = {
    a.name: a for a in (Stop, Answer, Regenerate, Densify, Reheat)
}


def action(value: OnStop) -> Action:
    """An action from its name, from `to_dict`'s table, or as it is."""
    if isinstance(value, Action):
        return value
    if not isinstance(value, (str, Mapping)):
        raise InvalidValue("on_stop", value, "an action, its name, or a table of it")
    params = {"name": value} if isinstance(value, str) else dict(value)
    name = str(params.pop("name", None))
    if name not in ACTIONS:
        raise InvalidValue("on_stop", name, "one of " + ", ".join(ACTIONS), list(ACTIONS))
    kind = ACTIONS[name]
    known = [f.name for f in fields(kind)]
    for key in params:
        if key not in known:
            allowed = f"a parameter of {name}: " + (", ".join(known) or "it has none")
            raise InvalidValue("on_stop", key, allowed, known)
    return kind(**params)


def cues_of(cue: str, tokenizer: Any, table: Sequence[bytes]) -> dict[str, list[int]]:
    """Token ids of a cue, and of it with every other end of thinking that has tokens."""
    own = own_marks(tokenizer)
    cues = {cue: cue_ids(cue, tokenizer, table)}
    for other in {closing(cue, marks, own) for marks in (None, *KNOWN, *own)} - {cue}:
        with contextlib.suppress(InvalidValue):  # a model without them opens no such thinking
            cues[other] = cue_ids(other, tokenizer, table)
    return cues


def cue_ids(cue: str, tokenizer: Any, table: Sequence[bytes]) -> list[int]:
    """Token ids of a cue, none of none; words that the tokenizer lacks are refused."""
    if not cue:
        return []
    ids: list[int] = tokenizer(cue, add_special_tokens=False)["input_ids"]
    text = b"".join(table[i] for i in ids)
    # SentencePiece begins a text with a space of its own.
    if text.removeprefix(b" ") != cue.encode().removeprefix(b" "):
        reading = text.decode(errors="replace")
        raise InvalidValue(
            "cue", cue, f"a text whose words the tokenizer has (it reads {reading!r})"
        )
    return ids
