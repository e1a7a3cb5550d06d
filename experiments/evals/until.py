"""Stop strings: a generation ends with the token that completes one, and its text before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from attention.errors import InvalidValue
from lil import Detector, Trace, Verdict, Watcher


@dataclass(frozen=True)
class Until(Detector):
    """Ends a generation once its text holds one of these strings.

    Args:
        strings: any of them ends it; the prompt is not searched.

    Raises:
        InvalidValue: none, or an empty one, which every text holds.
    """

    strings: tuple[str, ...] = ()
    within: str | None = field(default="output", kw_only=True)

    name: ClassVar[str] = "until"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "strings", tuple(self.strings))
        if not self.strings or not all(self.strings):
            raise InvalidValue("strings", self.strings, "one or more texts, none of them empty")

    def params(self) -> dict[str, Any]:
        """The parameters, resolved and JSON-able."""
        return {**super().params(), "strings": list(self.strings)}

    def watch(self, prompt: bytes = b"") -> Reading:  # noqa: ARG002 - the output alone counts
        return Reading(self)


class Reading(Watcher[Until]):
    """Keeps as much of the text as the beginning of a string may take."""

    def __init__(self, detector: Until) -> None:
        super().__init__(detector)
        self._wanted = [string.encode() for string in detector.strings]
        self._longest = max(map(len, self._wanted))
        self._end = b""

    def push(self, piece: bytes) -> Verdict | None:
        text = self._end + piece
        if any(wanted in text for wanted in self._wanted):
            return Verdict("until", self.tokens, {"step": self.tokens})
        self._end = text[max(0, len(text) - self._longest + 1) :]
        return None


def text_before(trace: Trace, strings: Sequence[str], special: Collection[int] = ()) -> str:
    """A trace's text up to the first of the strings in it.

    Args:
        trace: what was generated.
        strings: where the text ends; all of it is taken where none is in it.
        special: ids of tokens that are searched but are no text, as `skip_special_tokens` has it.
    """
    pieces = trace.text_pieces
    whole = b"".join(pieces)
    found = [at for string in strings if (at := whole.find(string.encode())) >= 0]
    left = min(found, default=len(whole))
    kept = []
    for token, piece in zip(trace.new_ids, pieces, strict=False):  # `eos` is no text
        if token not in special:
            kept.append(piece[:left])
        left -= min(left, len(piece))
    return b"".join(kept).decode(errors="replace")
