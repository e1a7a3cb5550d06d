"""A store remembers all its sweeps: which are shown together, which apart, who writes."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from sweeping import Make, Notes, go, jsonl, prepare

import lil
from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid.config import Config
from experiments.store import manifest
from experiments.store.files.filesystem import lock
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.store.sweeps import Sweep, by_id, groups, latest_compatible
from experiments.sweep import sweep

SMALL = Path(__file__).parent / "data" / "small"


def _budgets(study: Study) -> set[int | None]:
    return {cell.budget for cell in study.plan.configurations}


@pytest.fixture(scope="module")
def twice(tiny_config: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store with a sweep of budget 32 and then one of budget 96, and their ids."""
    out = tmp_path_factory.mktemp("twice") / "store"
    configs = [tiny_config(limit=3, backends="h2o", budgets=budget) for budget in ("32", "96")]
    return out, [go(config, out)[0].sweep for config in configs]


def test_a_detector_of_an_older_sweep_is_what_it_was() -> None:
    (cycle,) = (detector for detector in Study.open(SMALL).detectors if detector.name == "cycle")
    assert cycle == lil.Cycle(long_period=0)
    assert "long_period" not in cycle.identity()
    assert lil.Cycle().identity()["long_period"] == 4096


def test_every_sweep_adds_a_manifest_and_the_report_has_them_all(
    twice: tuple[Path, list[str]],
) -> None:
    out, ids = twice
    assert [path.stem for path in manifest.paths(out)] == ids
    both = Study.open(out)
    assert [sweep.id for sweep in both.sweeps] == ids[::-1]
    assert _budgets(both) == {None, 32, 96}
    assert both.notices == ()
    results = both.samples([])
    assert not any(sample.status == "missing" for sample in results)
    assert len(results) == len(both.plan) == 9
    assert _budgets(Study.open(out, "last")) == _budgets(Study.open(out, ids[1])) == {None, 96}
    assert _budgets(Study.open(out, ids[0])) == {None, 32}


def test_records_know_their_sweep_and_the_frame_has_it(twice: tuple[Path, list[str]]) -> None:
    out, ids = twice
    assert {r.meta["sweep"]: r.meta["batch_size"] for r in Store(out)} == dict.fromkeys(ids, 3)
    frame = Store(out).frame()
    assert dict(frame.groupby("sweep").size()) == {ids[0]: 6, ids[1]: 3}
    assert str(frame["budget"].dtype) == "Int64"
    assert sorted(frame.loc[frame["backend"] == "h2o", "budget"].unique()) == [32, 96]
    assert frame.loc[frame["backend"] == "h2o", "backend_params"].str.contains("heavy=").all()
    for record in Store(out):
        (read,) = frame.loc[frame["id"] == record.id, "keys_read"]
        assert read == record.trace().checks[-1].keys_read > 0


def test_what_was_warned_of_is_in_the_manifest(tiny_config: Make, tmp_path: Path) -> None:
    rows = [{"id": str(i), "prompt": "Bonn zyzzyva", "answer": "3"} for i in range(3)]
    file = jsonl(tmp_path / "three.jsonl", *rows)
    out = tmp_path / "out"
    config = tiny_config(datasets=file, limit=2, backends="full", max_new_tokens=4)
    go(config, out)
    notices = manifest.read(out)["notices"]
    assert any("2 of 3 problems (the first" in line for line in notices)
    assert set(notices) <= set(Study.open(out).warnings)


def _document() -> dict[str, Any]:
    (path,) = manifest.paths(SMALL)
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def _with(document: dict[str, Any], change: str) -> dict[str, Any]:
    config, plan = document["config"], document["plan"]
    if change == "weights":
        for cell in plan["cells"]:
            cell["model_digest"] = "other"
    elif change == "problems":
        plan["items"][0]["problems"].pop()
    elif change == "prompt":
        plan["items"][0]["problems"][1][1] = "other"
    elif change == "answer":
        plan["items"][0]["problems"][1][2] = "other"
    elif change == "action":
        document["detectors"][1]["on_stop"]["tokens"] += 1
    elif change == "replayed":
        document["detectors"][0]["f"] += 1
    elif change == "budgets":
        config["budgets"] = [48]
        for cell in plan["cells"]:
            if "budget" in cell["backend"]:
                cell["backend"]["budget"] = 48
    else:
        key, value = change.split("=")
        config[key] = json.loads(value)
    return document


def _sweep(folder: Path, name: str, *changes: str) -> Sweep:
    document = _document()
    for change in changes:
        document = _with(document, change)
    (folder / f"{name}.json").write_text(json.dumps(document))
    return Sweep.read(folder / f"{name}.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("weights", "other weights"),
        ("problems", "other problems in easy"),
        ("prompt", "other problems in easy"),
        ("answer", "other problems in easy"),
        ("action", "other detectors"),
        ("max_new_tokens=5", "max_new_tokens 5, not 1024"),
        ('cap="4x-full"', "cap 4x-full"),
        ("seed=1", "seed 1"),
        ("temperature=0.5", "temperature 0.5"),
        ('dtype="bfloat16"', "dtype bfloat16"),
        ("replayed", None),
        ("budgets", None),
        ("batch_size=2", None),
        ("limit=4", None),
    ],
)
def test_what_does_not_fit_is_left_out_with_its_reason(
    change: str, reason: str | None, tmp_path: Path
) -> None:
    last, other = _sweep(tmp_path, "b"), _sweep(tmp_path, "a", change)
    group = latest_compatible([last, other])
    if reason is None:
        assert (group.sweeps, group.incompatible) == ((last, other), {})
        return
    assert group.sweeps == (last,)
    assert reason in group.incompatible["a"]
    (notice,) = group.warnings(tmp_path, None)
    assert f"lil report {tmp_path} --sweep ID" in notice
    assert [entry.sweeps for entry in groups([last, other])] == [(last,), (other,)]


def test_methods_are_found_as_any_of_the_sweeps_named_them(tmp_path: Path) -> None:
    last = _sweep(tmp_path, "b", 'backends=["full"]', 'penalties=["none"]')
    config = latest_compatible([last, _sweep(tmp_path, "a", 'backends=["quest", "h2o"]')]).config
    assert config.backends == ("full", "quest", "h2o")
    assert config.penalties == ("none", "lz")
    assert config.detectors == last.config.detectors


def test_sweeps_fit_each_other_and_not_the_last_alone(tmp_path: Path) -> None:
    """Two of another data set whose problems changed: neither shares one with the last."""
    documents = {"c": _document(), "b": _document(), "a": _with(_document(), "prompt")}
    for name, document in documents.items():
        if name != "c":
            for entry in (*document["plan"]["cells"], *document["plan"]["items"]):
                entry["dataset"] = "mine.jsonl"
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    sweeps = [Sweep.read(tmp_path / f"{name}.json") for name in documents]
    group = latest_compatible(sweeps)
    assert [sweep.id for sweep in group.sweeps] == ["c", "b"]
    assert group.incompatible == {"a": "other problems in mine.jsonl"}


def test_a_sweep_is_named_by_the_beginning_of_its_id(twice: tuple[Path, list[str]]) -> None:
    out, ids = twice
    assert by_id(out, ids[0]).id == ids[0]
    for wrong in ("2", "", "x"):
        with pytest.raises(InvalidValue, match="last, or the beginning"):
            by_id(out, wrong)


def test_a_damaged_manifest_is_named_and_never_hides_behind_an_older_one(
    twice: tuple[Path, list[str]], tmp_path: Path
) -> None:
    out, ids = twice
    store = tmp_path / "store"
    shutil.copytree(out, store)
    first, last = manifest.paths(store)
    first.write_text("{")
    study = Study.open(store)
    assert [sweep.id for sweep in study.sweeps] == [ids[1]]
    assert any(str(first) in notice for notice in study.warnings)
    for text in ("{", "[]", "[" * 3000, '{"plan": {}, "config": {}}'):
        last.write_text(text)
        with pytest.raises(InvalidValue, match=last.name):
            Study.open(store)


def test_an_unfinished_sweep_is_said_until_a_newer_one_has_its_cells(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.append

    def append(self: Store, *args: Any) -> Any:
        if len(self) == 3:
            raise KeyboardInterrupt
        return real(self, *args)

    config = tiny_config(limit=2, backends="h2o", budgets="32", batch_size=2)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", append)
        with pytest.raises(KeyboardInterrupt):
            go(config, tmp_path)
    (notice,) = Study.open(tmp_path).notices
    assert "unfinished (interrupted)" in notice
    path = manifest.paths(tmp_path)[0]
    values = manifest.load(path)
    manifest.write(tmp_path, path.stem, values | {"status": "running"})
    assert "unfinished (killed)" in Study.open(tmp_path).notices[0]
    with lock(tmp_path):
        assert "unfinished (still running)" in Study.open(tmp_path).notices[0]
    go(config, tmp_path)
    study = Study.open(tmp_path)
    assert (study.notices, len(study.sweeps)) == ((), 2)


# ---------------------------------------------------------------- two writers


def _sweep_for_ever(config: Config, store: Path) -> tuple[int, int]:
    """Another process that has begun to decode and does not go on: its id, and an end of a pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:

        class Stuck(Notes):
            def step(self, tokens: int) -> None:
                os.write(write, str(tokens).encode())
                time.sleep(120)

        try:
            go(config, store, Stuck())
        finally:
            os._exit(1)
    os.close(write)
    return child, read


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_the_second_sweep_says_who_writes_and_a_killed_one_leaves_no_lock(
    tmp_path: Path, tiny_config: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(limit=1, backends="full")
    store = tmp_path / "store"
    command = ["sweep", "--preset", "demo-small", "--model", config.models[0], "--limit", "1"]
    command += ["--dataset", "easy", "--backend", "full", "--max-new-tokens", "4"]
    command += ["--threads", "1", "--no-figures", "--out", str(store)]
    child, pipe = _sweep_for_ever(config, store)
    try:
        assert os.read(pipe, 8)  # it decodes
        before = sorted(store.rglob("*"))
        assert main(command) == 2
        (error,) = [
            line for line in capfd.readouterr().err.splitlines() if line.startswith("lil: error")
        ]
        started = manifest.read(store)["started"]
        assert f"process {child} on {platform.node()}, since {started}" in error
        with pytest.raises(InvalidValue, match=f"process {child}"):
            prepare(config, store)
        with pytest.raises(InvalidValue, match=f"process {child}"):  # it came while we prepared
            sweep.run(
                prepare(config, tmp_path / "other"),
                store,
                preset="x",
                arguments=[],
                progress=sweep.Progress(),
            )
        assert sorted(store.rglob("*")) == before
        assert "unfinished (still running)" in Study.open(store).notices[0]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(pipe)
    assert "unfinished (killed)" in Study.open(store).notices[0]
    assert main(command) == 0
