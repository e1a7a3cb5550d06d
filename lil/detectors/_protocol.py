"""What a detector must answer, and the verdict it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from attention.errors import InvalidValue
from lil.actions import ACTIONS, Action, OnStop, action

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """Why a generation should end: a stop without evidence is a bug.

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


@runtime_checkable
class Detector(Protocol):
    """Watches one generation, a token's bytes at a time.

    Frozen parameters with state beside them: whoever runs several sequences takes one `clone()` for
    each. A verdict must not depend on how the stream was cut into `update` calls; after it, further
    updates give the same verdict until the next `start`.
    """

    name: ClassVar[str]

    def params(self) -> dict[str, object]:
        """The parameters, resolved and JSON-able."""
        ...

    def start(self, prompt: bytes = b"") -> None:
        """Begin a sequence, forgetting the last one."""
        ...

    def update(self, pieces: Sequence[bytes]) -> Verdict | None:
        """See the next generated tokens, one element each."""
        ...

    def clone(self) -> Detector:
        """An independent detector with the same parameters, not yet started."""
        ...


@runtime_checkable
class Acting(Protocol):
    """A detector that says what follows its verdict, where that is more than to stop."""

    @property
    def on_stop(self) -> OnStop:
        """What follows; see `lil.actions`."""
        ...

    def returns(self) -> Sequence[int]:
        """Numbers of generated tokens that a coming verdict may cut or rewind to.

        A number is named first while it is the present one: the state is remembered from then
        until the number is no longer named. Asked after each `update` and `see`.
        """
        ...


@runtime_checkable
class Reading(Protocol):
    """A detector that reads the model's hidden states at some tokens.

    A token's hidden state exists once the model has read it, one step after the token was chosen:
    `update` sees the token, then, if `wants`, `see` gets its state, and the next `update` answers.
    What it made of each is a signal, one number a token, which a trace stores; with `recall` the
    same verdicts follow from it without the model.
    """

    @property
    def block(self) -> int:
        """The block whose output is read, counted from the last if negative."""
        ...

    @property
    def wants(self) -> bool:
        """Whether the newest token's hidden state is needed."""
        ...

    def see(self, hidden: Tensor) -> None:
        """The newest token's hidden state, (hidden size,)."""
        ...

    def quiet(self) -> Detector:
        """A clone that takes note of every number and never fires."""
        ...

    @property
    def signal(self) -> str:
        """The signal's name: two detectors that make the same numbers share it."""
        ...

    def seen(self) -> Sequence[tuple[int, float]]:
        """The signal so far: (generated tokens, number), ascending."""
        ...

    def recall(self, signal: Sequence[tuple[int, float]]) -> None:
        """Take numbers from here instead of from hidden states, until the next `start`."""
        ...


def as_pieces(pieces: Sequence[bytes]) -> Sequence[bytes]:
    """What `update` was given, if it is one element a token.

    Raises:
        InvalidValue: one bytes or str object, whose elements would be bytes, not tokens.
    """
    given: object = pieces
    if isinstance(given, (bytes, str)):
        raise InvalidValue("pieces", pieces, "a list with the bytes of each token")
    return pieces


def follows(detector: Detector) -> Action:
    """What follows a detector's verdict; to stop, where it does not say."""
    return action(detector.on_stop if isinstance(detector, Acting) else "stop")


def onward(detector: str, on_stop: OnStop) -> Action:
    """The action of a detector that knows no anchor.

    Raises:
        InvalidValue: an unknown action, or one that goes back to an anchor.
    """
    found = action(on_stop)
    if found.rewinds:
        allowed = [name for name, kind in ACTIONS.items() if not kind.rewinds]
        why = f"one of {', '.join(allowed)}: {detector} does not know where to go back to"
        raise InvalidValue("on_stop", found.name, why, allowed)
    return found
