"""The store's files and the newest sweep's manifest, read without the package that wrote them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import zstandard

# A skippable zstandard frame: magic number, size, then id, length of what follows, checksum.
HEAD = struct.Struct("<II16sII")
MAGIC, PAYLOAD = 0x184D2A5D, HEAD.size - 8

#: Parameters that say of a detector what it does anyway.
LEFT = (("within", None), ("outside", 1000))

#: What a run is known by: cell without the model's name, item, prompt, sample, acting detector.
Key = tuple[str, str, str, int, str]


@dataclass(frozen=True)
class Stored:
    """One record: what it says about the run, and its trace; None where the run failed."""

    meta: Mapping[str, Any]
    trace: Mapping[str, Any] | None

    @property
    def worth(self) -> tuple[bool, int, int]:
        """A trace beats a failure, a longer trace a shorter one, more signals fewer."""
        signals = len(self.meta.get("signals") or ())
        return self.trace is not None, int(self.meta["tokens"] or 0), signals


def canonical(value: object) -> str:
    """The same text for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True)


def key_of(
    cell: Mapping[str, Any],
    item: str,
    prompt: str,
    index: int,
    acting: Mapping[str, Any] | None = None,
) -> Key:
    """What a run is known by in the store.

    A data set's folder, a cell's role, what a detector is called and what it listens to are no
    part of it, nor is a parameter that is left as it is.
    """
    if acting is not None:
        told = ("label", "signals")
        acting = {
            name: value
            for name, value in acting.items()
            if name not in told and (name, value) not in LEFT
        }
    known = {name: value for name, value in cell.items() if name not in ("model", "role")}
    if known.get("runtime") == "transformers":  # stores of earlier versions do not name it
        del known["runtime"]
    known["dataset"] = PurePath(cell["dataset"]).name
    return canonical(known), item, prompt, index, canonical(acting)


def records(folder: Path) -> dict[Key, Stored]:
    """The best record of each run."""
    found: dict[Key, Stored] = {}
    for path in sorted((folder / "traces").glob("*.zst")):
        for meta, trace in _frames(path.read_bytes()):
            one = Stored(meta, trace)
            key = key_of(
                meta["cell"],
                meta["item_id"],
                meta["prompt"],
                meta["sample_index"],
                meta.get("detector"),
            )
            if key not in found or one.worth > found[key].worth:
                found[key] = one
    return found


def _frames(data: bytes) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    at = 0
    while at + HEAD.size <= len(data):
        magic, payload, id_, length, check = HEAD.unpack_from(data, at)
        sum_ = zlib.crc32(id_ + length.to_bytes(4, "little"))
        if (magic, payload, check) != (MAGIC, PAYLOAD, sum_):
            raise SystemExit(f"no record at byte {at}: recompute an undamaged store")
        at += HEAD.size
        if at + length > len(data):
            return  # torn by a kill; whoever was killed decoded it again
        text = zstandard.ZstdDecompressor().decompress(data[at : at + length])
        meta, _, trace = text.partition(b"\n")
        yield json.loads(meta), json.loads(trace)
        at += length


def manifest(folder: Path) -> dict[str, Any]:
    """What the newest sweep wrote down: its configuration, detectors and plan."""
    paths = [*folder.glob("sweeps/*.json")]
    if not paths:
        raise SystemExit(f"{folder} holds no manifest")
    told = [(json.loads(path.read_text(encoding="utf-8")), path.name) for path in paths]
    newest: dict[str, Any] = max(told, key=lambda one: (one[0]["started"], one[1]))[0]
    return newest
