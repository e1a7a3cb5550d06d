"""What stands in a file of traces, kept beside it, so that a store opens without reading them all.

An index is one of a file's name, size, time of change and checksum, and of the code that reads:
where any differs, the file is read and checked again, so that damage is seen which leaves size and
time. Of a file with damage none is kept, so that the damage is said each time. Whoever deletes the
indices loses nothing but time.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from experiments.store.files import kept
from experiments.store.files.made_by import READING, code

#: Id, offset and length of a record and what is said of its run.
Entry = tuple[str, int, int, dict[str, Any]]


class _Index(msgspec.Struct):
    code: str
    size: int
    changed_ns: int
    checksum: int
    entries: list[Entry]


def state(path: Path) -> tuple[int, int]:
    """A file's size and when it was changed, in nanoseconds."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def load(path: Path) -> list[Entry] | None:
    """What stands in a file of traces; None where that has to be read from itself."""
    try:
        index = msgspec.msgpack.decode(kept.load(_place(path)), type=_Index)
    except (OSError, zstandard.ZstdError, msgspec.DecodeError):
        return None
    known = (index.code, index.size, index.changed_ns, index.checksum)
    return index.entries if known == (code(READING), *state(path), _checksum(path)) else None


def _checksum(path: Path) -> int:
    """Of all bytes, at about the speed they are read with: a tenth of reading the records."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found


def keep(path: Path, entries: Sequence[Entry], at: tuple[int, int]) -> None:
    """Keep what was read of a file, if it can be written and the file did not change meanwhile.

    Args:
        path: of the file of traces.
        entries: all that stands in it.
        at: its `state` before it was read.
    """
    checksum = _checksum(path)
    if state(path) != at:
        return
    kept.save(_place(path), _Index(code(READING), *at, checksum, list(entries)))


def forget(folder: Path) -> None:
    """Delete the indices of files of traces that are no longer there."""
    if kept.folder(folder).is_symlink():
        return
    with contextlib.suppress(OSError):
        for path in kept.folder(folder).glob("*.index"):
            if not (folder / "traces" / f"{path.stem}.zst").exists():
                path.unlink(missing_ok=True)


def _place(path: Path) -> Path:
    return kept.folder(path.parent.parent) / f"{path.stem}.index"
