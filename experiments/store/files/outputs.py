"""Files a command writes beside the store: whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.store.files.disk import require_file


@contextmanager
def whole_file(target: Path, *, through_links: bool = True) -> Iterator[Path]:
    """A path beside the target to write to; moved into its place when all went well.

    A reader, a full disk or a kill sees the old file or the new one. What a kill leaves is hidden,
    and has one name, so that the next write of the same file takes it away.

    Args:
        target: to be written, there or not.
        through_links: write what a link names, as for a name the user gave; else the link goes, as
            for a name in a folder that may come from somebody else.

    Raises:
        OSError: it cannot be written; the target is as it was.
        InvalidValue: something else than a file is there.
    """
    require_file(target)
    if through_links:
        target = target.resolve()
    half = target.with_name(f".{target.stem}.part{target.suffix}")
    half.unlink(missing_ok=True)  # of a kill, or a link that leads elsewhere
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
        InvalidValue: something else than a file is there.
    """
    with whole_file(target) as half:
        half.write_bytes(content)
