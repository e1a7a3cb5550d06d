"""Files and folders: refusals in one message, files replaced whole, a store's lock."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from attention.errors import InvalidValue

#: Stays in a store's folder; only whether it is locked says anything.
LOCK = ".writer.lock"


@contextmanager
def filesystem_errors(path: Path) -> Iterator[None]:
    """Turn what a file system refuses into one message that the user can act on."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        wanted = "a folder with space left" if full else "a folder that can be written"
        raise InvalidValue("out", str(path), f"{wanted} ({error.strerror})") from error


def require_file(path: Path, field: str = "out") -> None:
    """Refuse to write where something else than a file is: replaced, a device is gone."""
    try:
        there = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:  # a name too long, a NUL, a circle of links
        reason = getattr(error, "strerror", None) or error
        allowed = f"a file that can be written ({reason})"
        raise InvalidValue(field, str(path), allowed) from error
    if not stat.S_ISREG(there):
        raise InvalidValue(field, str(path), "a file; something else is there")


@contextmanager
def whole_file(target: Path, *, through_links: bool = True) -> Iterator[Path]:
    """A path next to the target to write to; moved into its place when all went well.

    After a kill or on a full disk a reader sees the old file or the new one. A kill leaves a hidden
    file. `through_links` writes what a link names.
    """
    require_file(target)
    if through_links:
        target = target.resolve()
    own = f"{os.getpid()}-{secrets.token_hex(4)}"  # two processes may write the same file
    partial = target.with_name(f".{target.stem}.{own}.part{target.suffix}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file at once, its folder made if need be, by `whole_file`."""
    with filesystem_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, through_links=False) as partial:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names created or replaced in a folder survive a loss of power, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_writable(folder: Path, field: str = "out") -> None:
    """Refuse an output folder that cannot be made or written, without leaving anything."""
    with filesystem_errors(folder):  # already to ask for it: a name can be too long
        nearest = folder
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir():
            raise InvalidValue(field, str(folder), f"a folder ({nearest} is a file)")
        # Permissions do not tell: read-only and virtual file systems answer otherwise.
        Path(tempfile.mkdtemp(prefix=".lil-", dir=nearest)).rmdir()


class StoreBusyError(Exception):
    """Another process holds the lock."""


@contextmanager
def lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, which is made if need be; False where no lock can be had."""
    with filesystem_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LOCK).is_symlink():  # opened, what it names would be emptied
            raise InvalidValue("out", str(folder), f"a folder whose {LOCK} is no link")
        file = FileLock(folder / LOCK, blocking=False, is_singleton=False)
        try:
            file.acquire()
        except Timeout:
            raise StoreBusyError from None
        except NotImplementedError:  # a file system without locks
            pass
    try:
        yield file.is_locked
    finally:
        file.release()


def is_locked(folder: Path) -> bool:
    """Whether some process writes there now; nothing is made or left behind."""
    if not (folder / LOCK).is_file() or (folder / LOCK).is_symlink():
        return False
    try:
        with lock(folder):
            return False
    except StoreBusyError:
        return True
    except (OSError, InvalidValue):  # a store one may only read
        return False
