"""Bytes that rot, go or come: named, skipped, and everything else is read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import zstandard

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.store.files.records import HEAD
from experiments.store.store import Store

SMALL = Path(__file__).parent / "data" / "small"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SMALL, tmp_path / "store", ignore=shutil.ignore_patterns("cache"))
    return tmp_path / "store"


def _changed(path: Path, at: int, bytes_: bytes) -> None:
    """Other bytes, size and time as before."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at : at + len(bytes_)] = bytes_
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_bits_that_rot_behind_an_index_are_named_and_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(folder)
    whole, record = len(store), next(iter(store))
    (index,) = (folder / "cache").glob("*.index")
    _changed(record.path, record.offset + record.length // 2, b"\x55\xaa\x55")
    again = Store(folder)
    assert (len(again), again.get(record.id)) == (whole - 1, None)
    assert [f"run {record.id}" in notice for notice in again.notices] == [True]
    for command in (["report", "--no-figures", "--no-page"], ["replay", "--f", "50"]):
        assert main([command[0], str(folder), *command[1:]]) == 0
        said = capsys.readouterr()
        assert f"(run {record.id}); skipped" in said.err
        assert "Traceback" not in said.err
    index.unlink()
    assert [f"run {record.id}" in notice for notice in Store(folder).notices] == [True]
    assert not index.exists()


def test_a_record_that_rots_while_a_store_is_open_is_named(folder: Path) -> None:
    record = next(iter(Store(folder)))
    _changed(record.path, record.offset + record.length // 2, b"\x55\xaa\x55")
    with pytest.raises(InvalidValue, match=record.id):
        record.trace()
    record.path.unlink()
    with pytest.raises(InvalidValue, match=record.id):
        record.trace()


@pytest.mark.parametrize("lost", [1, 7, 40, 300])
def test_where_bytes_are_lost_the_next_record_is_found(folder: Path, lost: int) -> None:
    records = sorted(Store(folder), key=lambda one: one.offset)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    path = records[0].path
    data = path.read_bytes()
    for record in (records[0], records[len(records) // 2], records[-2]):
        assert lost < record.length
        at = record.offset + record.length // 3
        path.write_bytes(data[:at] + data[at + lost :])
        read = Store(folder)
        assert {one.id for one in read} == {one.id for one in records} - {record.id}
        assert [f"run {record.id}" in notice for notice in read.notices] == [True]


def test_a_length_beyond_the_end_hides_nothing_behind_it(folder: Path) -> None:
    """The head of a long record, and of what it heads nothing."""
    records = sorted(Store(folder), key=lambda one: one.offset)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    path, last = records[0].path, records[-1]
    data = path.read_bytes()
    longest = max(records[:-1], key=lambda one: one.length)
    at = longest.offset - HEAD.size
    cut = data[:at] + data[at : at + HEAD.size] + data[last.offset - HEAD.size :]
    path.write_bytes(cut)
    assert Store(folder).get(last.id) is not None


@pytest.mark.parametrize("suffix", ["index", "samples", "rows"])
def test_a_damaged_size_in_a_kept_file_costs_time_alone(
    folder: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["report", str(folder), "--no-figures", "--no-page"]
    assert main(command) == 0
    before = capsys.readouterr().out
    paths = [*(folder / "cache").glob(f"*.{suffix}")]
    assert paths
    for path in paths:
        # A sound head that promises four exabytes.
        path.write_bytes(b"\x28\xb5\x2f\xfd\xe0" + (1 << 62).to_bytes(8, "little") + b"rest")
        assert zstandard.get_frame_parameters(path.read_bytes()).content_size == 1 << 62
    assert main(command) == 0
    assert capsys.readouterr().out == before
