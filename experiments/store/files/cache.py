"""Files that spare work and nothing else: whoever deletes their folder loses only time.

They are void once the code they were made by changes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import zlib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from attention.errors import InvalidValue
from experiments.store.files.filesystem import write_atomically

#: What samples are made by; rows, figures and the page are made by the report as well.
READING = ("grid", "store")
REPORTING = (*READING, "report")
_CODE = {".py", ".js", ".css", ".html"}


@functools.cache
def code(rooms: tuple[str, ...]) -> str:
    """A digest of these rooms of `experiments`, of `lil` and of what they stand on."""
    import experiments
    import lil

    told = hashlib.sha256(zlib.ZLIB_RUNTIME_VERSION.encode())
    for package in ("math-verify", "matplotlib", "msgspec", "numpy", "scipy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            told.update(f"{package} {metadata.version(package)}\n".encode())
    folders = [Path(lil.__file__).parent]
    folders += [Path(experiments.__file__).parent / name for name in rooms]
    for room in folders:
        for path in sorted(path for path in room.rglob("*") if path.suffix in _CODE):
            told.update(path.read_bytes())
    return told.hexdigest()[:32]


def folder(store: Path) -> Path:
    """Where a store keeps them."""
    return store / "cache"


def load(path: Path) -> bytes:
    """What was kept.

    Raises:
        OSError: nothing was, or it cannot be read.
        zstandard.ZstdError: it is damaged.
    """
    return unpacked(path.read_bytes())


def unpacked(frame: bytes) -> bytes:
    """What is in a compressed frame.

    Raises:
        zstandard.ZstdError: it is damaged, be it in a size that no memory has.
    """
    try:
        return zstandard.ZstdDecompressor().decompress(frame)
    except MemoryError as error:
        raise zstandard.ZstdError("a damaged size") from error


class OutputNote(msgspec.Struct, frozen=True):
    """Files that were made, of what, and what there was to say of them.

    Attributes:
        key: a digest of all that they follow from.
        files: path, size in bytes and time of change in nanoseconds.
    """

    key: str
    files: tuple[tuple[str, int, int], ...]
    said: str = ""

    @property
    def paths(self) -> list[Path]:
        """Where they are."""
        return [Path(name) for name, _, _ in self.files]


def made(path: Path, key: str) -> OutputNote | None:
    """What was made under this key, if every file is as it was then; else None.

    Args:
        path: where `note` noted it.
        key: a digest of all that the files follow from now.
    """
    try:
        noted = msgspec.msgpack.decode(load(path), type=OutputNote)
        there = all(_state(Path(name)) == (size, at) for name, size, at in noted.files)
    except (OSError, ValueError, zstandard.ZstdError, msgspec.DecodeError):
        return None
    return noted if there and noted.key == key else None


def note(path: Path, key: str, files: Sequence[Path], said: str = "") -> None:
    """Note which files were made, so that they need not be made again."""
    with contextlib.suppress(OSError):
        save(path, OutputNote(key, tuple((str(file), *_state(file)) for file in files), said))


def _state(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def save(path: Path, content: object, hook: Callable[[Any], object] | None = None) -> None:
    """Keep it, if it can be: a store on a full or foreign disk is read all the same.

    Half a character or an endless number, which JSON can hold, are never kept.

    Args:
        hook: what is written for a type that msgspec does not know.
    """
    if path.parent.is_symlink():  # in a store of somebody else it may lead anywhere
        return
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True)
    with contextlib.suppress(InvalidValue, OSError, UnicodeEncodeError, OverflowError):
        packed = packer.compress(msgspec.msgpack.encode(content, enc_hook=hook))
        unwatched = path.parent / ".gitignore"
        if not unwatched.exists():  # a store in a repository is its traces
            write_atomically(unwatched, "*\n")
        write_atomically(path, packed)
