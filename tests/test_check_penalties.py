"""The script that prints how far penalties are from their oracles."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from lil import penalties

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "checks" / "check_penalties.py"


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *args])
    with monkeypatch.context() as patched:
        patched.setattr(sys, "path", list(sys.path))
        return runpy.run_path(str(SCRIPT))["main"]()


def test_prints_a_line_for_each_and_fails_where_scores_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--streams", "9") == 0
    said = capsys.readouterr().out
    assert all(f" {kind} " in said for kind in ("lz rate", *penalties.names()[:2]))
    right = penalties.get

    def slightly_off(name: str, **params: object) -> object:
        if name == "presence":
            params["strength"] += 2e-4
        return right(name, **params)

    monkeypatch.setattr(penalties, "get", slightly_off)
    assert run(monkeypatch, "--streams", "9", "--kind", "frequency") == 0
    assert run(monkeypatch, "--streams", "9", "--kind", "presence") == 1
