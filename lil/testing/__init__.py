"""Checks that a new detector, penalty or codec keeps the contract of `lil`, for other packages too.

from lil.testing import check
check(MyDetector(tokens=40))

Nothing here is imported by the library itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attention.errors import InvalidValue
from attention.testing import ContractBroken
from attention.testing.broken import run
from lil.compression.codecs import Codec
from lil.detectors import Detector
from lil.penalties import Penalty
from lil.testing.codecs import CODEC_CHECKS
from lil.testing.detectors import DETECTOR_CHECKS, DetectorCase
from lil.testing.penalties import PENALTY_CHECKS

__all__ = ["CHECKS", "ContractBroken", "check"]

#: What each kind is held to, by name.
CHECKS: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "detector": DETECTOR_CHECKS,
    "penalty": PENALTY_CHECKS,
    "codec": CODEC_CHECKS,
}


def check(
    thing: Detector | Penalty | type[Codec],
    *,
    skip: Iterable[str] = (),
    text: Sequence[bytes] | None = None,
    hidden_size: int = 64,
) -> dict[str, str]:
    """See that a detector, a penalty or a codec keeps its contract, on made-up texts.

    Args:
        thing: a detector or a penalty with its parameters, or a codec's class.
        skip: names of checks, of `CHECKS` for this kind, that are broken on purpose.
        text: generated tokens upon which a detector fires, one element each; by default 200 fresh
            ones and a loop of seven, 1,000 in all.
        hidden_size: of the hidden states that a detector is handed if it wants any.

    Returns:
        What each check found, by its name.

    Raises:
        ContractBroken: with what was found.
        InvalidValue: it is none of these, `skip` names no check, or `text` is no list of bytes.
    """
    if text is not None and not (isinstance(text, Sequence) and all(map(_is_piece, text))):
        allowed = 'a list with the bytes of each token, as [b"one", b" more"]'
        raise InvalidValue("text", text, allowed)
    if isinstance(thing, Detector):
        return run(thing.name, DETECTOR_CHECKS, DetectorCase(thing, text, hidden_size), skip)
    if isinstance(thing, Penalty):
        return run(thing.name, CHECKS["penalty"], thing, skip)
    if isinstance(thing, type) and issubclass(thing, Codec):
        return run(thing.name, CHECKS["codec"], thing, skip)
    raise InvalidValue("thing", thing, "a Detector, a Penalty, or a subclass of Codec")


def _is_piece(piece: object) -> bool:
    return isinstance(piece, bytes)
