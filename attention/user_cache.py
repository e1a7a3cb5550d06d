"""Where this project keeps what took time to make: a folder of the user's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs


class UnusableFolder(OSError):  # noqa: N818 - it names a state, with the reason
    """A folder of the cache that cannot be used, or in which somebody else can write."""


def user_cache(name: str) -> Path:
    """A folder in the user's cache, or under LIL_CACHE, made where it is missing.

    Raises:
        UnusableFolder: it cannot be made, belongs to another user or is open to others.
    """
    path = Path(os.environ.get("LIL_CACHE") or platformdirs.user_cache_dir("lil")) / name
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UnusableFolder(f"{path} cannot be used: {error.strerror}") from error
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise UnusableFolder(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusableFolder(f"{path} can be written to by other users")
    return path
