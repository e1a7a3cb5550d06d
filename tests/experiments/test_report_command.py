"""`lil report`: what several stores pool as one JSON document, and the notices of sweeps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reports import SMALL

from experiments.cli import main, reporting

FLAGS = ["--no-figures", "--no-page"]


def test_several_stores_keep_what_each_pools(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [shutil.copytree(SMALL, tmp_path / name) for name in ("a", "b")]
    (sweep,) = (stores[0] / "sweeps").glob("*.json")
    sweep.write_text(json.dumps(json.loads(sweep.read_text()) | {"notices": ["8 prompts differ"]}))
    assert main(["report", str(stores[0]), *FLAGS]) == 0
    assert "lil: 8 prompts differ" in capfd.readouterr().err

    def pooled(*arguments: Any) -> Any:
        report = report_of(*arguments)
        return replace(report, pooled=[replace(report.rows[0], dataset="all")])

    report_of = reporting.report_of
    monkeypatch.setattr(reporting, "report_of", pooled)
    assert main(["report", *map(str, stores), *FLAGS, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["pooled"]
    assert [(row["store"], row["dataset"]) for row in rows] == [("a", "all"), ("b", "all")]
