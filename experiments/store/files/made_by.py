"""What kept results were made by: code whose change makes them void."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import zlib
from importlib import metadata
from pathlib import Path

#: What samples are made by; rows, figures and the page are made by the report as well.
READING = ("grid", "store")
REPORTING = (*READING, "report")


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
        for path in sorted(room.rglob("*.py")):
            told.update(path.read_bytes())
    return told.hexdigest()[:32]
