"""Files that spare work and nothing else: whoever deletes their folder loses only time."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import zstandard

from attention.errors import InvalidValue
from experiments.store.files.disk import write_atomically


def folder(store: Path) -> Path:
    """Where a store keeps them."""
    return store / "cache"


def load(path: Path) -> bytes:
    """What was kept.

    Raises:
        OSError: nothing was, or it cannot be read.
        zstandard.ZstdError: it is damaged.
    """
    return zstandard.ZstdDecompressor().decompress(path.read_bytes())


def save(path: Path, content: object) -> None:
    """Keep it, if it can be: a store on a full or foreign disk is read all the same.

    Names with half a character, which JSON can hold, are never kept.
    """
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True)
    with contextlib.suppress(InvalidValue, OSError, UnicodeEncodeError):
        packed = packer.compress(msgspec.msgpack.encode(content))
        unwatched = path.parent / ".gitignore"
        if not unwatched.exists():  # a store in a repository is its traces
            write_atomically(unwatched, "*\n")
        write_atomically(path, packed)
