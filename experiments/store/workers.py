"""Processes that help to read and to draw."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any


@contextlib.contextmanager
def processes(
    count: int, begin: Callable[..., None] | None = None, told: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Some processes started anew; what has not begun when the block ends is not done.

    Args:
        count: how many.
        begin: called in each as it starts, with `told`.
    """
    # A fork would take the locks of torch's threads along.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(begin, told))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(begin: Callable[..., None] | None, told: tuple[Any, ...]) -> None:
    # Ctrl-C reaches the whole group: who asked for the work says so, these end without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if begin is not None:
        begin(*told)
