"""One sweep at a time writes into a store: a lock that goes with its process, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from attention.errors import InvalidValue
from experiments.store.files.disk import disk

#: Stays in the folder; only whether it is locked says anything.
NAME = ".writer.lock"


class Busy(Exception):  # noqa: N818
    """Another process holds the lock."""


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, which is made if need be.

    Yields:
        Whether there is a lock: some file systems have none.

    Raises:
        Busy: another process has it.
        InvalidValue: no space left, or a folder that cannot be written.
    """
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / NAME).is_symlink():  # opened, what it names would be emptied
            raise InvalidValue("out", str(folder), f"a folder whose {NAME} is no link")
        lock = FileLock(folder / NAME, blocking=False, is_singleton=False)
        locked = _acquired(lock)
    try:
        yield locked
    finally:
        if locked:
            lock.release()


def is_held(folder: Path) -> bool:
    """Whether some process writes there now; nothing is made or left behind."""
    if not (folder / NAME).is_file() or (folder / NAME).is_symlink():
        return False
    lock = FileLock(folder / NAME, blocking=False, is_singleton=False)
    try:
        if _acquired(lock):
            lock.release()
    except Busy:
        return True
    except OSError:  # a store one may only read
        return False
    return False


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire()
    except Timeout:
        raise Busy from None
    except NotImplementedError:  # a file system without locks
        return False
    return True
