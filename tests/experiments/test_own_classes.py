"""Whoever edits a class of their own gets its numbers or none, never those of other code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import own_classes
import pytest
from own_classes import DETECTOR_FILES, METHOD_FILES, Folder
from sweeping import go

from attention.errors import InvalidValue
from attention.identity import code
from experiments.grid.config import Config
from experiments.grid.stored import import_paths
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import sweep
from experiments.sweep.estimate import estimate

SMALL = Path(__file__).parent / "data" / "small"
Make = Callable[..., Config]
CapFd = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Where the commands are run."""
    return own_classes.in_folder(tmp_path / "here", monkeypatch)


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A store of what ships."""
    unwanted = shutil.ignore_patterns("cache")
    return str(shutil.copytree(SMALL, tmp_path / "store", ignore=unwanted))


def means(document: Any, action: str = "stop") -> set[float | None]:
    """Mean tokens under the detector, in every configuration."""
    rows = [row for row in document["rows"] if row["detector"] == "own"]
    return {row["mean_tokens"] for row in rows if row["action"] == action}


# ---------------------------------------------------------------- replayed


def test_a_file_that_a_detector_reads(folder: Folder, small: str, capfd: CapFd) -> None:
    """A parameter called `weights` is a parameter like any other."""
    run = own_classes.document(capfd)
    folder.put(DETECTOR_FILES, {"own": 0, "base": 0, "limit": 0, "file": 5})
    folder.write("b.txt", "50")
    asked = ["replay", small, "--detector", "own:Own", "--set"]
    assert means(run(*asked, "own:Own.weights=own.txt")) == {5}
    assert means(run(*asked, "own:Own.weights=b.txt")) == {50}
    folder.write("b.txt", "40")
    assert means(run(*asked, "own:Own.weights=b.txt")) == {40}


@pytest.mark.parametrize("edited", list(DETECTOR_FILES))
def test_a_detector_is_edited(folder: Folder, small: str, capfd: CapFd, edited: str) -> None:
    run = own_classes.document(capfd)
    numbers = {"own": 1, "base": 2, "limit": 3, "file": 4}
    folder.put(DETECTOR_FILES, numbers)
    assert means(run("replay", small, "--detector", "own:Own")) == {10}
    folder.put(DETECTOR_FILES, numbers | {edited: 20})
    assert means(run("replay", small, "--detector", "own:Own")) == {30 - numbers[edited]}


# ---------------------------------------------------------------- acted


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A model whose outputs go on up to their cap."""
    return own_classes.endless(tiny_model, tmp_path / "model")


def swept(model: Path, out: str, weights: str = "own.txt") -> list[str]:
    """A sweep with the detector at work."""
    command = ["sweep", "--preset", "demo-small", "--model", str(model), "--limit", "2"]
    command += ["--backend", "full", "--threads", "1", "--out", out, "--no-figures", "--no-page"]
    command += ["--max-new-tokens", "60", "--detector", "own:Own,own:Own:answer"]
    command += ["--set", f"detector_params.own:Own.weights={weights}"]
    return [*command, "--set", "action_params.answer.tokens=3"]


def test_runs_of_a_detector_that_acts(folder: Folder, model: Path, capfd: CapFd) -> None:
    """The oracle: a store of its own."""
    run = own_classes.document(capfd)
    folder.put(DETECTOR_FILES, {"own": 1, "base": 1, "limit": 1, "file": 3})
    first = run(*swept(model, "S"))
    assert (means(first), first["manifest"]["counts"]["acted"]) == ({6}, 2)
    folder.write("b.txt", "9")  # another file, then an edit of it, then one of the class
    for at, change in enumerate(
        [
            {},
            {"b.txt": "11"},
            {"own_limit.py": "LIMIT = 5\n"},
        ]
    ):
        for name, text in change.items():
            folder.write(name, text)
        again = run(*swept(model, "S", "b.txt"))
        alone = run(*swept(model, f"alone{at}", "b.txt"))
        assert means(again, "answer") == means(alone, "answer") != means(first, "answer")
        assert means(again) == means(alone)
    assert run(*swept(model, "S", "b.txt"))["manifest"]["counts"]["acted"] == 0
    # The same first verdict: whether a second one is the same is known of the same code alone.
    folder.write("own_limit.py", "LIMIT = 5  # edited\n")
    assert run(*swept(model, "S", "b.txt"))["manifest"]["counts"]["acted"] == 2


# ---------------------------------------------------------------- methods


def of_method(tiny_config: Make) -> Config:
    return tiny_config(backends="full,method:Norm", budgets="32", detectors="none", limit=2)


def texts(out: Path) -> set[str]:
    frame = Store(out).frame()
    return set(frame[frame.backend == "norm"].text)


SIGNS = {"own": 1, "base": 1, "limit": 1, "file": 1}


@pytest.mark.parametrize("edited", list(METHOD_FILES))
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
        sweep.prepare(config, out)
    dry = estimate(config, out)
    assert (dry["stored"], dry["runs"]) == (2, 4)
    assert any("--again" in one for one in dry["unknown"])
    manifests = len(list((out / "sweeps").iterdir()))
    again, _ = go(config, out, again=True)
    assert again.counts.decoded == 2
    assert manifests == 2  # what was refused left none
    go(config, tmp_path / "alone")
    assert texts(out) == texts(tmp_path / "alone") != before
    assert go(config, out)[0].counts.decoded == 0


def test_a_method_in_its_second_version(folder: Folder, tiny_config: Make, tmp_path: Path) -> None:
    """It is another method: nothing of the first is in the way, nor rebuilt as the second."""
    config, out = of_method(tiny_config), tmp_path / "out"
    folder.put(METHOD_FILES, SIGNS)
    go(config, out)
    second = METHOD_FILES["own"][1].format(own=-1)
    folder.write("method.py", second.replace("    budget: int", "    version = 2\n    budget: int"))
    outcome, _ = go(config, out)
    assert outcome.counts.decoded == 2
    study = Study.open(out, load=import_paths(config))
    cells = [cell for cell in study.plan.configurations if not cell.is_full]
    assert [cell.backend.get("version") for cell in cells] == [2, None]
    assert study.backend(cells[0]).identity() == cells[0].backend
    with pytest.raises(InvalidValue, match="version = 1: expected 2"):
        study.backend(cells[1])


def test_a_store_of_two_codes_says_so(folder: Folder, tiny_model: Path, capfd: CapFd) -> None:
    """A budget before an edit and one after it: shown, with a notice, and nothing is imported."""
    run = own_classes.document(capfd)
    command = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--limit", "2"]
    command += ["--backend", "full,method:Norm", "--threads", "1", "--detector", "none"]
    command += ["--max-new-tokens", "20", "--out", "S", "--no-figures", "--no-page"]
    folder.put(METHOD_FILES, SIGNS)
    run(*command, "--budget", "32")
    folder.put(METHOD_FILES, SIGNS | {"own": -1})
    run(*command, "--budget", "48")
    said = own_classes.refused(capfd)(*command, "--budget", "32,48")
    assert "2 of its runs with another method:Norm" in said
    for name, _ in METHOD_FILES.values():
        (folder.path / name).unlink()
    found = run("report", "S", "--no-figures", "--no-page")
    assert [row["budget"] for row in found["rows"]] == [None, 32, 48]
    (notice,) = found["manifest"]["notices"]
    assert "2 of 4 runs were decoded with another method:Norm than the newest" in notice


STILL = '''
from dataclasses import dataclass

from lil.detectors.stall import Similarities, Stall


@dataclass(frozen=True)
class Still(Stall):
    """Takes the same note of every state."""

    name = "still"

    @property
    def signal(self):
        return "still"

    def watch(self, prompt=b""):
        return Notes(self)


class Notes(Similarities):
    def number(self, reading):
        return {note}
'''


def test_notes_of_other_code_are_not_read(folder: Folder, model: Path, capfd: CapFd) -> None:
    """What a detector made of the model's states is in the trace: after an edit it is made anew."""
    run, refused = own_classes.document(capfd), own_classes.refused(capfd)
    command = ["sweep", "--preset", "demo-small", "--model", str(model), "--limit", "2"]
    command += ["--backend", "full", "--threads", "1", "--no-figures", "--no-page", "--out", "S"]
    command += ["--max-new-tokens", "40", "--detector", "still:Still"]
    command += ["--set", "detector_params.still:Still.longest=2"]

    def fired(document: Any) -> int:
        return sum(row["fired"] for row in document["rows"])

    folder.write("still.py", STILL.format(note=0.0))
    assert fired(run(*command)) == 0
    folder.write("still.py", STILL.format(note=1.0))
    assert "2 of its runs with another still:Still" in refused(*command)
    assert "lack its notes" in refused("replay", "S", "--detector", "still:Still")
    report = ["report", "S", "--no-figures", "--no-page", "--detector", "still:Still"]
    assert "notes that its code took as it is now: 2 runs" in refused(*report)
    assert fired(run(*command, "--again")) == 2
    assert fired(run(*report)) == fired(run("replay", "S", "--detector", "still:Still")) == 2


# ---------------------------------------------------------------- any edit


# ---------------------------------------------------------------- what code is


def test_what_ships_has_a_version_and_no_code() -> None:
    import attention
    import lil

    assert code(attention.get("h2o", budget=64), lil.Either("cycle+guardian"), lil.Budget()) == {}


# ---------------------------------------------------------------- published
