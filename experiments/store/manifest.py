"""What a sweep was asked, what it resolved to, where it ran: one JSON file beside the traces."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.store.store import write_atomically

NAME = "manifest.json"

_PACKAGES = ("lil-attention", "torch", "transformers", "tokenizers", "numpy", "scipy", "zstandard")


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def conditions(device: str, dtype: str, threads: int) -> dict[str, Any]:
    """Package versions, commit, machine: what results depend on beside the configuration."""
    commit, dirty = _commit()
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "commit": commit,
        "dirty": dirty,
        "device": device,
        "device_name": _device_name(device),
        "dtype": dtype,
        "threads": threads,
        "platform": platform.platform(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _commit() -> tuple[str | None, bool | None]:
    """The commit this code is at and whether it was changed; None where it is no checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
        if done.returncode:
            raise LookupError(done.stderr)
        return done.stdout.strip()

    try:
        # Installed into an environment inside somebody else's repository, it is not that commit.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, LookupError, subprocess.TimeoutExpired):
        return None, None


def write(folder: Path, values: Mapping[str, Any]) -> None:
    """Replace the manifest at once.

    Raises:
        InvalidValue: no space left, or a folder that cannot be written.
    """
    write_atomically(folder / NAME, json.dumps(dict(values), indent=1, allow_nan=False) + "\n")


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a store.

    Raises:
        InvalidValue: the folder holds none, or one that cannot be read.
    """
    path = folder / NAME
    near = _stores_near(folder)
    if not path.is_file():
        allowed = f"a folder that `lil sweep --out` made (no {NAME} in it)"
        raise InvalidValue("store", str(folder), allowed, near)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["plan"], values["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidValue("store", str(folder), f"a readable {NAME} ({error!r})") from error
    return dict(values)


def _stores_near(folder: Path) -> Sequence[str]:
    parent = folder.parent
    return [str(p.parent) for p in parent.glob(f"*/{NAME}")] if parent.is_dir() else []


def public(values: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest as reports show it: without the list of every problem."""
    return {key: value for key, value in values.items() if key != "plan"}
