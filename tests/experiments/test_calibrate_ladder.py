"""`lil calibrate` of a detector whose `ladder` has a wrong form."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.cli import main
from lil.detectors.budget import Budget

SMALL = Path(__file__).parent / "data" / "small"


def test_a_wrong_ladder_is_refused_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store = str(shutil.copytree(SMALL, tmp_path / "store", ignore=shutil.ignore_patterns("cache")))
    monkeypatch.setattr(Budget, "ladder", (("tokens", (9, 5)),))
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", store, "--detector", "budget"]) == 2
    assert "ladder = (('tokens', (9, 5)),): expected a name" in capfd.readouterr().err
    assert main(["calibrate", store, "--detector", "budget", "--set", "budget.tokens=9,5"]) in (
        0,
        2,
    )
    said = capfd.readouterr()
    assert "ladder" not in said.err
    assert "tokens=9" in said.out
