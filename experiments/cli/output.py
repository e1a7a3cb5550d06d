"""Output that a stream and a terminal can take: nothing that steers, one message for a fault."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
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


def encodable(text: str, encoding: str, errors: str = "strict") -> str:
    """A text in characters that an encoding has; others become question marks."""
    try:
        text.encode(encoding, errors)
    except UnicodeEncodeError:  # a lone surrogate is no character in any encoding
        return text.encode(encoding, "replace").decode(encoding)
    return text


class _Careful:
    """A stream that takes any text, and keeps the first fault of what lies below it.

    What is printed here steers no terminal. A console that writes styles around text it has made
    safe writes to `styled`.

    Args:
        stream: what is written to.
        name: what a message calls it.
        needed: whether a fault is raised. A log that cannot be written is no reason to stop.
    """

    def __init__(self, stream: TextIO, name: str, needed: bool) -> None:
        self._stream, self._name, self._needed = stream, name, needed
        self.fault: OSError | None = None
        self.styled = _Styled(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self.put(_STRAY.sub(_escaped, text))
        return len(text)

    def put(self, text: str) -> None:
        """Write as it is."""
        if encoding := getattr(self._stream, "encoding", None):
            text = encodable(text, encoding, getattr(self._stream, "errors", None) or "strict")
        with self._faults():
            self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

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
            if self._needed:
                allowed = f"a file or pipe that can be written to ({error.strerror})"
                raise InvalidValue("output", self._name, allowed) from error


class _Styled:
    """The same stream for a console."""

    def __init__(self, stream: _Careful) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.put(text)
        return len(text)


@contextlib.contextmanager
def careful() -> Iterator[None]:
    """Let everything printed in here, by whatever library, be encodable and its faults be raised.

    Raises:
        InvalidValue: stdout cannot be written to. A fault of stderr is ignored.
        BrokenPipeError: nobody reads any more.
    """
    before = sys.stdout, sys.stderr
    # A process may have been started without them.
    out, err = (
        stream and _Careful(stream, name, needed)
        for stream, name, needed in zip(before, ("stdout", "stderr"), (True, False), strict=True)
    )
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in (out, err):
            if stream and stream.fault:
                _discard(stream)


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Write what still waits to be written, while its faults can be reported.

    Raises:
        InvalidValue, BrokenPipeError: as in `careful`.
    """
    try:
        yield
    except SystemExit:  # as after --help
        _flush()
        raise
    _flush()


def _flush() -> None:
    if sys.stdout:
        sys.stdout.flush()


def _discard(stream: _Careful) -> None:
    """Python flushes once more when it ends, which would fail again and change the exit code."""
    with contextlib.suppress(OSError, ValueError):  # a stream in memory has no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
