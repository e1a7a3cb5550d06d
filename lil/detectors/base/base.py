"""What a detector is: its parameters, the watcher of one sequence, and the verdict it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np

from attention.errors import InvalidValue, check_choice
from attention.identity import import_path, named, ships
from attention.registry import parameters
from attention.spec import Aliases
from lil.detectors.base.actions import ACTIONS, Action, OnStop, action
from lil.detectors.base.region import (
    REGIONS,
    RegionTracker,
    require_end,
    require_thinking,
)
from lil.thinking import LAST
from lil.trace import Signal

if TYPE_CHECKING:
    from lil.hidden_states import Reading

_GREATER, _BRACKET = LAST


@dataclass(frozen=True)
class Verdict:
    """Why a generation should end.

    Args:
        detector: the detector's name.
        token: generated tokens that are kept.
        evidence: what the detector saw, JSON-able; `step` in it says how many tokens had been
            generated, where more than `token`.
        anchor: generated tokens up to the last that still carried information, at most `token`;
            None where the detector cannot tell.
    """

    detector: str
    token: int
    evidence: Mapping[str, object]
    anchor: int | None = None

    @property
    def step(self) -> int:
        """Generated tokens when the verdict came, dropped ones among them."""
        step = self.evidence.get("step", self.token)
        assert isinstance(step, int)
        return step


@dataclass(frozen=True)
class Detector(ABC):
    """When a generation should end: parameters alone; `watch` begins a sequence.

    A subclass is a frozen dataclass with a `name`, its parameters as fields, checked in
    `__post_init__` (which calls this one), and `watch`.

    Args:
        on_stop: what follows a verdict, see `lil.detectors.Action`.
        region: what is watched. None: the output up to the end of its thinking (`</think>`,
            `[/THINK]`), all of it where no thinking ends. "thinking": the thinking alone. "output":
            all of it.

    Raises:
        InvalidValue: an unknown action, one that goes back though no verdict has an anchor, or an
            unknown `region`.
    """

    on_stop: OnStop = field(default="stop", kw_only=True)
    # A parameter that came later is no part of an identity where it has its first value.
    region: str | None = field(default=None, kw_only=True, metadata={"left_out": None})

    name: ClassVar[str]
    #: Raised where the same parameters give other verdicts than before.
    version: ClassVar[int] = 1
    #: Whether verdicts say up to where the text still carried information.
    anchors: ClassVar[bool] = False
    #: A parameter and values of it, the most cautious first: what calibration tries. One reads it
    #: with `steps`, which refuses another form.
    ladder: ClassVar[tuple[str, Sequence[Any]]] = ("", ())
    #: Parameters that say the same, in groups: one that comes later takes the others' place.
    aliases: ClassVar[Aliases] = ()
    #: The parameter with what was trained on one model, and the command that trains it.
    trained: ClassVar[tuple[str, str]] = ("", "")
    #: Whether requests to a server may ask for it: it reads tokens alone, and no files.
    served: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.generic):  # numpy's numbers are no JSON
                object.__setattr__(self, f.name, value.item())
        if self.region is not None:
            check_choice("region", self.region, REGIONS)
        what = action(self.on_stop)
        if what.anchored and not self.anchors:
            allowed = [name for name, kind in ACTIONS.items() if not kind.anchored]
            why = f"one of {', '.join(allowed)}: {self.name} does not know where to go back to"
            raise InvalidValue("on_stop", what.name, why, allowed)
        object.__setattr__(self, "on_stop", what)

    @property
    def action(self) -> Action:
        """What follows a verdict."""
        return cast("Action", self.on_stop)

    def params(self) -> dict[str, Any]:
        """The parameters, resolved and JSON-able."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        del own["on_stop"], own["region"]
        return {**own, "region": self.region, "on_stop": self.action.to_dict()}

    def identity(self) -> dict[str, Any]:
        """Its part of a run's id: name, version above 1, foreign import path and parameters."""
        later = (f for f in fields(self) if "left_out" in f.metadata)
        left_out = {f.name: f.metadata["left_out"] for f in later}
        own = {k: v for k, v in self.params().items() if left_out.get(k, ...) != v}
        record = named(self, {**own, "on_stop": self.action.identity()})
        kind = type(self)
        return record if ships(kind) else {"class": import_path(kind), **record}

    @property
    def uses(self) -> Sequence[Any]:
        """Detectors and classes of codecs that it is made of."""
        return ()

    @classmethod
    def steps(cls) -> tuple[str, Sequence[Any]]:
        """The `ladder`: a parameter and its values; an empty name and no values without one."""
        ladder: object = cls.ladder
        match ladder:
            case (str(name), (tuple() | list()) as values):
                known = [f.name for f in parameters(cls)]
                if bool(name) == bool(values) and (not name or name in known):
                    return name, values
                allowed = f"a parameter of {cls.name} ({', '.join(known)}) and values of it"
                raise InvalidValue("ladder", name or ladder, allowed, known)
        raise InvalidValue("ladder", ladder, 'a name and its values, as ("rate", (0.01, 0.02))')

    @abstractmethod
    def watch(self, prompt: bytes = b"") -> Watcher[Any]:
        """The watcher of a new sequence behind the text `prompt`."""

    # What a detector of tokens alone leaves as it is

    @property
    def signals(self) -> frozenset[str]:
        """Names of the numbers that its watchers make of what the model computes, none by default.

        A trace stores them, so that the same verdicts follow without the model.
        """
        return frozenset()

    @property
    def blocks(self) -> frozenset[int]:
        """Blocks whose hidden states are read, counted from the last if negative."""
        return frozenset()

    @property
    def compared(self) -> frozenset[bytes]:
        """Tokens, by their bytes, whose margins below the best token are read."""
        return frozenset()

    @property
    def cues(self) -> frozenset[str]:
        """What the model reads before the answers that watchers ask for."""
        return frozenset()

    def quiet(self) -> Self:
        """The detector that makes the same signals and never fires."""
        return self

    def anew(self) -> Detector | None:
        """The detector of a second verdict, behind what an action kept; None for nothing."""
        return self

    def everywhere(self) -> Self:
        """The same over the whole output."""
        return replace(self, region="output")

    def require_tokens(self, table: Sequence[bytes]) -> None:
        """Refuse a tokenizer (bytes of each id) with which it could never fire."""
        require_end(table, self.region)

    def require_text(self, text: bytes) -> None:
        """Refuse a finished text, prompt and output, on which it could never have fired."""
        require_thinking(text, self.region)


D = TypeVar("D", bound=Detector)


class Watcher(ABC, Generic[D]):
    """One sequence under watch.

    A verdict does not depend on how the stream was cut into `update` calls, and it stays. A watcher
    that reads what the model computes gets it one step after the token was chosen: `update` sees
    the token, `see` gets the reading if `wants`, and the next `update` answers. The numbers it
    makes are its signals; with `recall` the same verdict follows from them.

    `prompt` is the text before the first generated token, which may have opened the thinking.
    """

    def __init__(self, detector: D, prompt: bytes = b"") -> None:
        self.detector = detector
        self.tokens = 0  # generated so far, up to the end of what is watched
        self.verdict: Verdict | None = None
        self.tracker = RegionTracker(detector.region, prompt)

    def update(self, pieces: Sequence[bytes]) -> Verdict | None:
        """See the next generated tokens, one element each; the verdict, once there is one."""
        value: object = pieces
        if isinstance(value, (bytes, str)):
            raise InvalidValue("pieces", pieces, "a list with the bytes of each token")
        tracker, newest, at = self.tracker, self.tracker.newest, 0
        while at < len(pieces) and not self.done:
            many = max(self.patience, 1) if len(pieces) - at > 1 else 1
            part = pieces[at : at + many]
            at += len(part)
            text = b"".join(part)
            if many > 1 and tracker.counts and not (_GREATER in text or _BRACKET in text):
                newest.extend(part)
                self.tokens += len(part)
                self.absorb(part)
                continue
            for piece in part:
                newest.append(piece)
                if (_GREATER in piece or _BRACKET in piece) and tracker.look():
                    break
                self.tokens += 1
                if tracker.counts:
                    answer: object = self.push(piece)
                    if not isinstance(answer, (Verdict, NoneType)):
                        allowed = "a lil.Verdict from `push`, or None"
                        raise InvalidValue(self.detector.name, answer, allowed)
                    self.verdict = answer
                    if answer is not None:
                        break
        return self.verdict

    @property
    def done(self) -> bool:
        """Whether nothing that follows will be looked at."""
        return self.verdict is not None or self.tracker.over

    @abstractmethod
    def push(self, piece: bytes) -> Verdict | None:
        """See the next token, the `tokens`-th; the verdict if it brings one."""

    @property
    def patience(self) -> int:
        """How many of the next tokens bring no verdict, whatever they are; 0 where unknown.

        They may be shown later, together with the token behind them.
        """
        return 0

    def absorb(self, pieces: Sequence[bytes]) -> None:
        """See tokens that bring no verdict, at most `patience`; they are in `tokens` already."""

    def returns(self) -> Sequence[int]:
        """Numbers of generated tokens that a coming verdict may cut or rewind to.

        A number is named first while it is `tokens`: the loop keeps the state until it is no longer
        named. None is needed where the verdict keeps all tokens, or where nothing is decoded behind
        it.
        """
        return ()

    # What a watcher of tokens alone leaves as it is

    @property
    def wants(self) -> bool:
        """Whether it needs what the model reads at the newest token."""
        return False

    def see(self, reading: Reading) -> None:
        """What the model computed at the newest token."""

    def asking(self) -> Sequence[Any]:
        """The watchers, of it or its parts, that ask for an answer at the newest token."""
        return ()

    def seen(self) -> Mapping[str, Signal]:
        """The signals so far, by name."""
        return {}

    def recall(self, signals: Mapping[str, Signal]) -> None:
        """Take numbers from these signals instead of from the model."""
