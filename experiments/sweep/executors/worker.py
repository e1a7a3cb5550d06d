"""What a worker process does: load a model once, decode what it is given, say how it goes."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from attention.errors import InvalidValue
from experiments.sweep.decoder import Ended, Setup, Stepped, decode

#: Seconds between two words about steps: each wakes the process that is told.
EVERY = 0.1


@dataclass(frozen=True)
class Ready:
    """The model is loaded; what a manifest says of where it is."""

    found: Mapping[str, Any]


@dataclass(frozen=True)
class Refused:
    """The model cannot be used: the parts of an `InvalidValue`."""

    field: str
    value: object
    allowed: str

    def raised(self) -> NoReturn:
        """Raise it where it is understood."""
        raise InvalidValue(self.field, self.value, self.allowed)


def serve(connection: Connection, setup: Setup) -> None:
    """Decode jobs until there is nobody to decode for.

    Args:
        connection: to the process that wants the work: jobs come from it, events go to it. It is
            closed when that process ends, however it does.
        setup: of the model.
    """
    _take_signals()
    try:
        loaded, found = setup.load()
    except InvalidValue as error:
        answer: Ready | Refused = Refused(error.field, str(error.value), error.allowed)
    else:
        answer = Ready(found)
    try:
        connection.send(answer)
        while isinstance(answer, Ready):
            job = connection.recv()
            steps = _Steps(connection)
            with closing(decode(loaded, job, steps.add)) as events:
                for event in events:
                    connection.send(event)
            steps.send()
            connection.send(Ended())
    except (EOFError, OSError):
        return  # nobody is there any more


class _Steps:
    """Adds up tokens between two words about them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tokens, self._last = 0, 0.0

    def add(self, tokens: int) -> None:
        """Tokens of one step.

        Raises:
            SystemExit: nobody is there any more; no error of the decoding, which would go on.
        """
        self._tokens += tokens
        if time.monotonic() - self._last > EVERY:
            try:
                self.send()
            except OSError:
                raise SystemExit from None

    def send(self) -> None:
        """Say what has been added up."""
        self._connection.send(Stepped(self._tokens))
        self._tokens, self._last = 0, time.monotonic()


def _take_signals() -> None:
    # Ctrl-C reaches the whole group; who asked for the work ends it, and says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # held back while the process was started
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
