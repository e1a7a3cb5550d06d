"""What an author of a detector may get wrong in `returns`, `ladder` and `aliases` is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

import lil
from attention.errors import InvalidValue
from lil import detectors
from lil.testing import CHECKS, ContractBroken, check


@dataclass(frozen=True)
class Mine(lil.Detector):
    """Fires at token 30, and its text carried information up to token 20."""

    name: ClassVar[str] = "mine"
    anchors: ClassVar[bool] = True
    kind: type[lil.Watcher[Any]] = field(default=lil.Watcher, compare=False)
    after: int = 30

    def watch(self, prompt: bytes = b"") -> lil.Watcher[Any]:
        return self.kind(self, prompt)


class Sound(lil.Watcher[Mine]):
    def push(self, piece: bytes) -> lil.Verdict | None:  # noqa: ARG002
        if self.tokens < 30:
            return None
        return lil.Verdict("mine", self.tokens, {"step": self.tokens}, anchor=20)

    def returns(self) -> Sequence[int]:
        return (self.tokens // 20 * 20,)


class Nowhere(Sound):
    def returns(self) -> Sequence[int]:
        return ()


class Anchorless(Sound):
    def push(self, piece: bytes) -> lil.Verdict | None:  # noqa: ARG002
        return lil.Verdict("mine", 30, {"step": 30}) if self.tokens == 30 else None


ALONE = set(CHECKS["detector"]) - {"returns"}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Nowhere, r"'regenerate' the verdict goes back from token 30 to 20: .*must name 20"),
        (Anchorless, "has no anchor"),
    ],
)
def test_a_return_that_cannot_be_made_is_found(kind: Any, message: str) -> None:
    with pytest.raises(ContractBroken, match=f"mine fails the check 'returns': .*{message}"):
        check(Mine(kind=kind), skip=ALONE)


def test_sound_returns_pass() -> None:
    result = check(Mine(kind=Sound), skip=["declared"])["returns"]
    assert result == (
        "answer: from 30 to 30, at most 1 states kept; "
        "regenerate: from 30 to 20, at most 1 states kept"
    )


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"ladder": (("tokens", (9, 5)),)}, "ladder = .*a name and its values"),
        ({"ladder": ("tokens", 9, 5)}, "ladder = .*a name and its values"),
        ({"ladder": {"tokens": (9, 5)}}, "ladder = .*a name and its values"),
        (
            {"ladder": ("tokens", ())},
            r"ladder = 'tokens'.*a parameter of mine \(.*tokens.*values of it",
        ),
        ({"ladder": ("token", (9, 5))}, "ladder = 'token'.*did you mean 'tokens'"),
        ({"ladder": ("tokens", (9, -5))}, "ladder`: tokens = -5"),
        ({"aliases": (("foo", "bar"),)}, "aliases = .*'foo'.* is none; expected .*tokens"),
        ({"aliases": ("tokens", "region")}, "aliases = .*'tokens' is none"),
    ],
)
def test_a_wrong_declaration_is_found(declared: dict[str, Any], message: str) -> None:
    kind = type("Mine", (lil.Budget,), {"name": "mine", **declared})
    kind.__qualname__ = "made.<locals>.Mine"
    with pytest.raises(ContractBroken, match=f"(?s)mine fails the check 'declared': .*{message}"):
        check(kind(tokens=30), skip=set(CHECKS["detector"]) - {"declared"})


def test_get_takes_what_is_typed_elsewhere() -> None:
    typed = detectors.get("guardian(f=100, rate=0.1):answer")
    assert typed == detectors.get("guardian", f=100, rate=0.1, on_stop="answer")
    assert detectors.get("guardian:answer", on_stop="stop", f=9) == lil.Guardian(f=9)
    assert detectors.get("guardian(rate=0.1)", t=5) == lil.Guardian(t=5)
    with pytest.raises(InvalidValue, match="parameter = 'n'"):
        detectors.get("guardian(n=100)")
    with pytest.raises(InvalidValue, match=r"one of .*guardian"):
        detectors.get("distinct(n=100):answer")
