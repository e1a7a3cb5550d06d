"""What a detector must answer, and the verdict it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from attention.errors import InvalidValue


@dataclass(frozen=True)
class Verdict:
    """Why a generation should end: a stop without evidence is a bug.

    Args:
        detector: the detector's name.
        token: generated tokens that are kept.
        evidence: what the detector saw, JSON-able.
    """

    detector: str
    token: int
    evidence: Mapping[str, object]


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


def as_pieces(pieces: Sequence[bytes]) -> Sequence[bytes]:
    """What `update` was given, if it is one element a token.

    Raises:
        InvalidValue: one bytes or str object, whose elements would be bytes, not tokens.
    """
    given: object = pieces
    if isinstance(given, (bytes, str)):
        raise InvalidValue("pieces", pieces, "a list with the bytes of each token")
    return pieces
