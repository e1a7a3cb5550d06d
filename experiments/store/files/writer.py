"""One writer's file of traces, marked as long as its process lives."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from attention.errors import InvalidValue
from experiments.store.files.disk import disk, sync_folder

#: Records appended between two fsyncs; a machine that loses power loses at most so many.
SYNC_EVERY = 8


class Writer:
    """One writer's file. Unbuffered: what was written survives the death of the process."""

    def __init__(self, folder: Path) -> None:
        # Processes on several machines may share the folder: a random part keeps them apart.
        self.path = folder / "traces" / f"{os.getpid()}-{secrets.token_hex(6)}.zst"
        self._pending = 0
        self._end = 0
        with disk(folder):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb", buffering=0)
            sync_folder(self.path.parent)
        _mark(self._file.fileno())

    def write(self, blob: bytes) -> int:
        start = self._end
        try:
            with disk(self.path):
                done = 0
                while done < len(blob):
                    done += self._file.write(blob[done:]) or 0
        except InvalidValue:
            self._file.truncate(start)  # half a record helps nobody
            self._file.seek(start)
            raise
        self._end = start + len(blob)
        self._pending += 1
        if self._pending >= SYNC_EVERY:
            self.sync()
        return start

    def sync(self) -> None:
        if self._pending:
            with disk(self.path):
                os.fsync(self._file.fileno())
            self._pending = 0

    def close(self) -> None:
        self.sync()
        self._file.close()


def _mark(handle: int) -> None:
    """Mark a file as being written; the mark goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # other systems: a reader may call a growing tail torn
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # file systems without locks, likewise
        return


def is_written(path: Path) -> bool:
    """Whether some process is still writing this file."""
    try:
        import fcntl
    except ImportError:
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
