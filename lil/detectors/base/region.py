"""Which region of its output a generation has reached: its thinking, or what follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attention.errors import InvalidValue
from lil.thinking import KNOWN, state_behind, state_of

#: Values of a detector's `region`; None: the thinking where there is one.
REGIONS = ("thinking", "output")

#: Tokens of repetition that are required outside a thinking part: fifty equal lines or a matrix of
#: 16 x 16 zeros that a user requested have fewer.
OUTSIDE = 1000

_OPENS = {marks.open.encode(): marks.end.encode() for marks in KNOWN}
_ENDS = tuple(_OPENS.values())
# Newest tokens in which a mark is looked for: a mark may take eight, and some tokens have no text.
_NEWEST = 32


class RegionTracker:
    """Follows one generation token by token through its regions.

    Thinking goes on where the prompt left it open, and from the token in which the output opens it,
    up to the token in which it first ends. A prompt that ends with the end of thinking requests an
    answer alone.

    Args:
        region: what is watched, of `REGIONS`, or None.
        prompt: text before the first generated token.
    """

    def __init__(self, region: str | None, prompt: bytes = b"") -> None:
        self._region = region
        #: The newest tokens; whoever adds one that may end a mark calls `look`.
        self.newest: deque[bytes] = deque(maxlen=_NEWEST)
        state = state_of(prompt.decode(errors="replace"))
        self.ended = prompt.rstrip().endswith(_ENDS)
        # What ends the thinking: where nothing has opened it, any mark that does.
        self._end = _ENDS if state.opened is None else (state.opened.end.encode(),)
        self.thinking = state.opened is not None
        self._settle()

    def _settle(self) -> None:
        #: Whether nothing that follows is watched.
        self.over = self.ended and self._region != "output"
        #: Whether the newest token is watched.
        self.counts = self.thinking if self._region == "thinking" else not self.over

    def look(self) -> bool:
        """Look for a mark that the newest token ended; whether nothing more is watched."""
        if self.ended:
            return self.over
        text = b"".join(self.newest)
        if any(end in text for end in self._end):
            self.ended, self.thinking = True, False
        elif not self.thinking:
            opened = next((mark for mark in _OPENS if mark in text), None)
            if opened is not None:
                self.thinking, self._end = True, (_OPENS[opened],)
        self._settle()
        return self.over


def ends_thinking(cue: str) -> bool:
    """Whether a cue ends the thinking of a model that reads it."""
    return any(end in cue.encode() for end in _ENDS)


def is_answering(cue: str, prompt: bytes, output: bytes) -> bool:
    """Whether a generation is past what a cue would bring it to.

    So it is where its output holds the cue, or, of a cue that ends the thinking, where the thinking
    ended behind all that opened any, be it in the prompt.
    """
    if not cue:
        return False
    if cue.encode() in output:
        return True
    state = state_behind(prompt, output)
    return ends_thinking(cue) and state.ended and state.opened is None


def require_end(table: Sequence[bytes], region: str | None) -> None:
    """Refuse to watch the thinking alone of a model that has no token to end it."""
    if region == "thinking" and not any(end in table for end in _ENDS):
        marks = " or ".join(end.decode() for end in _ENDS)
        allowed = f"output: the tokenizer has no token {marks}, so that no thinking would end"
        raise InvalidValue("region", region, allowed)


def require_thinking(text: bytes, region: str | None) -> None:
    """Refuse to watch the thinking alone of a text that has none."""
    if region == "thinking" and not any(mark in text for mark in (*_OPENS, *_ENDS)):
        marks = " or ".join(mark.decode() for mark in _OPENS)
        raise InvalidValue("region", region, f"output: there is no {marks} in prompt or output")
