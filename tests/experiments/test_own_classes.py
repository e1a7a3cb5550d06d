"""Who edits a class of their own gets its numbers or none, never those of other code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from own_classes import DETECTOR_FILES, METHOD_FILES, Folder
from sweeping import Make, go, prepare

from attention.errors import InvalidValue
from attention.spec import Spec
from experiments.grid.config import Config
from experiments.grid.detectors import detectors_like
from experiments.grid.plan import build_backends
from experiments.grid.sources import code
from experiments.grid.stored import import_paths
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep.estimate import estimate
from tests.sampling import some_slow

SMALL = Path(__file__).parent / "data" / "small"
SIGNS = {"own": 1, "base": 1, "file": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path / "here", monkeypatch)


def of_method(tiny_config: Make, **overrides: object) -> Config:
    values = {"backends": "full,method:Norm", "budgets": "32", "detectors": "none", "limit": 2}
    return tiny_config(**values | overrides)


def texts(out: Path) -> set[str]:
    frame = Store(out).frame()
    return set(frame[frame.backend == "norm"].text)


@pytest.mark.parametrize("edited", [None, *DETECTOR_FILES])
def test_a_detector_is_edited(folder: Folder, tmp_path: Path, edited: str | None) -> None:
    """Its samples are made anew: its class, a module or a file that it reads may have changed."""
    store = shutil.copytree(SMALL, tmp_path / "store", ignore=shutil.ignore_patterns("cache"))
    numbers = {"own": 1, "limit": 3, "file": 4}
    for change in ({}, {} if edited is None else {edited: 20}):
        folder.put(DETECTOR_FILES, numbers | change)
        study = Study.open(store, load=["own:Own"])
        samples = study.samples(detectors_like(study.config, [Spec("own:Own")]))
        stops = {s.stopped_at for s in samples if s.detector == "own"} - {None}
        assert stops == {sum((numbers | change).values())}


@pytest.mark.parametrize("edited", some_slow(METHOD_FILES, 1))
def test_a_method_is_edited(folder: Folder, tiny_config: Make, tmp_path: Path, edited: str) -> None:
    """The same sweep is refused, and with `again` decodes anew what a new store decodes."""
    config, out = of_method(tiny_config), tmp_path / "out"
    folder.put(METHOD_FILES, SIGNS)
    go(config, out)
    before = texts(out)
    assert go(config, out)[0].counts.decoded == 0
    folder.put(METHOD_FILES, SIGNS | {edited: -1})
    who = "signs.txt" if edited == "file" else "method:Norm"
    with pytest.raises(InvalidValue, match=f"2 of its runs with another {who}.*--again"):
        prepare(config, out)
    forecast = estimate(config, out)
    assert (forecast["stored"], forecast["runs"]) == (2, 4)
    assert any("--again" in line for line in forecast["unknown"])
    assert len(list((out / "sweeps").iterdir())) == 2  # what was refused left none
    assert go(config, out, again=True)[0].counts.decoded == 2
    go(config, tmp_path / "alone")
    assert texts(out) == texts(tmp_path / "alone") != before


def test_a_method_in_its_second_version(folder: Folder, tiny_config: Make, tmp_path: Path) -> None:
    """It is another method: nothing of the first is in the way, nor rebuilt as the second."""
    config, out = of_method(tiny_config), tmp_path / "out"
    folder.put(METHOD_FILES, SIGNS)
    go(config, out)
    second = METHOD_FILES["own"][1].format(own=-1)
    folder.write("method.py", second.replace("    budget: int", "    version = 2\n    budget: int"))
    assert go(config, out)[0].counts.decoded == 2
    study = Study.open(out, load=import_paths(config))
    sparse = [c for c in study.plan.configurations if not c.is_full]
    assert [c.backend.get("version") for c in sparse] == [2, None]
    assert study.backend(sparse[0]).identity() == sparse[0].backend
    with pytest.raises(InvalidValue, match="version = 1: expected 2"):
        study.backend(sparse[1])


def test_a_store_of_two_codes_says_so(folder: Folder, tiny_config: Make, tmp_path: Path) -> None:
    """A budget before an edit and one after it: shown with a warning, and nothing is imported."""
    folder.put(METHOD_FILES, SIGNS)
    go(of_method(tiny_config), tmp_path)
    folder.put(METHOD_FILES, SIGNS | {"own": -1})
    go(of_method(tiny_config, budgets="48"), tmp_path)
    for name, _ in METHOD_FILES.values():
        (folder.path / name).unlink()
    study = Study.open(tmp_path)
    (warning,) = [line for line in study.warnings if "another method" in line]
    assert "2 of 4 runs were decoded with another method:Norm than the newest" in warning
    assert len(study.samples([])) == 6


def test_what_ships_has_no_digest_of_its_code() -> None:
    assert code(*build_backends(Config())) == {}
