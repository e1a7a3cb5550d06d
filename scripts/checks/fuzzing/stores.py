"""Small stores whose records are sound and say what no record of this version says."""

from __future__ import annotations

import copy
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard
from hypothesis import strategies as st

from fuzzing.values import anything

_HEAD = struct.Struct("<II16sII")
_MAGIC = 0x184D2A5D

Json = Any
Record = tuple[bytes, Json, Json]

GONE = object()


def read(store: Path) -> tuple[Json, list[Record]]:
    """A store's manifest and records, ids with them."""
    records = []
    for path in sorted((store / "traces").glob("*.zst")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            _, _, id_, length, _ = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            text = zstandard.ZstdDecompressor().decompress(data[at : at + length])
            meta, _, trace = text.partition(b"\n")
            records.append((id_, json.loads(meta), json.loads(trace)))
            at += length
    (manifest,) = (store / "sweeps").glob("*.json")
    return json.loads(manifest.read_text()), records


def smaller(manifest: Json, records: list[Record]) -> tuple[Json, list[Record]]:
    """One problem under full attention and H2O: enough for every table, quick to report."""
    manifest = copy.deepcopy(manifest)
    plan = manifest["plan"]
    plan["cells"] = [
        cell
        for cell in plan["cells"]
        if cell["backend"]["name"] in ("full", "h2o") and not cell["penalties"]
    ]
    plan["items"][0]["problems"] = plan["items"][0]["problems"][:1]
    item = plan["items"][0]["problems"][0][0]
    manifest["config"] |= {"penalties": ["none"], "penalty_params": {}, "backends": ["full", "h2o"]}
    kept = [one for one in records if one[1]["cell"] in plan["cells"] and one[1]["item_id"] == item]
    return manifest, kept


def write(store: Path, manifest: str | bytes, records: list[Record]) -> None:
    """A store of these, frames and checksums sound."""
    (store / "traces").mkdir(parents=True)
    (store / "sweeps").mkdir()
    data = b""
    for id_, meta, trace in records:
        # What is no JSON is written as Python writes it, which Python reads.
        text = (json.dumps(meta) + "\n" + json.dumps(trace)).encode("utf-8", "surrogatepass")
        frame = zstandard.ZstdCompressor(write_checksum=True).compress(text)
        check = zlib.crc32(id_ + len(frame).to_bytes(4, "little"))
        data += _HEAD.pack(_MAGIC, _HEAD.size - 8, id_, len(frame), check) + frame
    (store / "traces" / "1-0.zst").write_bytes(data)
    raw = manifest if isinstance(manifest, bytes) else manifest.encode("utf-8", "surrogatepass")
    (store / "sweeps" / "1.json").write_bytes(raw)


def paths(value: Json, start: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document, of long lists the first."""
    if start:
        yield start
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*start, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*start, 0))


def changed(value: Json, path: tuple[str | int, ...], new: Json) -> Json:
    """The document with another value at a place, or none."""
    found = inner = copy.deepcopy(value)
    for key in path[:-1]:
        inner = inner[key]
    if new is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return found


def changes(value: Json) -> st.SearchStrategy[tuple[tuple[str | int, ...], Json]]:
    """A place of a document and what stands there instead."""
    places = sorted(paths(value), key=str)
    return st.tuples(st.sampled_from(places), st.one_of(st.just(GONE), anything()))


def told(change: tuple[tuple[str | int, ...], Json]) -> str:
    """A change as a finding names it."""
    path, new = change
    where = ".".join(map(str, path))
    return f"no {where}" if new is GONE else f"{where} = {new!r:.80}"
