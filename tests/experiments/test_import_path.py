"""Methods of somebody else by import path: a sweep decodes, reports and replays them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.report import figures

PAGE = Path(__file__).parents[2] / "docs" / "write_a_method.md"

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

from lil import Detector, Penalty, Verdict, Watcher


@dataclass(frozen=True)
class Few(Detector):
    """Five tokens will do."""

    name: ClassVar[str] = "few"
    tokens: int = 5

    def watch(self, prompt=b""):
        return Count(self)


class Count(Watcher):
    def push(self, piece):
        if self.tokens < self.detector.tokens:
            return None
        return Verdict("few", self.tokens, {"step": self.tokens})


@dataclass(frozen=True, kw_only=True)
class Forbid(Penalty):
    """One token is worth less."""

    name: ClassVar[str] = "forbid"
    token: int
    strength: float = 100.0

    def penalise(self, history, lengths, scores):
        scores = scores.clone()
        scores[:, self.token] -= self.strength
        return scores
'''


@pytest.fixture
def moba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tutorial's `moba.py` and `mine.py`, where the command is run."""
    (code,) = re.findall(r"```python\n(# moba\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "moba.py").write_text(code)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(figures, "draw", lambda *_: [])
    return tmp_path


def test_methods_by_path_are_swept_reported_and_replayed(
    moba: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def document(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    out = str(moba / "out")
    command = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--limit", "2"]
    command += ["--backend", "moba:MoBA", "--budget", "32", "--threads", "1", "--out", out]
    command += ["--set", "backend_params.moba:MoBA.page=8", "--max-new-tokens", "30"]
    command += ["--set", "detector_params.guardian.f=10", "--detector", "guardian:densify,mine:Few"]
    command += ["--set", "detector_params.guardian.rate=2.0", "--penalty", "mine:Forbid"]
    command += ["--set", "penalty_params.mine:Forbid.token=7"]
    swept = document(*command)
    assert [row["backend"] for row in swept["rows"]] == (["full"] * 3 + ["moba"] * 3) * 2
    assert swept["manifest"]["counts"]["acted"] > 0
    assert [row["action"] for row in swept["rows"]] == ["none", "stop", "densify"] * 4
    few = [row for row in swept["rows"] if row["detector"] == "few"]
    assert [row["mean_tokens"] for row in few] == [5] * 4
    assert swept["rows"][3]["backend_params"]["page"] == 8
    assert [row["penalty"] for row in swept["rows"]] == ["none"] * 6 + ["forbid"] * 6
    assert document("report", out, "--detector", "mine:Few")["rows"] == swept["rows"]
    alone = document("report", out)
    assert alone["rows"] == [row for row in swept["rows"] if row["detector"] != "few"]
    assert "--detector mine:Few loads it" in alone["manifest"]["notices"][0]
    replayed = document("replay", out, "--set", "mine:Few.tokens=3,4")
    means = [row["mean_tokens"] for row in replayed["rows"] if row["detector"] != "none"]
    assert means == [3, 4] * 4
