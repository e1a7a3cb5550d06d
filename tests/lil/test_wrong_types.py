"""Values of a wrong type: one `InvalidValue` that names the parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import attention
import lil
from attention.errors import InvalidValue
from lil.decoding.options import DecodeOptions

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no budget": (lambda: attention.H2O(budget=None), "budget"),  # type: ignore[arg-type]
    "no budget of a window": (lambda: attention.Sink(budget=None), "budget"),  # type: ignore[arg-type]
    "a warm word": (lambda: DecodeOptions(temperature="hot"), "temperature"),  # type: ignore[arg-type]
    "no temperature": (lambda: DecodeOptions(temperature=None), "temperature"),  # type: ignore[arg-type]
    "a share of tokens": (lambda: DecodeOptions(top_k=0.5), "top_k"),  # type: ignore[arg-type]
    "no share": (lambda: DecodeOptions(top_p=None), "top_p"),  # type: ignore[arg-type]
    "no text": (lambda: lil.curve(None), "source"),  # type: ignore[arg-type]
    "no step": (lambda: lil.curve("a", every_bytes=None), "every_bytes"),  # type: ignore[arg-type]
    "half a token": (lambda: lil.token_curve([b"a"], every_tokens=0.5), "every_tokens"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "field"), WRONG.values(), ids=WRONG)
def test_is_named(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        make()
    assert refused.value.field == field


@dataclass(frozen=True)
class Says(lil.Detector):
    """Gives a word where a verdict belongs."""

    name: ClassVar[str] = "says"

    def watch(self, prompt: bytes = b"") -> lil.Watcher[Any]:  # noqa: ARG002
        return _Says(self)


class _Says(lil.Watcher[Says]):
    def push(self, piece: bytes) -> Any:
        return "stop" if piece == b"loop" else None


def test_a_detector_that_gives_no_verdict_is_named() -> None:
    watcher = Says().watch()
    assert watcher.update([b"a", b"b"]) is None
    with pytest.raises(InvalidValue, match=r"says = 'stop': expected a lil\.Verdict"):
        watcher.update([b"loop"])
