"""Whoever looks at a store or a file of somebody else runs nothing of theirs.

Each attack names a module, in a field that could carry a name, that leaves a mark where it is
imported: `evil.py`, in the folder the command is run in and in that of the store.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lil.detectors
from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid.detectors import build_detectors
from experiments.grid.presets import load
from experiments.store.study import Study

SMALL = Path(__file__).parents[1] / "experiments" / "data" / "small"
EVIL = """
import pathlib
pathlib.Path({mark!r}).write_text("imported")

from dataclasses import dataclass
from lil import Detector, Watcher


@dataclass(frozen=True)
class D(Detector):
    name = "evil"

    def watch(self, prompt=b""):
        return Watcher(self)
"""
Attack = Callable[[dict[str, Any]], None]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a mark is, once `evil` has been imported."""
    mark, here = tmp_path / "mark", tmp_path / "here"
    store = here / "lil-out" / "theirs"
    shutil.copytree(SMALL, store, ignore=shutil.ignore_patterns("cache"))
    (here / "evilpack").mkdir()
    for file in ("evil.py", "evilpack/__init__.py", "guardian.py"):
        (here / file).write_text(EVIL.format(mark=str(mark)))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    importlib.invalidate_caches()
    return mark


@pytest.fixture
def store(mark: Path) -> Path:
    return mark.parent / "here" / "lil-out" / "theirs"


def config(**values: Any) -> Attack:
    """Put values into the configuration of a sweep."""
    return lambda manifest: manifest["config"].update(values)


def params(**tables: Any) -> Attack:
    """Put parameters of detectors into it, and ask for these."""
    return config(detectors=list(tables), detector_params=tables)


def planned(key: str, value: Any, **values: Any) -> Attack:
    """Change the backend or the penalties of each sparse configuration of the plan."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["config"] |= values
        for planned in manifest["plan"]["cells"]:
            if planned["backend"]["name"] != "full":
                tables = [planned["backend"]] if key == "backend" else planned["penalties"]
                for table in tables:
                    table |= value

    return change


PARTS: tuple[Any, ...] = ("cycle+evil:D", [{"name": "evil:D"}])
ATTACKS: dict[str, Attack] = {
    "a detector": config(detectors=["evil:D"]),
    "a module in a package": config(detectors=["evilpack.evil:D"]),
    "blanks": config(detectors=[" evil:D ", "evil :D"]),
    "parameters in brackets": config(detectors=["evil:D(f=3)", "guardian(codec='evil:C')"]),
    "a module called like a detector": config(detectors=["guardian:D"]),
    "a codec in a table": params(guardian={"codec": "evil:C"}),
    "an action": params(guardian={"on_stop": {"name": "evil:A", "cue": "evil:A"}}),
    "weights of a package": params(chopper={"weights": "evilpack:x.safetensors"}),
    "a backend": config(backends=["full", "evil:B"], backend_params={"evil:B": {}}),
    "a penalty": config(penalties=["evil:P", "evil:P(x=1)"], penalty_params={"evil:P": {}}),
    "a planned backend": planned("backend", {"name": "evil:B"}, detectors=["guardian:densify"]),
    "a planned codec": planned("backend", {"codec": "evil:C"}, detectors=["guardian:densify"]),
    "a planned penalty": planned("penalties", {"name": "evil:P"}, penalties=["evil:P"]),
    "a model and a data set": config(models=["evil:M"], datasets=["evil:D", "./evil.py"]),
    **{f"parts {at}": params(either={"parts": parts}) for at, parts in enumerate(PARTS)},
    "parts in brackets": config(detectors=["either(parts=[{name='guardian',codec='evil:C'}])"]),
}


def written(store: Path, attack: Attack) -> None:
    """Change the manifest of a store."""
    (path,) = (store / "sweeps").glob("*.json")
    manifest = json.loads(path.read_text())
    for group in manifest["plan"]["items"]:
        del group["problems"][1:]
    attack(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_imported_because_a_manifest_names_it(
    name: str, store: Path, mark: Path
) -> None:
    written(store, ATTACKS[name])
    with contextlib.suppress(InvalidValue):
        study = Study.open(store)
        study.samples(build_detectors(study.config))
        for configuration in study.plan.configurations:
            for rebuilt in (study.backend, study.penalties):
                with contextlib.suppress(InvalidValue):
                    rebuilt(configuration)
    assert not mark.exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("name", ["a detector", "parts 1"])
def test_no_command_imports_what_a_manifest_names(
    name: str, store: Path, mark: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written(store, ATTACKS[name])
    command = ["replay", str(store), "--detector", "guardian,either(parts='cycle+budget')"]
    assert main(command) in (0, 2)
    assert main(["board", str(store)]) in (0, 2)
    assert not mark.exists()
    assert "Traceback" not in capfd.readouterr().err


def test_the_module_of_the_attacks_can_be_imported(store: Path, mark: Path) -> None:
    """Or none of them would be an attack: where it is typed, it runs."""
    written(store, ATTACKS["a detector"])
    assert main(["calibrate", str(store), "--detector", "evil:D"]) == 2  # it has no ladder
    assert mark.exists()
    del sys.modules["evil"]


@pytest.mark.parametrize(
    "detector",
    [
        *({"name": "evil:D"}, {"name": "guardian", "codec": "evil:C"}),
        *({"name": "either", "parts": parts} for parts in PARTS),
        {"name": "chopper", "weights": "evilpack:x.safetensors"},
        {"name": "budget", "on_stop": {"name": "evil:A"}},
        {"name": "budget", "tokens = 5, codec": "evil:C"},
    ],
    ids=str,
)
def test_a_calibrated_detector_is_data(detector: Any, store: Path, mark: Path) -> None:
    file = mark.parent / "here" / "x.json"
    file.write_text(json.dumps({"format": lil.detectors.CALIBRATED, "detector": detector}))
    with pytest.raises(InvalidValue):
        load("demo", {"detectors": "x.json:answer"})
    assert main(["replay", str(store), "--detector", "x.json"]) == 2
    assert not mark.exists()
