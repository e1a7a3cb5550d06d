"""Files a command writes beside the store: whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A path beside the target to write to; moved into its place when all went well.

    A reader, a full disk or a kill sees the old file or the new one. What a kill leaves is hidden,
    and has one name, so that the next write of the same file takes it away.

    Raises:
        OSError: it cannot be written; the target is as it was.
    """
    target = target.resolve()  # through a link to what it names
    half = target.with_name(f".{target.stem}.part{target.suffix}")
    try:
        yield half
        with half.open("rb") as file:
            os.fsync(file.fileno())
        half.replace(target)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def replace_whole(target: Path, content: bytes) -> None:
    """Write a file whole.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    with whole_file(target) as half:
        half.write_bytes(content)
