"""The oracles decode a stored sweep's texts again, and a text of other code is found out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import check_policies
import pytest

SMALL = Path(__file__).parent / "data" / "small"


@pytest.mark.slow
def test_stored_texts_are_the_oracles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Path(shutil.copytree(SMALL, tmp_path / "small"))
    asked = [str(store), "--problems", "1", "--workers", "2"]
    assert check_policies.main(asked) == 0
    printed = capsys.readouterr().out
    assert printed.count(": 1 texts equal, 0 part at a tie, 0 part;") == 3
    assert "3 of 3 texts" in printed
    file = store / "policies.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one["method"] for one in lines} == {"full", "h2o 64", "quest 64"}
    # What is done is not done again, and a text that parts is said.
    lines[0] |= {"parts": 7, "gap": 0.5}
    lines[1] |= {"parts": 3, "gap": 1e-6}
    file.write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"id": "to')
    assert check_policies.main([*asked, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told[lines[0]["method"]]["parts"] == told[lines[1]["method"]]["tie"] == 1
    assert told[lines[0]["method"]]["tokens"] == 7
    assert told[lines[2]["method"]]["equal"] == 1


def test_another_token_parts(tmp_path: Path) -> None:
    """Not the oracle's own text: its second token is another."""
    from experiments.grid import models
    from experiments.store.study import Study

    study = Study.open(Path(shutil.copytree(SMALL, tmp_path / "small")))
    run = next(one for one in study.runs() if one.cell.backend["name"] == "quest")
    trace = study.served(run).trace()  # type: ignore[union-attr]
    loaded = models.load(models.find("reasoner"), "float64", "cpu")
    stored = [trace.new_ids[0], trace.new_ids[1] + 1]
    found = check_policies.decoded_again(loaded.model, run, trace.prompt_ids, stored)
    assert found["parts"] == 1
    assert found["gap"] > check_policies.TIE


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    assert check_policies.main([str(tmp_path)]) == 2
