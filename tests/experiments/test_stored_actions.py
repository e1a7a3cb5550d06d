"""What a store with actions replays when nothing is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiments.cli import main

SMALL = Path(__file__).parent / "data" / "small"


def test_detectors_that_differ_in_what_follows_are_replayed_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The store has Guardian with four actions, of which only a stop can be replayed."""
    store = shutil.copytree(SMALL, tmp_path / "small")
    assert main(["replay", str(store), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [one["name"] for one in document["manifest"]["detectors"]] == [
        "guardian",
        "cycle",
        "chopper",
    ]
    assert {row["action"] for row in document["rows"]} == {"none", "stop"}
