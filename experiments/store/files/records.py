"""Records of decoded traces, one compressed record a trace.

A record is two zstandard frames, so a whole file is still a valid .zst:

- a skippable frame: the record's id, the length of what follows and a checksum of both;
- a compressed frame with content checksum: one line of JSON about the run, one line with its trace.

The first lets a reader name a record whose content is damaged and go on behind it; where it is
damaged itself, the reader looks for the next one. Files of other writers are never touched: a torn
tail is left where it is and skipped, and so mentioned each time the store is opened.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import zstandard
from msgspec import Meta

from attention.errors import InvalidValue
from experiments.grid import schema
from experiments.grid.identity import Configuration
from experiments.grid.schema import Count, Natural
from experiments.store.files.filesystem import filesystem_errors, sync_folder
from lil.trace import CostFields, Trace, TraceFields

# A skippable frame: its magic number and size in little endian, then id, length, checksum.
_MAGIC = 0x184D2A5D
HEAD = struct.Struct("<II16sII")
_PAYLOAD = HEAD.size - 8
PREFIX = struct.pack("<II", _MAGIC, _PAYLOAD)

#: Records appended between two fsyncs; a machine that loses power loses at most so many.
SYNC_EVERY = 8


class RunFields(msgspec.Struct, frozen=True):
    """The first line of a record: which run it is and how it ended.

    `code` are digests of the classes that do not ship and decoded it, `notes_code` of those that
    took notes. `verdict` was acted upon: tokens kept, step and anchor. `at_positions`: it was cut
    where the model's positions end, or went beyond them. `batch_size` rows were decoded together.
    """

    configuration: Configuration = msgspec.field(name="cell")
    item_id: str
    prompt: str
    sample_index: Natural
    status: Literal["ok", "capped", "out_of_memory", "error"]
    finish: str | None
    tokens: Natural | None
    message: str | None
    detector: dict[str, Any] | None
    sweep: str
    batch_size: Count
    workers: Count
    signals: tuple[str, ...] = ()
    code: dict[str, str] = {}
    notes_code: dict[str, str] = {}
    verdict: tuple[Natural, Natural, Natural | None] | None = None
    at_positions: bool = False
    runtime: str | None = None

    def __post_init__(self) -> None:
        failed = self.status in ("out_of_memory", "error")
        needed = (self.message,) if failed else (self.finish, self.tokens)
        if None in needed:
            raise ValueError(f"what belongs to a run that ended {self.status!r}")


class StoredTrace(TraceFields, forbid_unknown_fields=True):
    """The second line of a record: a trace whose costs are known up to its end."""

    checks: Annotated[tuple[CostFields, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = [check.tokens for check in self.checks]
        if ends != sorted(set(ends)) or ends[-1] != len(self.new_ids):
            raise ValueError("checks in ascending order up to the last token")


def decompressed(frame: bytes) -> bytes:
    """The content of a compressed frame."""
    try:
        return zstandard.ZstdDecompressor().decompress(frame)
    except MemoryError as error:
        raise zstandard.ZstdError("a damaged size") from error


def pack(id_: str, meta: Mapping[str, Any], trace: Mapping[str, Any] | None) -> bytes:
    text = json.dumps(dict(meta), allow_nan=False) + "\n" + json.dumps(trace, allow_nan=False)
    frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text.encode())
    key = bytes.fromhex(id_)
    check = zlib.crc32(key + len(frame).to_bytes(4, "little"))
    return HEAD.pack(_MAGIC, _PAYLOAD, key, len(frame), check) + frame


@dataclass(frozen=True)
class Record:
    """One stored run: its fields as in `RunFields`, and where its trace lies."""

    id: str
    meta: Mapping[str, Any]
    path: Path
    offset: int
    length: int

    @property
    def failed(self) -> bool:
        """Whether there is no trace, only a message."""
        return self.meta["status"] in ("error", "out_of_memory")

    def covers_cap(self, cap: int) -> bool:
        """Whether nothing has to be decoded for this cap: it ended by itself, or is long enough."""
        return self.failed or self.meta["finish"] != "length" or self.meta["tokens"] >= cap

    def has(self, signals: Collection[str]) -> bool:
        """Whether detectors that read hidden states left these numbers in the trace."""
        return self.failed or set(signals) <= set(self.meta.get("signals", ()))

    @property
    def code(self) -> Mapping[str, str]:
        """Digests of the classes that do not ship by which it was decoded, by import path."""
        return cast("Mapping[str, str]", self.meta.get("code", {}))

    @property
    def notes_code(self) -> Mapping[str, str]:
        """The same of detectors that took notes of what the model computed."""
        return cast("Mapping[str, str]", self.meta.get("notes_code", {}))

    def made_by(self, code: Mapping[str, str]) -> bool:
        """Whether it was decoded by this code of classes that do not ship."""
        return code.items() <= self.code.items()

    def noted_by(self, code: Mapping[str, str]) -> bool:
        """Whether the notes in its trace were taken by this code of classes that do not ship."""
        return self.failed or code.items() <= self.notes_code.items()

    def trace(self) -> Trace:
        """The stored trace."""
        return Trace.from_dict(self.values())

    def values(self) -> dict[str, Any]:
        """The stored trace as `lil.Trace.to_dict` gave it."""
        if self.failed:
            raise InvalidValue("trace", self.id, f"a run that has one ({self.meta['message']})")
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                text = decompressed(file.read(self.length))
        except (OSError, zstandard.ZstdError) as error:
            allowed = f"a record that is as it was when the store was opened ({self.path}: {error})"
            raise InvalidValue("run", self.id, allowed) from error
        values: dict[str, Any] = schema.loads(text.partition(b"\n")[2], f"run {self.id}")
        return values


class Writer:
    """One writer's file. Unbuffered: what was written survives the death of the process."""

    def __init__(self, folder: Path) -> None:
        # Processes on several machines may share the folder: a random part makes names differ.
        self.path = folder / "traces" / f"{os.getpid()}-{secrets.token_hex(6)}.zst"
        self._pending = 0
        self._end = 0
        with filesystem_errors(folder):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb", buffering=0)
            sync_folder(self.path.parent)

    def write(self, blob: bytes) -> int:
        start = self._end
        try:
            with filesystem_errors(self.path):
                done = 0
                while done < len(blob):
                    done += self._file.write(blob[done:]) or 0
        except InvalidValue:
            self._file.truncate(start)  # half a record helps nobody
            self._file.seek(start)
            raise
        self._end = start + len(blob)
        self._pending += 1
        if self._pending >= SYNC_EVERY:
            self.sync()
        return start

    def sync(self) -> None:
        if self._pending:
            with filesystem_errors(self.path):
                os.fsync(self._file.fileno())
            self._pending = 0

    def close(self) -> None:
        self.sync()
        self._file.close()


def read(path: Path, notices: list[str], live: bool = False) -> Iterator[Record]:
    """The sound records of a file; notices name damage, but for the end of a `live` store."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # which cannot be mapped
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from _records(path, data, live, notices)


def _records(path: Path, data: mmap.mmap, live: bool, notices: list[str]) -> Iterator[Record]:
    at = 0
    while at < len(data):
        head = data[at : at + HEAD.size]
        length = _frame_length(head)
        if length is None:
            after = _next_head(data, at + 1)
            if after is not None:
                notices.append(f"{path}: unreadable from byte {at} to {after}; skipped")
                at = after
                continue
            torn = len(head) < HEAD.size and head[: len(PREFIX)] == PREFIX[: len(head)]
            if not (torn and live):
                lost = "its last record is torn" if torn else "unreadable to its end"
                notices.append(f"{path}: {lost} at byte {at}; dropped")
            return
        id_, begin = head[8:24].hex(), at + HEAD.size
        corrupt = f"{path}: the record at byte {at} is corrupt (run {id_}); skipped"
        if begin + length > len(data):
            after = _next_head(data, begin)
            if after is not None:  # bytes are lost, and others stand behind them
                notices.append(corrupt)
                at = after
                continue
            if not live:
                notices.append(f"{path}: its last record is torn at byte {at} (run {id_}); dropped")
            return
        try:
            text = decompressed(data[begin : begin + length])
        except zstandard.ZstdError:
            notices.append(corrupt)
            # Where bytes are lost, the next one begins before this one's length is over.
            length = min(length, (_next_head(data, begin) or len(data)) - begin)
        else:
            try:
                yield Record(id_, _checked(text), path, begin, length)
            except InvalidValue as error:
                notices.append(
                    f"{path}: the record at byte {at} is of another version (run {id_}: {error}); "
                    "skipped"
                )
        at = begin + length


def _frame_length(head: bytes) -> int | None:
    if len(head) < HEAD.size or not head.startswith(PREFIX):
        return None
    _, _, key, length, check = HEAD.unpack(head)
    return int(length) if zlib.crc32(key + length.to_bytes(4, "little")) == check else None


def _next_head(data: mmap.mmap, start: int) -> int | None:
    at = data.find(PREFIX, start)
    while at >= 0:
        if _frame_length(data[at : at + HEAD.size]) is not None:
            return at
        at = data.find(PREFIX, at + 1)
    return None


def _checked(text: bytes) -> dict[str, Any]:
    """The first line, once both lines are known to be valid."""
    first, _, second = text.partition(b"\n")
    meta: dict[str, Any] = schema.loads(first, "its first line")
    fields = schema.checked(meta, RunFields, "its first line")
    if fields.status in ("ok", "capped"):
        schema.read(second, StoredTrace, "its trace")
    return meta
