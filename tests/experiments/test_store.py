"""The store: what was appended is read back, whatever happens to the files meanwhile."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import pytest
from sweeping import stored

from attention.errors import InvalidValue
from experiments.store.files import records
from experiments.store.files.filesystem import require_writable, write_atomically
from experiments.store.store import Store
from lil.trace import Cost, Trace


def _id(number: int) -> str:
    return f"{number:032x}"


def _meta(tokens: int | None = 5, finish: str | None = "eos", **more: Any) -> dict[str, Any]:
    return {
        "cell": {
            "model": "m",
            "model_digest": "d",
            "dataset": "easy",
            "backend": {"name": "full"},
            "penalties": [],
            "sampling": {"temperature": 0.0},
            "dtype": "float32",
        },
        "item_id": "i",
        "prompt": "p",
        "sample_index": 0,
        "detector": None,
        "status": "ok",
        "finish": finish,
        "tokens": tokens,
        "message": None,
        "sweep": "s",
        "batch_size": 1,
        "workers": 1,
        **more,
    }


def _trace(*ids: int) -> dict[str, Any]:
    """A trace of these tokens, each the byte `x`, and an `eos`."""
    new_ids = (*ids, 0)
    tokens = len(new_ids)
    return Trace(
        prompt_ids=(1, 2),
        new_ids=new_ids,
        prompt_bytes=b"ab",
        pieces=(b"x",) * tokens,
        finish="eos",
        evidence=None,
        curve=((tokens, tokens, 5),),
        checks=(Cost(tokens, 10.0, 64.0, 0.5, 4.0, None),),
        keys_kept_max=tokens,
        keys_read_max=None,
        keys_read_mean=None,
        dense_layer_keys_read_mean=None,
        cache_bytes_peak=64,
        prefill_sec=0.1,
        decode_sec=0.5,
    ).to_dict()


def _failure(message: str = "boom") -> dict[str, Any]:
    return _meta(None, None) | {"status": "error", "message": message}


def _fill(folder: Path, count: int, start: int = 0) -> Path:
    with Store(folder) as store:
        for number in range(start, start + count):
            store.append(_id(number), _meta(tokens=number), _trace(*range(number)))
    return max((folder / "traces").iterdir(), key=lambda p: p.stat().st_mtime_ns)


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    _fill(tmp_path, 20)
    store = Store(tmp_path)
    assert len(store) == stored(store.path) == 20
    assert store.notices == []
    record = store.get(_id(7))
    assert record is not None
    assert record.meta["tokens"] == 7
    assert record.values() == _trace(*range(7))
    assert store.get(_id(99)) is None


def test_every_cut_of_a_file_keeps_the_whole_records_before_it(tmp_path: Path) -> None:
    file = _fill(tmp_path, 3)
    whole = file.read_bytes()
    sizes = []
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        store = Store(tmp_path)
        sizes.append(len(store))
        assert bool(store.notices) == (size not in _boundaries(whole))
    assert sizes == sorted(sizes)
    assert sizes[-1] == 3


def _boundaries(whole: bytes) -> list[int]:
    at, starts = 0, [0]
    while at < len(whole):
        length = records._frame_length(whole[at : at + records.HEAD.size])
        assert length is not None
        at += records.HEAD.size + length
        starts.append(at)
    return starts


def test_every_flipped_or_lost_byte_is_reported_and_costs_one_record(tmp_path: Path) -> None:
    file = _fill(tmp_path, 3)
    whole = file.read_bytes()
    rng = random.Random(0)
    changed = []
    for at in rng.sample(range(len(whole)), 150):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        changed.append(bytes(damaged))
    lost = [begin + records.HEAD.size + 8 for begin in _boundaries(whole)[:2]]
    for damaged in (*changed, *(whole[:at] + whole[at + 10 :] for at in lost)):
        file.write_bytes(damaged)
        store = Store(tmp_path)
        assert len(store) == 2
        assert store.notices
        assert all(file.name in notice for notice in store.notices)
        for record in store:
            assert record.values() == _trace(*range(record.meta["tokens"]))


def test_a_trace_beats_a_failure_and_a_longer_trace_a_shorter_one(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(_id(1), _failure(), None)
        assert store.get(_id(1)).failed
        store.append(_id(1), _meta(9, "length"), _trace(1))
        store.append(_id(1), _meta(4, "length"), _trace(2))
        store.append(_id(1), _failure(), None)
    for opened in (store, Store(tmp_path)):
        record = opened.get(_id(1))
        assert record is not None
        assert (record.meta["tokens"], record.values()) == (9, _trace(1))
    assert stored(tmp_path) == 4


@pytest.mark.parametrize(
    ("meta", "cap", "expected"),
    [
        (_meta(10, "eos"), 99, True),
        (_meta(10, "length"), 10, True),
        (_meta(10, "length"), 11, False),
        (_meta(10, "length"), 3, True),
        (_failure(), 5, True),
    ],
)
def test_which_caps_a_record_serves(
    tmp_path: Path, meta: dict[str, Any], cap: int, expected: bool
) -> None:
    with Store(tmp_path) as store:
        assert store.append(_id(1), meta, _trace()).covers_cap(cap) is expected


def test_a_failure_has_a_message_and_no_trace(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        record = store.append(_id(1), _failure("no memory"), None)
        with pytest.raises(InvalidValue, match="no memory"):
            record.trace()


def _write_many(folder: Path, start: int) -> None:
    with Store(folder) as store:
        for number in range(start, start + 200):
            store.append(_id(number), _meta(tokens=number), _trace(number))


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(tmp_path, s)) for s in (0, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    store = Store(tmp_path)
    assert len(list((tmp_path / "traces").iterdir())) == 2
    assert store.notices == []
    assert (len(store), stored(store.path)) == (300, 400)
    assert all(record.values() == _trace(record.meta["tokens"]) for record in store)


class _FullDisk:
    """A file on a disk with room for so many bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, blob: bytes) -> int:
        if self._room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done: int = self._file.write(blob[: self._room])
        self._room -= done
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1, 40])
def test_no_space_left_is_one_message_and_no_half_record(tmp_path: Path, room: int) -> None:
    store = Store(tmp_path)
    store.append(_id(0), _meta(), _trace())
    assert store._writer is not None
    size = store._writer.path.stat().st_size
    store._writer._file = _FullDisk(store._writer._file, room)
    with pytest.raises(InvalidValue, match="space left"):
        store.append(_id(1), _meta(), _trace())
    assert store._writer.path.stat().st_size == size
    store._writer._file = store._writer._file._file
    store.append(_id(2), _meta(), _trace(7))
    store.close()
    again = Store(tmp_path)
    assert again.notices == []
    assert {record.id for record in again} == {_id(0), _id(2)}
    assert again.get(_id(2)).values() == _trace(7)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InvalidValue, match="a folder"):
        Store(file)
    with pytest.raises(InvalidValue, match="is a file"):
        require_writable(file / "below" / "it")
    with pytest.raises(InvalidValue, match="out"):
        Store(Path("/proc/nobody-can")).append(_id(1), _meta(), _trace())
    require_writable(tmp_path / "not" / "yet")
    assert not (tmp_path / "not").exists()


def test_an_atomic_write_leaves_the_old_file_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.json"
    write_atomically(path, "old")

    def fail(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidValue, match="space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_files_are_read_in_the_order_of_their_sweeps_whatever_their_names(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Upon one verdict, then upon another, then upon the first again: the last one counts."""
    for sweep, verdict in enumerate(([9, 9, None], [1, 1, None], [9, 9, None])):
        with Store(tmp_path) as store:
            meta = _meta(sweep=f"2026010{sweep}T000000Z-00000", verdict=verdict)
            file = store.append(_id(1), meta, _trace(1)).path
        file.rename(file.with_name(f"{order[sweep]}.zst"))
    record = Store(tmp_path).get(_id(1))
    assert record is not None
    assert record.meta["sweep"].startswith("20260102")
