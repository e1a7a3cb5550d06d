"""What a disk can refuse, in one message; files that are replaced whole."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from types import TracebackType

from attention.errors import InvalidValue

#: A name of `write_atomically` on its way, with its process.
_HALF = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}")


class disk:  # noqa: N801 - used as a function: `with disk(path):`
    """Turns what a disk can refuse into one message the user can act on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            wanted = "a folder with space left" if full else "a folder that can be written"
            raise InvalidValue("out", str(self.path), f"{wanted} ({error.strerror})") from error


def require_file(path: Path, field: str = "out") -> None:
    """Refuse to write where something else than a file stands: replaced, a device is gone.

    Args:
        path: to be written, there or not.
        field: what a message calls it.

    Raises:
        InvalidValue: a folder, a device, a pipe, or a name that no file can have.
    """
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


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file at once: a reader, or a kill at any moment, sees the old or the new one whole.

    Raises:
        InvalidValue: no space left, a folder that cannot be written, or no file.
    """
    require_file(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def drop_halves(folder: Path) -> None:
    """Delete what a kill has left of `write_atomically` in a folder; a living writer's stays."""
    for path in folder.glob(".*"):
        half = _HALF.fullmatch(path.name)
        if half is not None and not _lives(int(half[1])):
            with disk(folder):
                path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    if os.name != "posix":
        return True  # asking would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return True


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
    """Refuse an output folder that cannot be made or written, without leaving anything.

    Permissions do not tell: the superuser, read-only and virtual file systems answer otherwise. So
    a folder is made beside where this one would go, and removed at once.

    Raises:
        InvalidValue: a file stands in the way, or permissions do.
    """
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise InvalidValue(field, str(folder), f"a folder ({nearest} is a file)")
    with disk(folder):
        Path(tempfile.mkdtemp(prefix=".lil-", dir=nearest)).rmdir()
