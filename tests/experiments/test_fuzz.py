"""Inputs that are wrong in every way: one message, exit code 2, nothing left behind, no hang."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import KINDS, fuzz
from fuzzing.harness import Findings, nothing_decoded, tried

HUGE = "1" + "0" * 400

#: Found by fuzzing once, each with what it was.
ONCE = {
    "a table where a value was": "sweep --set models=x --set models.a.b=1",
    "a value where a table was": "sweep --set backend_params=5 --set backend_params.quest.page=1",
    "a table of values": "sweep --set backend_params={quest=5} --set backend_params.quest.page=1",
    "a value in a table of tables": "sweep --set backend_params={quest=5}",
    "a budget beyond floats": f"sweep --budgets {HUGE}",
    "such a budget to measure": f"bench attention --budget {HUGE}",
    "a text of too long a name": f"curve {'x' * 300}",
    "a store of too long a name": f"curve {'x' * 300}:3fa9",
    "no number to JSON": "replay store --rate 1e400 --json",
    "half a character": "report \ud800",
    "half a character of a text": "curve \ud800",
    "a flag's value that is none": "report store --rows=--",
}


@pytest.mark.parametrize("command", ONCE.values(), ids=ONCE.keys())
def test_what_was_found_once(command: str, tmp_path: Path) -> None:
    findings = Findings()
    with nothing_decoded():
        tried(findings, tmp_path, command.split(), command)
    assert (findings.refused, findings.faults) == (1, {})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_some_hundred_inputs(kind: str) -> None:
    found = fuzz(80, seed=5, kinds=[kind])
    assert found.inputs >= 70
    assert found.refused > 10
    assert found.faults == {}


def test_a_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.cli.nouns import curve

    def broken(*_: object) -> None:
        (tmp_path / "left").write_text("")
        raise KeyError("ours")

    findings = Findings()
    monkeypatch.setattr(curve._Text, "read", broken)
    (tmp_path / "a").write_text("text")
    tried(findings, tmp_path, ["curve", "a"], "lil curve a")
    assert list(findings.faults.values()) == [(1, "lil curve a")]
    monkeypatch.setattr(curve._Text, "read", lambda *_: broken_politely(tmp_path))
    tried(findings, tmp_path, ["curve", "a"], "lil curve a")
    assert "left behind: polite" in findings.faults


def broken_politely(folder: Path) -> None:
    from attention.errors import InvalidValue

    (folder / "polite").write_text("")
    raise InvalidValue("file", "a", "another")
