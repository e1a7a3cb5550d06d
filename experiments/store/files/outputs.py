"""Files a command writes beside the store: whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def replace_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, a full disk or a kill leaves the old or the new one whole.

    What a kill leaves beside it is hidden and replaced by the next write of the same file.

    Raises:
        OSError: it cannot be written; nothing is left.
    """
    half = path.with_name(f".{path.name}.part")
    try:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
