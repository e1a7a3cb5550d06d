"""A detector of somebody else by import path, over a stored sweep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiments.cli import main

SMALL = Path(__file__).parent / "data" / "small"
MINE = '''
from dataclasses import dataclass
from typing import ClassVar

from lil import Detector, Verdict, Watcher


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
'''


def test_a_detector_by_path_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few_of_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(SMALL, tmp_path / "out")
    for flags in (["--set", "few_of_mine:Few.tokens=3,4"], ["--detector", "few_of_mine:Few"]):
        assert main(["replay", "out", *flags, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        means = {row["mean_tokens"] for row in rows if row["detector"] != "none"}
        assert means == ({3, 4} if "--set" in flags else {5})
