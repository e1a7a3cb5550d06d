"""What is kept beside the traces spares work and changes nothing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.grid.detectors import build_detectors
from experiments.store.files import cache as kept
from experiments.store.files import records
from experiments.store.samples import load as reading
from experiments.store.samples.sample import Point, Points
from experiments.store.store import Store
from experiments.store.study import Study

SMALL = Path(__file__).parent / "data" / "small"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with runs in which detectors act, nothing kept beside it."""
    unwanted = shutil.ignore_patterns("cache")
    return Path(shutil.copytree(SMALL, tmp_path / "store", ignore=unwanted))


@pytest.fixture
def no_trace(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, whoever reads a trace fails."""

    def refuse(self: records.Record) -> None:
        raise AssertionError(f"the trace of {self.id} was read")

    return lambda: monkeypatch.setattr(records.Record, "values", refuse)


def read(folder: Path, **options: object) -> list[object]:
    study = Study.open(folder)
    found = study.samples(build_detectors(study.config), texts=False, **options)  # type: ignore[arg-type]
    return [*found.samples, found.missing]


def test_kept_samples_are_those_of_the_traces(store: Path, no_trace: Callable[[], None]) -> None:
    first = read(store)
    assert len(first) > 40
    no_trace()
    assert read(store) == first
    shutil.rmtree(store / "cache")
    with pytest.raises(AssertionError, match="was read"):
        read(store)


def test_a_damaged_file_is_made_again(store: Path) -> None:
    first = read(store)
    for path in (store / "cache").iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    assert read(store) == first


def test_what_samples_follow_from_is_in_the_key(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.open(store)
    cell = next(cell for cell in study.plan.configurations if not cell.is_full)
    (detector,) = [d for d in build_detectors(study.config) if d.name == "guardian"][:1]

    def key(
        of: Study = study, dataset: str = "easy", penalty: str = "none", able: object = detector
    ) -> str:
        return reading.key(of, cell, dataset, penalty, [("guardian", able)])  # type: ignore[list-item]

    def judged(**fields: str) -> Study:
        items = {
            name: tuple(problem._replace(**fields) for problem in problems)
            for name, problems in study.plan.items.items()
        }
        return dataclasses.replace(study, plan=dataclasses.replace(study.plan, items=items))

    keys = [
        key(),
        key(dataset="other"),
        key(penalty="lz"),
        key(able=dataclasses.replace(detector, f=detector.f + 1)),
        key(judged(gold="another")),
        key(judged(scorer="math")),
        key(dataclasses.replace(study, config=dataclasses.replace(study.config, cap="4x-full"))),
    ]
    grown = Store(store)
    run = study.plan.runs(cell)[0]
    record = grown.get(run.id)
    assert record is not None
    longer = {**record.meta, "tokens": record.meta["tokens"] + 1}
    with grown:
        grown.append(run.id, longer, record.values())
    keys.append(key(dataclasses.replace(study, store=grown)))
    monkeypatch.setattr(kept, "code", lambda _: "other code")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    monkeypatch.undo()
    assert key() == keys[0]


def test_a_file_that_changed_is_read_again(store: Path) -> None:
    whole = len(Store(store))
    (path,) = (store / "traces").glob("*.zst")
    assert (store / "cache" / f"{path.stem}.index").exists()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    for _ in range(2):  # and again: of a file with damage nothing is kept
        opened = Store(store)
        assert (len(opened), len(opened.notices)) == (whole - 1, 1)


def test_an_index_of_other_code_is_not_used(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    checked = records._checked
    monkeypatch.setattr(records, "_checked", lambda text: seen.append(text) or checked(text))
    Store(store)
    once = len(seen)
    Store(store)
    assert len(seen) == once > 0
    monkeypatch.setattr("experiments.store.files.cache.code", lambda _: "other code")
    Store(store)
    assert len(seen) == 2 * once


def test_a_store_that_cannot_be_written_is_read_as_well(store: Path) -> None:
    first = read(store)
    shutil.rmtree(store / "cache")
    (store / "cache").write_text("no folder")
    assert read(store) == first


@pytest.mark.slow
def test_several_processes_read_the_same(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(store)
    shutil.rmtree(store / "cache")
    monkeypatch.setattr(reading, "FEW", 1)
    assert read(store, workers=2) == first


def test_the_code_is_told_by_its_files() -> None:
    rooms = [(), kept.READING, kept.REPORTING]
    assert len({kept.code(one) for one in rooms}) == len(rooms)


points = st.lists(
    st.tuples(st.none() | st.integers(0, 2**31 - 1), *[st.integers(0, 2**31 - 1)] * 2), max_size=6
)


@given(points, st.integers(-7, 7), st.integers(-7, 7))
def test_points_are_the_tuple_of_them(told: list[Point], start: int, end: int) -> None:
    curve = Points(told)
    assert curve == tuple(told) == tuple(curve)
    assert len(curve) == len(told)
    assert Points.from_bytes(bytes(curve)) == curve
    assert curve[start:end] == tuple(told[start:end])
    if told:
        assert (curve[0], curve[-1]) == (told[0], told[-1])
    assert curve != (*told, (1, 2, 3))
    with pytest.raises(IndexError):
        curve[len(told)]
