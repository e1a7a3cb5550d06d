"""Output that a stream and a terminal can take: nothing that steers, one message for a fault."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from attention.errors import InvalidValue

#: What a terminal obeys instead of showing, and what turns the order of a line round.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: The same but for what other programs' lines are made of: colours, and back to a line's begin.
_STRAY = re.compile(rf"(?!\r|\x1b\[[0-9;]*m){_STEERING.pattern}")


def shown(text: str) -> str:
    r"""Text of a model, a data set or another program, as a terminal may get it.

    Controls but newline and tab, and marks that turn the order of characters, are written as Python
    writes them, such as `\x1b`.
    """
    return _STEERING.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class _Careful:
    """A stream that takes any text, and keeps the first fault of what lies below it."""

    def __init__(self, stream: TextIO, name: str | None) -> None:
        self._stream, self._name = stream, name
        self.fault: OSError | None = None
        self.styled = _Styled(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self.put(_STRAY.sub(_escaped, text))
        return len(text)

    def put(self, text: str) -> None:
        """Write as it is; characters that the stream's encoding lacks become question marks."""
        if encoding := getattr(self._stream, "encoding", None):
            text = text.encode(encoding, "replace").decode(encoding)
        with self._faults():
            self._stream.write(text)

    def flush(self) -> None:
        with self._faults():
            self._stream.flush()

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = error
            if isinstance(error, BrokenPipeError):  # the reader (head, less) has gone
                raise
            if self._name is not None:
                allowed = f"a file or pipe that can be written to ({error.strerror})"
                raise InvalidValue("output", self._name, allowed) from error


class _Styled:
    """The same stream for a console."""

    def __init__(self, stream: _Careful) -> None:
        self._stream = stream
        self.write = stream.put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def careful() -> Iterator[None]:
    """Let everything printed in here, by any library, be encodable, and faults be raised."""
    before = sys.stdout, sys.stderr
    # A process may have been started without them.
    streams = [x and _Careful(x, name) for x, name in zip(before, ("stdout", None), strict=True)]
    sys.stdout, sys.stderr = cast("list[TextIO]", streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            if stream and stream.fault:
                # Python flushes once more when it ends, which would change the exit code.
                with contextlib.suppress(OSError, ValueError):  # a stream in memory has no number
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
