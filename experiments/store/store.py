"""The store of decoded traces: append-only, one compressed record a trace, one file per writer.

A record is two zstandard frames, so a whole file is still a valid .zst:

- a skippable frame: the record's id, the length of what follows and a checksum of both;
- a compressed frame with content checksum: one line of JSON about the run, one line with its trace.

The first lets a reader name a record whose content is damaged and go on behind it; where it is
damaged itself, the reader looks for the next one. Files of other writers are never touched: a torn
tail is left where it is and skipped, and so mentioned each time the store is opened.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import struct
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import zstandard

from attention.errors import InvalidValue
from experiments.grid.scoring import correct
from lil.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

# A skippable frame: its magic number and size in little endian, then id, length, checksum.
_MAGIC = 0x184D2A5D
_HEAD = struct.Struct("<II16sII")
_PAYLOAD = _HEAD.size - 8
_PREFIX = struct.pack("<II", _MAGIC, _PAYLOAD)

#: Records appended between two fsyncs; a machine that loses power loses at most so many.
SYNC_EVERY = 8


def _pack(id_: str, meta: Mapping[str, Any], trace: Mapping[str, Any] | None) -> bytes:
    text = json.dumps(dict(meta), allow_nan=False) + "\n" + json.dumps(trace, allow_nan=False)
    frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text.encode())
    key = bytes.fromhex(id_)
    check = zlib.crc32(key + len(frame).to_bytes(4, "little"))
    return _HEAD.pack(_MAGIC, _PAYLOAD, key, len(frame), check) + frame


@dataclass(frozen=True)
class Record:
    """One stored run: what is needed to choose it, and where its trace lies.

    `meta` has the cell, item, status ("ok", "capped", "out_of_memory" or "error"), message, tokens,
    finish, and the names of its signals. No verdict on an answer is stored: that is said whenever
    a trace is read.
    """

    id: str
    meta: Mapping[str, Any]
    path: Path
    offset: int
    length: int

    @property
    def failed(self) -> bool:
        """Whether there is no trace, only a message."""
        return self.meta["status"] in ("error", "out_of_memory")

    def serves(self, cap: int) -> bool:
        """Whether nothing has to be decoded for this cap: it ended by itself, or is long enough."""
        return self.failed or self.meta["finish"] != "length" or self.meta["tokens"] >= cap

    def has(self, signals: Collection[str]) -> bool:
        """Whether detectors that read hidden states left these numbers in the trace."""
        return self.failed or set(signals) <= set(self.meta.get("signals", ()))

    def trace(self) -> Trace:
        """The stored trace.

        Raises:
            InvalidValue: the run failed, so there is none.
        """
        return Trace.from_dict(self.values())

    def values(self) -> dict[str, Any]:
        """The stored trace as `lil.Trace.to_dict` gave it.

        Raises:
            InvalidValue: the run failed, so there is none.
        """
        if self.failed:
            raise InvalidValue("trace", self.id, f"a run that has one ({self.meta['message']})")
        with self.path.open("rb") as file:
            file.seek(self.offset)
            text = zstandard.ZstdDecompressor().decompress(file.read(self.length))
        loaded: dict[str, Any] = json.loads(text.partition(b"\n")[2])
        return loaded


class Store:
    """All traces of a folder; readable while others write to it.

    Args:
        path: the folder; nothing is created before the first `append`.

    Attributes:
        notices: what could not be read, one sentence each, files named.

    Raises:
        InvalidValue: the path exists and is no folder, or cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.notices: list[str] = []
        self._records: dict[str, Record] = {}
        self._writer: _Writer | None = None
        if self.path.exists() and not self.path.is_dir():
            raise InvalidValue("out", str(self.path), "a folder")
        self.refresh()

    # ------------------------------------------------------------ reading

    def refresh(self) -> None:
        """Read every file again, those of other writers included."""
        self.notices, self._records = [], {}
        try:
            files = sorted((self.path / "traces").glob("*.zst"))
            for file in files:
                for record in _read(file, self.notices):
                    self._keep(record)
        except OSError as error:
            raise InvalidValue("out", str(self.path), f"a readable folder ({error})") from error

    def _keep(self, record: Record) -> None:
        # The same run may be there twice: decoded again for a longer cap or another signal, retried
        # after a failure, or by two processes at once. A trace beats a failure, a longer trace a
        # shorter one, more signals fewer.
        old = self._records.get(record.id)
        if old is None or old.failed or (not record.failed and _worth(record) > _worth(old)):
            self._records[record.id] = record

    def get(self, id_: str) -> Record | None:
        """The best record of a run, or None."""
        return self._records.get(id_)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def stored(self) -> int:
        """Readable records in all files, repeated ones counted."""
        return sum(1 for file in (self.path / "traces").glob("*.zst") for _ in _read(file, []))

    def frame(self, gold: Mapping[tuple[str, str], tuple[str, str]] | None = None) -> pd.DataFrame:
        """One row a run: identity, status, text, tokens, correct and costs; missing is null.

        Args:
            gold: by data set and item id the gold answer and its scorer; by default those of the
                last sweep's manifest, and what stands beside traces of before.
        """
        import pandas as pd

        known = self._answers() if gold is None else gold
        rows = []
        for record in self:
            meta = dict(record.meta)
            cell = meta.pop("cell")
            trace = {} if record.failed else record.values()
            text = None if record.failed else Trace.from_dict(trace).text
            for key in ("prompt_ids", "new_ids", "pieces", "prompt_bytes", "curve", "checks"):
                trace.pop(key, None)
            old = (meta.pop("gold", None), meta.pop("scorer", None))
            answer = known.get((cell["dataset"], meta["item_id"]), old)
            rows.append(
                {
                    "id": record.id,
                    **{key: cell[key] for key in ("model", "dataset", "dtype")},
                    "backend": cell["backend"]["name"],
                    "budget": cell["backend"].get("budget"),
                    "penalty": "+".join(p["name"] for p in cell["penalties"]) or "none",
                    **meta,
                    "correct": None if text is None or None in answer else correct(text, *answer),
                    "text": text,
                    **trace,
                }
            )
        return pd.DataFrame(rows)

    def _answers(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Gold answers and scorers of the last sweep, by data set and item id."""
        try:
            document = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
            sets = document["plan"]["items"]
            return {
                (one["dataset"], item): (gold[0], gold[1])
                for one in sets
                for item, _, *gold in one["problems"]
                if len(gold) == 2
            }
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # there are traces without a manifest, and then no answers

    # ------------------------------------------------------------ writing

    def append(self, id_: str, meta: Mapping[str, Any], trace: Mapping[str, Any] | None) -> Record:
        """Write one run behind this writer's own; on disk after at most `SYNC_EVERY` more.

        Raises:
            InvalidValue: no space left, or a folder that cannot be written.
        """
        if self._writer is None:
            self._writer = _Writer(self.path)
        blob = _pack(id_, meta, trace)
        offset = self._writer.write(blob)
        length = len(blob) - _HEAD.size
        record = Record(id_, dict(meta), self._writer.path, offset + _HEAD.size, length)
        self._keep(record)
        return record

    def sync(self) -> None:
        """Wait until everything appended is on disk."""
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        """Sync and close this writer's file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _worth(record: Record) -> tuple[int, int]:
    return int(record.meta["tokens"]), len(record.meta.get("signals", ()))


class _Writer:
    """One writer's file. Unbuffered: what was written survives the death of the process."""

    def __init__(self, folder: Path) -> None:
        # Processes on several machines may share the folder: a random part keeps them apart.
        self.path = folder / "traces" / f"{os.getpid()}-{secrets.token_hex(6)}.zst"
        self._pending = 0
        self._end = 0
        with _disk(folder):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb", buffering=0)
            sync_folder(self.path.parent)
        _lock(self._file.fileno())

    def write(self, blob: bytes) -> int:
        start = self._end
        try:
            with _disk(self.path):
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
            with _disk(self.path):
                os.fsync(self._file.fileno())
            self._pending = 0

    def close(self) -> None:
        self.sync()
        self._file.close()


def _read(path: Path, notices: list[str]) -> Iterator[Record]:
    """The sound records of one file; damage is named in `notices` and skipped."""
    # Asked before reading: a writer that ends in between has finished its last record.
    live = _locked(path)
    data = path.read_bytes()
    at = 0
    while at < len(data):
        head = data[at : at + _HEAD.size]
        length = _frame_length(head)
        if length is None:
            after = _next_head(data, at + 1)
            if after is None:
                if _torn(head) and live:
                    return
                lost = "its last record is torn" if _torn(head) else "unreadable to its end"
                notices.append(f"{path}: {lost} at byte {at}; dropped")
                return
            notices.append(f"{path}: unreadable from byte {at} to {after}; skipped")
            at = after
            continue
        id_ = head[8:24].hex()
        begin = at + _HEAD.size
        if begin + length > len(data):
            if not live:
                notices.append(f"{path}: its last record is torn at byte {at} (run {id_}); dropped")
            return
        meta = _meta(data[begin : begin + length])
        if meta is None:
            notices.append(f"{path}: the record at byte {at} is corrupt (run {id_}); skipped")
        else:
            yield Record(id_, meta, path, begin, length)
        at = begin + length


def _frame_length(head: bytes) -> int | None:
    if len(head) < _HEAD.size or not head.startswith(_PREFIX):
        return None
    _, _, key, length, check = _HEAD.unpack(head)
    return int(length) if zlib.crc32(key + length.to_bytes(4, "little")) == check else None


def _torn(head: bytes) -> bool:
    """Whether a file's end is the beginning of a header and nothing else."""
    return len(head) < _HEAD.size and head[: len(_PREFIX)] == _PREFIX[: len(head)]


def _next_head(data: bytes, start: int) -> int | None:
    at = data.find(_PREFIX, start)
    while at >= 0:
        if _frame_length(data[at : at + _HEAD.size]) is not None:
            return at
        at = data.find(_PREFIX, at + 1)
    return None


def _meta(frame: bytes) -> dict[str, Any] | None:
    try:
        text = zstandard.ZstdDecompressor().decompress(frame)
        meta = json.loads(text.partition(b"\n")[0])
    except (zstandard.ZstdError, ValueError):
        return None
    return meta if isinstance(meta, dict) else None


# ---------------------------------------------------------------- the disk


class _disk:  # noqa: N801 - used as a function: `with _disk(path):`
    """Turns what a disk can refuse into one message the user can act on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            wanted = "a folder with space left" if full else "a folder that can be written"
            raise InvalidValue("out", str(self.path), f"{wanted} ({error.strerror})") from error


def write_atomically(path: Path, text: str) -> None:
    """Replace a file at once: a reader, or a kill at any moment, sees the old or the new one whole.

    Raises:
        InvalidValue: no space left, or a folder that cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with _disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names created or replaced in a folder survive a loss of power, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_writable(folder: Path) -> None:
    """Refuse an output folder that cannot be made or written, without leaving anything.

    Permissions do not tell: the superuser, read-only and virtual file systems answer otherwise. So
    a folder is made beside where this one would go, and removed at once.

    Raises:
        InvalidValue: a file stands in the way, or permissions do.
    """
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise InvalidValue("out", str(folder), f"a folder ({nearest} is a file)")
    with _disk(folder):
        Path(tempfile.mkdtemp(prefix=".lil-", dir=nearest)).rmdir()


def _lock(handle: int) -> None:
    """Mark a file as being written; the mark goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # other systems: a reader may call a growing tail torn
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # file systems without locks, likewise
        return


def _locked(path: Path) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
