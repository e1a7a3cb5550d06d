"""`lil calibrate`: what it counts, what it refuses, what it writes and who takes it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from sweeping import json_of

import lil
from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid.detectors import build_detectors
from experiments.grid.presets import load
from experiments.report import figures
from experiments.store.study import Study

CapFd = pytest.CaptureFixture[str]
SETTINGS = "--set budget.tokens=110,60,40,30,20,10,5"


@pytest.fixture(scope="module")
def store(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 problems under full attention and one sparse configuration."""
    out = tmp_path_factory.mktemp("calibrate") / "store"
    command = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"]
    command += ["--limit", "30", "--backend", "h2o", "--budget", "96", "--threads", "1"]
    command += ["--max-new-tokens", "120", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda *_: [])
        assert main(command) == 0
    return out


def test_it_chooses_on_one_half_and_reports_the_other(
    store: Path, capfd: CapFd, tmp_path: Path
) -> None:
    file = tmp_path / "budget.json"
    command = ["calibrate", str(store), "--detector", "budget", *SETTINGS.split()]
    result = json_of(capfd, *command, "--rate", "0.6", "--out", str(file))
    # The oracle: lengths of the traces that ended, straight from the store.
    study = Study.open(store)
    ended: dict[str, list[int]] = defaultdict(list)
    for run in study.runs():
        record = study.usable(run)
        trace = record.trace() if record else None
        if trace is not None and trace.finish == "eos" and run.configuration.is_full:
            ended[run.item_id].append(trace.tokens)
    clean = sum(map(len, ended.values()))
    halves = result["chosen_on"], result["other_half"]
    assert sum(half["traces"] for half in halves) == clean
    assert abs(halves[0]["problems"] - halves[1]["problems"]) <= 1
    for at, setting in enumerate(result["settings"]):
        tokens = (110, 60, 40, 30, 20, 10, 5)[at]
        stopped = sum(length > tokens for lengths in ended.values() for length in lengths)
        both = setting["first_half"], setting["other_half"]
        assert sum(half["stopped"] for half in both) == stopped
    # The last that holds, none before it failing.
    below = [setting["first_half"]["high"] < 0.6 for setting in result["settings"]]
    last = below.index(False) - 1 if False in below else len(below) - 1
    assert result["chosen"] == result["settings"][last]["setting"]
    assert result["detector"] == {
        "name": "budget",
        "tokens": (110, 60, 40, 30, 20, 10, 5)[last],
        "region": None,
    }
    assert json.loads(file.read_text())["detector"] == result["detector"]


def test_who_takes_the_file(store: Path, capfd: CapFd, tmp_path: Path) -> None:
    file = str(tmp_path / "mine.json")
    command = ["calibrate", str(store), "--detector", "budget", *SETTINGS.split()]
    result = json_of(capfd, *command, "--rate", "0.6", "--out", file)
    tokens = result["detector"]["tokens"]
    assert lil.detectors.load(file) == lil.Budget(tokens)
    rows = json_of(capfd, "replay", str(store), "--detector", file)["rows"]
    again = json_of(capfd, "replay", str(store), "--set", f"budget.tokens={tokens}")["rows"]
    assert rows == again
    config = load("demo", {"detectors": f"guardian,{file}:answer"})
    assert config.detectors == ("guardian", f"budget(tokens = {tokens}):answer")
    assert build_detectors(config)[1] == lil.Budget(
        tokens, on_stop={"name": "answer", **config.action_params.get("answer", {})}
    )
    both = load("demo", {"detectors": f"budget,{file}"})
    assert build_detectors(both) == [lil.Budget(), lil.Budget(tokens)]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--rate 0.005", ["rate = 0.005", "598 problems", "proves no rate below"]),
        ("--rate 0", ["rate", "above 0 and below 1"]),
        ("--rate 1", ["rate", "above 0 and below 1"]),
        ("--rate 0.4 --set budget.tokens=1,2", ["most cautious", "proves no rate below"]),
        ("--rate 0.4 --set cycle.repeats=2,3", ["--set", "a parameter of budget"]),
        ("--rate 0.4 --set budget.tokens=9,9", ["settings that differ"]),
        ("--model other", ["model = 'other'"]),
    ],
)
def test_refusals(store: Path, capfd: CapFd, tmp_path: Path, flags: str, words: list[str]) -> None:
    file = tmp_path / "none.json"
    command = ["calibrate", str(store), "--detector", "budget", "--out", str(file), *flags.split()]
    assert main(command) == 2
    err = capfd.readouterr().err.splitlines()[-1]
    assert all(word in err for word in words)
    assert not file.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"format": "lil-calibrated-1", "detector": 3}'])
def test_files_that_are_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(InvalidValue, match="lil calibrate"):
        lil.detectors.load(path)
    path.write_text(content)
    with pytest.raises(InvalidValue):
        lil.detectors.load(path)
    with pytest.raises(InvalidValue):
        load("demo", {"detectors": str(path)})
