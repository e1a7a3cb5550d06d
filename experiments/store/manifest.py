"""Manifests: the configuration, plan and machine of each sweep, a file each."""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

from attention.errors import InvalidValue
from experiments.grid import schema
from experiments.store.files.filesystem import write_atomically

#: Where the sweeps of a store have their manifests.
FOLDER = "sweeps"

_PACKAGES = (
    *("lil-attention", "torch", "transformers", "tokenizers"),
    *("numpy", "scipy", "zstandard", "msgspec"),
)


class SweepFields(msgspec.Struct, frozen=True):
    """A manifest: a sweep's configuration, its plan and how it went."""

    status: Literal["running", "finished", "interrupted", "failed"]
    preset: str
    arguments: tuple[str, ...]
    config: dict[str, Any]
    plan: dict[str, Any]
    detectors: tuple[dict[str, Any], ...]
    started: str
    ended: str | None
    models: tuple[dict[str, Any], ...] = ()
    packages: dict[str, str | None] = {}
    host: str | None = None
    pid: int | None = None
    code: dict[str, str] = {}
    keeps_all: tuple[dict[str, Any], ...] = ()
    notices: tuple[str, ...] = ()


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def conditions(device: str, dtype: str, threads: int) -> dict[str, Any]:
    """Package versions, commit, machine: what results depend on besides the configuration."""
    commit, dirty = _commit()
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "commit": commit,
        "dirty": dirty,
        "device": device,
        "device_name": device_name(device),
        "dtype": dtype,
        "threads": threads,
        "host": platform.node(),
        "pid": os.getpid(),
        "platform": platform.platform(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def runtime(name: str) -> str:
    """A runtime and its version; builds of vLLM for a CPU are a package of another name."""
    version = _version(name) or _version(f"{name}-cpu")
    return name if version is None else f"{name} {version}"


def device_name(device: str) -> str:
    """What a device is called: a GPU by its name, the CPU with its cores."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{processor()}, {os.cpu_count()} cores"


def processor() -> str:
    """What the CPU is called, with its family and model where the system tells them."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = cpu.get("model name") or platform.processor() or platform.machine()
    detail = f" (family {cpu['cpu family']}, model {cpu['model']})" if "cpu family" in cpu else ""
    return f"{name}{detail}"


def _commit() -> tuple[str | None, bool | None]:
    """The commit this code is at and whether it was changed; None where it is no checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    # Installed into an environment inside somebody else's repository, it is not that commit.
    ours = [*git, "ls-files", "--error-unmatch", Path(__file__).name]
    describe = [*git, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        texts = [
            subprocess.run(c, capture_output=True, text=True, timeout=10, check=True).stdout
            for c in (ours, describe)
        ]
    except (OSError, subprocess.SubprocessError):
        return None, None
    commit, _, dirty = texts[1].strip().partition("-")
    return commit, bool(dirty)


def new_id() -> str:
    """A name for a sweep that sorts by time: UTC, microseconds, and two random digits."""
    at = datetime.now(UTC)
    return f"{at:%Y%m%dT%H%M%SZ}-{at.microsecond:05x}{secrets.token_hex(1)}"


def write(folder: Path, sweep: str, values: Mapping[str, Any]) -> None:
    """Write a sweep's own manifest, or replace it at once."""
    text = json.dumps(dict(values), indent=1, allow_nan=False) + "\n"
    write_atomically(folder / FOLDER / f"{sweep}.json", text)


def any_in(folder: Path) -> bool:
    """Whether there is a manifest, so that the folder is a store."""
    return any((folder / FOLDER).glob("[!.]*.json"))


def paths(folder: Path) -> list[Path]:
    """The manifests of a store, the oldest first."""
    try:
        manifests = sorted((folder / FOLDER).glob("[!.]*.json"))
    except OSError as error:
        raise InvalidValue("store", str(folder), f"a readable folder ({error})") from error
    if not manifests:
        allowed = f"a folder that `lil sweep --out` made (no {FOLDER} in it)"
        near = [str(path.parent) for path in folder.parent.glob(f"*/{FOLDER}")]
        raise InvalidValue("store", str(folder), allowed, near)
    return manifests


def load(path: Path) -> dict[str, Any]:
    """One manifest, its own fields known to be there; plan and configuration as they stand."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidValue("store", str(path), f"a readable manifest ({error})") from error
    values: dict[str, Any] = schema.loads(data, str(path))
    schema.checked(values, SweepFields, str(path))
    return values


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a store's last sweep."""
    return load(paths(folder)[-1])


def public(values: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest as reports show it: without the list of every problem."""
    return {key: value for key, value in values.items() if key != "plan"}
