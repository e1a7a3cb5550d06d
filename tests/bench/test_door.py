"""The one door to the benchmarks: what it runs, what it leaves alone, what it says of a failure."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import performance_page
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def door() -> Any:
    spec = importlib.util.spec_from_file_location("door", ROOT / "scripts/bench/__main__.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_every_program_is_there(door: Any, tmp_path: Path) -> None:
    for program, _ in door.PROGRAMS.values():
        assert (ROOT / "scripts" / "bench" / program).is_file()
    for part, commands in door._lines(tmp_path).items():
        assert commands, part
        for line in commands:
            assert line[1] == "-m" or Path(line[1]).is_file()


def test_what_is_measured_is_what_the_page_is_made_of(door: Any, tmp_path: Path) -> None:
    assert {*door._lines(tmp_path)} == {*performance_page.NAMES}


def test_all_goes_on_where_it_was_stopped(
    door: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text("{}")
    say, fail = "import sys; print(sys.argv[1])", "raise SystemExit(3)"
    lines = {
        "a": [[sys.executable, "-c", fail]],
        "b": [[sys.executable, "-c", say, "0"], [sys.executable, "-c", say, "[1]"]],
        "c": [[sys.executable, "-c", fail], [sys.executable, "-c", say, "2"]],
        "d": [[sys.executable, "-c", say, "a warning {}"]],
    }
    taken: list[list[str]] = []
    run = door.subprocess.run

    def watched(command: list[str], **rest: Any) -> Any:
        if "--take" in command:
            return taken.append(command[command.index("--take") + 1 :])
        return run(command, **rest)

    monkeypatch.setattr(door.subprocess, "run", watched)
    assert door._all(tmp_path, lines) == 1
    assert json.loads((tmp_path / "b.json").read_text()) == [1]
    assert not (tmp_path / "c.json").exists()
    assert not (tmp_path / "d.json").exists()
    assert [Path(file).stem for file in taken[0]] == ["a", "b"]
    said = capfd.readouterr().err
    assert "failed: c: " in said
    assert "failed: d: it printed no document" in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("all", "say --into FOLDER"),
        ("all --into {} --parts stpe", "--parts stpe: expected some of step"),
        ("nothing", "invalid choice: 'nothing'"),
    ],
)
def test_what_cannot_be_asked_is_one_message(
    door: Any, line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        door.main(line.format(tmp_path).split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
