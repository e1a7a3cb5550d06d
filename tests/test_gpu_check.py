"""`scripts/gpu_check` where no GPU is: what is not run is said, what fails is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_checking import running, stages
from gpu_checking.stages import NO_GPU, Stage

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_every_stage_is_listed_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu_check"), "--only", "engines", "--out", str(out)],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    found = json.loads(out.read_text())
    by_name = {stage["name"]: stage for stage in found["stages"]}
    assert list(by_name) == [stage.name for stage in stages.stages()]
    assert found["failed"] == []
    assert by_name["environment"]["found"]["packages"]["torch"] == torch.__version__
    assert by_name["engines"]["found"]["cpu"]["float32"]["torch"] is None
    for stage in stages.stages():
        if stage.gpu:
            assert by_name[stage.name]["status"] == "not run"
            assert f"{stage.name}  " in done.stderr


def test_gpu_stages_are_not_run_without_one() -> None:
    given = [stage for stage in stages.stages() if stage.gpu]
    assert len(given) == 14
    found = running.run_all(given, 1, [], lambda _: None)
    assert [(o.status, o.reason) for o in found] == [("not run", NO_GPU)] * 14


def test_a_failure_stops_nothing_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LAST_LINES", 3)
    endless = "print('begun', flush=True); import time; time.sleep(99)"
    told = "print('one\\ntwo\\nFAILED tests/x.py::test_y - no\\nlast'); raise SystemExit(3)"
    said = "import os; print(os.environ['SAID'])"
    given = [
        Stage("broken", ("-c", told), 30, (), gpu=False),
        Stage("endless", ("-c", endless), 4, (), gpu=False),
        Stage("no JSON", ("-c", "print('x')"), 30, (), gpu=False, json=True),
        Stage("lacking", ("-c", ""), 30, ("no_such_package",), gpu=False),
        Stage("good", ("-c", said), 30, (), gpu=False, environment={"SAID": "yes"}),
        Stage("numbers", ("-c", "print('{\"a\": 1}')"), 30, (), gpu=False, json=True),
        Stage("in part", ("-c", "print('[2]'); raise SystemExit(1)"), 30, (), gpu=False, json=True),
    ]  # fmt: skip
    outcomes = running.run_all(given, 5, [], lambda _: None)
    broken, stopped, no_json, lacking, good, numbers, in_part = outcomes
    assert (broken.status, broken.reason) == ("failed", "exit code 3")
    assert broken.first_failure == "FAILED tests/x.py::test_y - no"
    assert broken.last_lines == ["two", "FAILED tests/x.py::test_y - no", "last"]
    assert (stopped.status, stopped.reason) == ("failed", "stopped after 4 s")
    assert stopped.last_lines == ["begun"]
    assert no_json.status == "failed"
    assert (lacking.status, lacking.reason) == ("not run", "no package no_such_package")
    assert (good.status, good.output) == ("passed", ["yes"])
    assert numbers.found == {"a": 1}
    assert (in_part.status, in_part.reason, in_part.found) == ("failed", "exit code 1", [2])
    found = running.document(outcomes)
    assert found["failed"] == ["broken", "endless", "no JSON", "in part"]
    assert json.loads(json.dumps(found)) == found
    assert "    FAILED tests/x.py::test_y - no" in running.table(outcomes).splitlines()


def test_time_is_for_all_stages() -> None:
    given = [Stage(name, ("-c", ""), 30, (), gpu=False) for name in ("first", "second")]
    first, second = running.run_all(given, 0.01, [], lambda _: None)
    assert (first.status, second.status) == ("not run", "not run")
    assert second.reason == "no time is left of 0.01 minutes"


def test_a_package_inside_one_that_is_not_here_is_lacking() -> None:
    stage = Stage("inside", ("-c", ""), 30, ("json.decoder", "no_such.package"), gpu=False)
    assert stage.obstacle({}) == "no package no_such.package"


def test_an_engine_that_refuses_is_not_asked() -> None:
    stage = next(s for s in stages.stages() if s.name == "oracle flash")
    found = {"environment": {"gpus": [{}]}}
    assert stage.obstacle(found) == "the stage `engines` did not say whether it can work"
    found["engines"] = {"cuda": {"bfloat16": {"flash": "it installed"}}}
    assert stage.obstacle(found) == "expected it installed"
    found["engines"] = {"cuda": {"bfloat16": {"flash": None}}}
    assert stage.obstacle(found) is None


def test_commands_name_what_there_is() -> None:
    arguments = [argument for stage in stages.stages() for argument in stage.arguments]
    named = [one for one in arguments if one.startswith(("scripts/", "tests/"))]
    assert len(named) > 5
    assert all((ROOT / one).exists() for one in named)
