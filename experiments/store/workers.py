"""Processes that help to read and to draw."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NoReturn

from attention.errors import InvalidValue
from attention.local_modules import WithModules


@contextlib.contextmanager
def processes(
    count: int, begin: Callable[..., None] | None = None, told: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Some processes started anew; what has not begun when the block ends is not done, and what has
    is given up where the block ends by an exception.

    Args:
        count: how many.
        begin: called in each as it starts, with `told`.

    Raises:
        InvalidValue: one was killed from outside, as a system does that has no memory left.
    """
    # Several threads each would wait for each other; libraries look when they are loaded.
    threads = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    os.environ.update(dict.fromkeys(threads, "1"))
    # A fork would take the locks of torch's threads along.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        count, context, initializer=_begin, initargs=(begin, WithModules(told))
    )
    try:
        yield pool
    except BrokenProcessPool as error:
        killed = f"one of {count} was killed"
        allowed = "memory for all of them; what was read before is kept"
        raise InvalidValue("helper processes", killed, allowed) from error
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()  # what it is at is not wanted any more
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in threads.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin(begin: Callable[..., None] | None, told: tuple[Any, ...]) -> None:
    # Ctrl-C reaches the whole group; who asked for the work ends it, and says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    if begin is not None:
        begin(*told)


def _leave(_number: int, _frame: object) -> NoReturn:
    """Like Ctrl-C, so that nothing half-written stays."""
    raise SystemExit(128 + signal.SIGTERM)
