"""Whoever looks at a store or a file of somebody else runs nothing of theirs.

Each attack names a module, in a field that could carry a name, that leaves a mark where it is
imported: `evil.py`, in the folder the command is run in and in that of the store.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
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
from attention.spec import Spec
from experiments.cli import main
from experiments.cli.commands import acceptance
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import Plan
from experiments.grid.presets import load
from experiments.store.store import Store
from experiments.store.study import Study

SMALL = Path(__file__).parents[1] / "experiments" / "data" / "small"

EVIL = """
import pathlib
pathlib.Path({mark!r}).write_text("imported")

from dataclasses import dataclass
from lil import Detector, Penalty, Watcher
from lil.compression.codecs import find


@dataclass(frozen=True)
class D(Detector):
    name = "evil"

    def watch(self, prompt=b""):
        return Watcher(self)


class C(find("deflate")):
    name = "evil"
"""

Manifest = dict[str, Any]
Attack = Callable[[Manifest], None]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a mark is, once `evil` has been imported."""
    mark = tmp_path / "mark"
    here = tmp_path / "here"
    store = here / "lil-out" / "theirs"
    shutil.copytree(SMALL, store, ignore=shutil.ignore_patterns("cache"))
    for folder in (here, here / "evilpack", store / "traces"):
        folder.mkdir(exist_ok=True)
        (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    (here / "evilpack" / "__init__.py").write_text(EVIL.format(mark=str(mark)))
    (here / "guardian.py").write_text(EVIL.format(mark=str(mark)))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    importlib.invalidate_caches()
    return mark


@pytest.fixture
def store(mark: Path) -> Path:
    """The store that is looked at."""
    return mark.parent / "here" / "lil-out" / "theirs"


def config(**values: Any) -> Attack:
    """Put values into the configuration of a sweep."""

    def change(manifest: Manifest) -> None:
        manifest["config"] |= values

    return change


def params(**tables: Any) -> Attack:
    """Put parameters of detectors into it, and ask for these."""
    return config(detectors=list(tables), detector_params=tables)


def plan(change: Callable[[dict[str, Any]], None], **values: Any) -> Attack:
    """Change each cell of the plan."""

    def changed(manifest: Manifest) -> None:
        manifest["config"] |= values
        for cell in manifest["plan"]["cells"]:
            if cell["backend"]["name"] != "full":
                change(cell)

    return changed


def _backend(cell: dict[str, Any]) -> None:
    cell["backend"]["name"] = "evil:B"


def _penalty(cell: dict[str, Any]) -> None:
    for penalty in cell["penalties"]:
        penalty["name"] = "evil:P"


def _codec(cell: dict[str, Any]) -> None:
    cell["backend"]["codec"] = "evil:C"


def _others(manifest: Manifest) -> None:
    names = ("evil:D", "guardian", "evil.D")
    manifest["detectors"] = [{"name": name, "class": "evil:D"} for name in names]
    manifest["penalties"] = [{"name": "evil:P"}]
    manifest["code"], manifest["keeps_all"] = {"evil:D": "0"}, [{"name": "evil:B"}]
    manifest["models"] = [{"name": "evil:M", "digest": "evil:M"}]
    manifest["arguments"] = ["report", "--load", "evil:D", "--detector", "evil:D"]


PARTS: list[Any] = [
    ["evil:D", "cycle"],
    "cycle+evil:D",
    [{"name": "evil:D"}],
    [{"name": "guardian", "codec": "evil:C"}],
    [{"name": "both", "parts": [{"name": "either", "parts": "evil:D"}]}],
    [{"name": "chopper", "weights": "evilpack:x.safetensors"}],
    {"name": "evil:D"},
]

ATTACKS: dict[str, Attack] = {
    "a detector": config(detectors=["evil:D"]),
    "a detector in the store's own folder": config(
        detectors=["lil-out.theirs.traces.evil:D", "guardian"]
    ),
    "a module in a package": config(detectors=["evilpack.evil:D"]),
    "a detector that continues_after_verdict": config(detectors=["evil:D:answer"]),
    "an attribute's attribute": config(detectors=["evil:D.x"]),
    "blanks": config(detectors=[" evil:D ", "evil :D"]),
    "a detector with parameters": config(detectors=["evil:D(f=3)", "evil:D(f=3):stop"]),
    "a module called like a detector": config(detectors=["guardian:D"]),
    "a codec of that module": params(guardian={"codec": "guardian:answer"}),
    "a codec in brackets": config(detectors=["guardian(codec='evil:C')"]),
    "a codec in a table": params(guardian={"codec": "evil:C"}),
    "a codec not asked for": config(detector_params={"guardian": {"codec": "evil:C"}}),
    "parameters of a detector": config(detector_params={"evil:D": {}}),
    "parameters that are tables": params(guardian={"f": {"name": "evil:D", "codec": "evil:C"}}),
    "parameters that are lists": params(budget={"tokens": [["evil:D"], [{"codec": "evil:C"}]]}),
    "an action": params(guardian={"on_stop": "evil:A"}),
    "an action that is a table": params(guardian={"on_stop": {"name": "evil:A", "cue": "evil:A"}}),
    "an action's parameters": config(action_params={"evil:A": {"name": "evil:A"}}),
    "a cue": config(detectors=["guardian:answer"], action_params={"answer": {"cue": "evil:D"}}),
    "weights of a package": params(chopper={"weights": "evilpack:x.safetensors"}),
    "weights in a module's place": params(chopper={"weights": "evilpack.evil:x"}),
    "weights in brackets": config(detectors=["chopper(weights='evilpack:x')"]),
    "a backend": config(backends=["full", "evil:B"], detectors=["guardian:densify"]),
    "a backend's parameters": config(
        backend_params={"evil:B": {"codec": "evil:C"}}, detectors=["guardian:densify"]
    ),
    "a penalty": config(penalties=["evil:P", "evil:P(x=1)"], penalty_params={"evil:P": {}}),
    "a cell's backend": plan(_backend, detectors=["guardian:densify", "guardian"]),
    "a cell's backend that was typed": plan(_backend, backends=["full", "evil:B"]),
    "a cell's penalty": plan(_penalty, penalties=["evil:P"]),
    "a cell's codec": plan(_codec, detectors=["guardian:densify"]),
    "a model": config(models=["evil:M"], device_map="evil:D"),
    "a data set": config(datasets=["evil:D", "./evil.py"], prompt_template="evil:D"),
    "an engine and an executor": config(executor="ray", address="evil:D", engine="auto"),
    "other fields": _others,
    **{
        f"parts {at}{kind}": params(**{kind: {"parts": parts}})
        for at, parts in enumerate(PARTS)
        for kind in ("either", "both")
    },
    **{
        f"parts in brackets {at}": config(detectors=[f"either(parts={text})"])
        for at, text in enumerate(
            ("'evil:D'", "['evil:D']", "[{name='evil:D'}]", "[{name='guardian',codec='evil:C'}]")
        )
    },
}

COMMANDS = (
    ["report", "lil-out/theirs", "--no-figures", "--no-page", "--sweep", "all"],
    ["replay", "lil-out/theirs", "--check-live"],
    ["replay", "lil-out/theirs", "--detector", "guardian,either(parts='cycle+budget')"],
    ["calibrate", "lil-out/theirs", "--detector", "budget", "--rate", "0.9"],
)


def written(store: Path, attack: Attack) -> None:
    """Change the manifest of a store."""
    (path,) = (store / "sweeps").glob("*.json")
    manifest = json.loads(path.read_text())
    attack(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_imported_because_a_manifest_names_it(
    name: str, store: Path, mark: Path
) -> None:
    """In Python: detectors, samples, methods of every cell."""
    written(store, ATTACKS[name])
    with contextlib.suppress(InvalidValue):
        study = Study.open(store)
        assert isinstance(study.warnings, list)
        study = dataclasses.replace(study, plan=few(study.plan))
        study.samples(build_detectors(study.config))
        for cell in study.plan.configurations:
            for rebuilt in (study.backend, study.penalties):
                with contextlib.suppress(InvalidValue):
                    rebuilt(cell)
    assert not mark.exists()
    assert "evil" not in sys.modules


def few(plan: Plan) -> Plan:
    """The first problem of each data set."""
    return dataclasses.replace(plan, items={key: some[:1] for key, some in plan.items.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_no_command_imports_what_a_manifest_names(
    name: str, store: Path, mark: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written(store, ATTACKS[name])
    codes = [main(command) for command in COMMANDS]
    assert not mark.exists()
    assert set(codes) <= {0, 2}
    assert "Traceback" not in capfd.readouterr().err
    Store(store).frame()
    assert not mark.exists()


@pytest.mark.parametrize("name", [name for name in ATTACKS if "parts" not in name])
def test_texts_are_read_again_under_what_is_typed_alone(
    name: str, store: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lil acceptance` takes a store's parameters for the methods that somebody typed."""
    asked: list[str] = []

    def acceptances(_study: Study, backends: Any, *_more: Any) -> list[Any]:
        asked.extend(one.name for one in backends)
        return []

    monkeypatch.setattr(acceptance, "acceptances", acceptances)
    written(store, ATTACKS[name])
    for typed in ([], ["--backend", "quest", "--budget", "64"]):
        assert main(["acceptance", str(store), *typed]) in (0, 2)
    assert not mark.exists()
    assert "evil" not in sys.modules
    assert asked[-1:] == ["quest"]


def test_the_module_of_the_attacks_can_be_imported(store: Path, mark: Path) -> None:
    """Or none of them would be one: where it is typed, it runs."""
    written(store, ATTACKS["a detector"])
    assert main(["calibrate", str(store), "--detector", "evil:D"]) == 2  # it has no ladder
    assert mark.exists()
    del sys.modules["evil"]


@pytest.mark.parametrize("name", ["a detector", "a codec in a table", "parts 0either"])
def test_what_is_not_here_is_said_and_the_rest_is_reported(
    name: str, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def also_guardian(manifest: Manifest) -> None:
        ATTACKS[name](manifest)
        manifest["config"]["detectors"] += ["budget"]

    written(store, also_guardian)
    report = ["report", "--no-figures", "--no-page"]
    for command in (report, ["replay"]) if name == "a detector" else (["replay"],):
        assert main([*command, str(store), "--json"]) == 0
        printed, said = capfd.readouterr()
        rows = json.loads(printed)["rows"]
        assert {row["detector"] for row in rows} == {"none", "budget"}
        assert len(rows) == 12
        flag = "--detector evil:D" if name == "a detector" else "evil:"
        assert "is not here and left out" in said
        assert flag in said


def test_an_entry_point_beside_the_store_is_not_installed(store: Path, mark: Path) -> None:
    info = mark.parent / "here" / "evil.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    for group in ("lil.detectors", "lil.codecs", "lil.attention", "lil.penalties"):
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[{group}]\nevil = evil:D\n")
    written(store, params(evil={}, guardian={"codec": "evil"}))
    study = Study.open(store)
    assert (study.detectors, len(study.warnings)) == ([], 2)
    for name in ("detectors", "compression.codecs", "penalties"):
        assert "evil" not in importlib.import_module(f"lil.{name}").names()
    assert not mark.exists()


def test_records_name_nothing_either(store: Path, mark: Path) -> None:
    opened = Store(store)
    one = next(record for record in opened if record.meta["detector"] is not None)
    cell = copy.deepcopy(one.meta["cell"])
    cell["backend"]["name"], cell["penalties"] = "evil:B", [{"name": "evil:P"}]
    for at, change in enumerate(
        (
            {"cell": cell},
            {"detector": {"name": "evil:D", "class": "evil:D", "on_stop": {"name": "evil:A"}}},
            {"code": {"evil:D": "0"}, "notes_code": {"evil:D": "0"}, "signals": ["evil:D"]},
            {"item_id": "../../evil:D", "scorer": "evil:D", "gold": "evil:D", "sweep": "evil:D"},
        )
    ):
        with opened:
            opened.append(f"{at:032x}", {**one.meta, **change}, one.values())
            opened.append(one.id, {**one.meta, **change}, one.values())
    study = Study.open(store)
    with contextlib.suppress(InvalidValue):
        study.samples(study.detectors)
    with contextlib.suppress(InvalidValue):
        Store(store).frame()
    assert not mark.exists()


CALIBRATED: list[Any] = [
    "evil:D",
    "cycle+evil:D",
    {"name": "evil:D"},
    {"name": "lil-out.theirs.traces.evil:D"},
    {"name": "guardian", "codec": "evil:C"},
    *({"name": "either", "parts": parts} for parts in PARTS),
    {"name": "chopper", "weights": "evilpack:x.safetensors"},
    {"name": "budget", "on_stop": {"name": "evil:A"}},
    {"name": "budget", "tokens = 5, codec": "evil:C"},
    {"name": "guardian(codec='evil:C')"},
]


@pytest.mark.parametrize("detector", CALIBRATED, ids=str)
def test_a_calibrated_detector_is_data(detector: Any, store: Path, mark: Path) -> None:
    file = mark.parent / "here" / "x.json"
    file.write_text(json.dumps({"format": lil.detectors.CALIBRATED, "detector": detector}))
    with pytest.raises(InvalidValue):
        lil.detectors.load(file)
    with pytest.raises(InvalidValue):
        load("demo", {"detectors": "x.json:answer"})
    assert main(["replay", str(store), "--detector", "x.json"]) == 2
    assert not mark.exists()


def test_a_key_of_a_file_ends_no_table() -> None:
    hostile = Spec("budget", {"table": {'a = 1}, codec = "evil:C", b = {c': 1}})
    text = str(hostile)
    assert text == 'budget(table = {"a = 1}, codec = \\"evil:C\\", b = {c" = 1})'
    assert lil.detectors.DETECTORS.spec(text) == hostile
