"""Where in its output a generation is: thinking, behind that, or nobody knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from attention.errors import InvalidValue

#: What opens a thinking part and what ends it, as text: of most models, and of Mistral's.
MARKS: Mapping[bytes, bytes] = {b"<think>": b"</think>", b"[THINK]": b"[/THINK]"}

#: What a detector may be told to watch; None: the thinking part where there is one.
WITHIN = ("thinking", "output")

#: Tokens of repetition that it takes where no thinking goes on: fifty equal lines or a matrix of
#: 16 x 16 zeros that somebody asked for have fewer (`scripts/checks/check_ordinary.py`).
OUTSIDE = 1000

_OPENS, _ENDS = tuple(MARKS), tuple(MARKS.values())
#: The last byte of every mark is one of these: as numbers they are found six times as fast.
LAST = ord(">"), ord("]")
# Tokens that are remembered: a mark may be spelled in eight, and some tokens have no text.
_KEPT = 32


class Place:
    """How far one generation is; told of each of its tokens.

    Thinking goes on where the prompt left it open, and from the token in which the output opens it,
    up to the one in which it is first ended; what is opened again behind that is no thinking. A
    prompt that ends with the end of thinking asks for an answer alone.

    Args:
        within: what is watched: one of `WITHIN`, or None.
        prompt: text before the first generated token.
    """

    def __init__(self, within: str | None, prompt: bytes = b"") -> None:
        self._within = within
        #: The newest tokens; whoever adds one that may end a mark calls `look`.
        self.newest: deque[bytes] = deque(maxlen=_KEPT)
        self._ended = prompt.rstrip().endswith(_ENDS)
        opened = max(map(prompt.rfind, _OPENS))
        self.thinking = opened > max(map(prompt.rfind, _ENDS))
        self._settle()

    def _settle(self) -> None:
        #: Whether nothing that follows is watched.
        self.over = self._ended and self._within != "output"
        #: Whether the newest token is watched.
        self.counts = self.thinking if self._within == "thinking" else not self.over

    def step(self, piece: bytes) -> None:
        """The next token."""
        self.newest.append(piece)
        if LAST[0] in piece or LAST[1] in piece:
            self.look()

    def look(self) -> bool:
        """The newest token may have ended a mark; whether it, and what follows, is not watched."""
        if self._ended:
            return self.over
        text = b"".join(self.newest)
        if any(end in text for end in _ENDS):
            self._ended, self.thinking = True, False
        elif any(mark in text for mark in _OPENS):
            self.thinking = True
        self._settle()
        return self.over


def ends_thinking(cue: str) -> bool:
    """Whether words that a model is given end its thinking."""
    return any(end in cue.encode() for end in _ENDS)


def is_answering(cue: str, prompt: bytes, output: bytes) -> bool:
    """Whether a generation is past what a cue would bring it to.

    It is where the cue stands in its output; a cue that ends the thinking also where thinking was
    ended behind all that opened any, be it in the prompt: templates that switch thinking off end it
    there, and a request may begin its answer itself.

    Args:
        cue: words that the model would be given.
        prompt: text before the first generated token.
        output: text generated so far.
    """
    if not cue:
        return False
    if cue.encode() in output:
        return True
    text = prompt + output
    over = max(map(text.rfind, _ENDS)) > max(map(text.rfind, _OPENS))
    return over and ends_thinking(cue)


def require_end(table: object, within: str | None) -> None:
    """Refuse to watch the thinking alone of a model that has no token to end it.

    Args:
        table: the bytes of each of its tokens.
        within: what is to be watched.

    Raises:
        InvalidValue: there is none.
    """
    if within == "thinking" and not any(end in table for end in _ENDS):  # type: ignore[operator]
        told = " or ".join(end.decode() for end in _ENDS)
        allowed = f"output: the tokenizer has no token {told}, so that no thinking would end"
        raise InvalidValue("within", within, allowed)


def require_part(text: bytes, within: str | None) -> None:
    """Refuse to watch the thinking alone of a text that has none.

    Args:
        text: prompt and output.
        within: what is to be watched.

    Raises:
        InvalidValue: nothing in it opens or ends thinking.
    """
    if within == "thinking" and not any(mark in text for mark in (*_OPENS, *_ENDS)):
        told = " or ".join(mark.decode() for mark in _OPENS)
        raise InvalidValue("within", within, f"output: there is no {told} in prompt or output")
