"""The folder that a GGUF file becomes: written beside its place, then renamed to it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from experiments.grid.gguf.header import Unconvertible
from experiments.grid.gguf.tensors import Source

#: Raise it whenever the same file would become another model.
VERSION = 1

#: What a converted folder is: of which file, by which version, and its files' sizes and digests.
NOTE = "gguf.json"
WEIGHTS = "model.safetensors"


def write(
    folder: Path,
    file: BinaryIO,
    sha256: str,
    config: Mapping[str, Any],
    ends: Mapping[str, Any],
    tokenizer: Any,
    sources: Sequence[Source],
) -> None:
    """Write a model's files and, last, the note that says which they are.

    Args:
        folder: empty.
        file: the GGUF file, open.
        sha256: its digest.
        config: of config.json, complete.
        ends: entries of generation_config.json.
        tokenizer: of transformers.
        sources: its tensors.

    Raises:
        Unconvertible: numbers that are not finite, or a file that changes meanwhile.
        OSError: no room, or no right to write.
    """
    _json(folder / "config.json", config)
    _json(folder / "generation_config.json", ends)
    tokenizer.save_pretrained(folder)
    told = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    told[WEIGHTS] = _weights(folder / WEIGHTS, file, sources)
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": told[name]} for name in told}
    _json(folder / NOTE, {"version": VERSION, "sha256": sha256, "files": files})
    for path in (*folder.iterdir(), folder):
        synced(path)


def _weights(path: Path, file: BinaryIO, sources: Sequence[Source]) -> str:
    """Write weights as safetensors without holding them; their digest."""
    # Wider numbers first, so that all begin at a multiple of their width.
    ordered = sorted(sources, key=lambda one: (one.made != "F32", one.entry.at))
    listed: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for one in ordered:
        end = at + one.nbytes
        listed[one.part.name] = {
            "dtype": one.made,
            "shape": list(one.part.shape),
            "data_offsets": [at, end],
        }
        at = end
    head = json.dumps(listed).encode()
    head += b" " * (-len(head) % 8)
    told = hashlib.sha256()
    with path.open("wb") as out:
        for piece in (len(head).to_bytes(8, "little"), head):
            out.write(piece)
            told.update(piece)
        for one in ordered:
            written = 0
            for piece in one.pieces(file):
                out.write(piece)
                told.update(piece)
                written += len(piece)
            if written != one.nbytes:
                raise Unconvertible(f"tensor {one.entry.name!r} became {written} bytes")
    return told.hexdigest()


def _json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def synced(path: Path) -> None:
    """Have a file or a folder on the disk before going on."""
    flags = os.O_RDONLY
    try:
        number = os.open(path, flags)
    except PermissionError:
        if path.is_dir():  # where folders cannot be opened they cannot be synced
            return
        raise
    try:
        os.fsync(number)
    finally:
        os.close(number)


def identity(sha256: str) -> str:
    """What a model that was converted is known by: its file's content and this version.

    Args:
        sha256: of the file.
    """
    return hashlib.sha256(f"gguf {sha256} {VERSION}".encode()).hexdigest()[:32]


def is_complete(folder: Path, sha256: str) -> bool:
    """Whether a folder is what a file becomes: all files there, small ones unchanged.

    Args:
        folder: where it would be.
        sha256: of the file.
    """
    note = _note(folder)
    if note is None or note["sha256"] != sha256:
        return False
    return all(_same(folder / name, told, name != WEIGHTS) for name, told in note["files"].items())


def converted_from(folder: Path) -> str | None:
    """The identity of a folder that a GGUF file became, every byte of it; None for any other.

    Args:
        folder: of a model.
    """
    note = _note(folder)
    if note is None or not all(
        _same(folder / name, told, True) for name, told in note["files"].items()
    ):
        return None
    others = {path.name for path in folder.iterdir()} - note["files"].keys() - {NOTE}
    return None if others else identity(note["sha256"])


def _same(path: Path, told: Mapping[str, Any], closely: bool) -> bool:
    try:
        size = path.stat().st_size
        return size == told["bytes"] and (not closely or _digest(path) == told["sha256"])
    except OSError:
        return False


def _note(folder: Path) -> dict[str, Any] | None:
    """The note of this version; None where there is none."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        files, sha256 = note["files"], note["sha256"]
        good = (
            note["version"] == VERSION
            and isinstance(sha256, str)
            and {WEIGHTS, "config.json", "tokenizer.json"} <= files.keys()
            and all(Path(name).name == name for name in files)
            and all({"bytes", "sha256"} <= told.keys() for told in files.values())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return note if good else None
