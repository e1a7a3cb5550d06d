"""Inputs that are wrong in every way: one message, exit code 2, nothing left behind, no hang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fuzz import KINDS, STORE, fuzz
from fuzzing import campaign
from fuzzing.decoding import Commands
from fuzzing.harness import Findings, nothing_decoded, said, tried

HUGE = "1" + "0" * 400

#: Found by fuzzing once, each with what it was.
ONCE = {
    "a table where a value was": "sweep --set models=x --set models.a.b=1",
    "a value where a table was": "sweep --set backend_params=5 --set backend_params.quest.page=1",
    "a table of values": "sweep --set backend_params={quest=5} --set backend_params.quest.page=1",
    "a value in a table of tables": "sweep --set backend_params={quest=5}",
    "a budget beyond floats": f"sweep --budget {HUGE}",
    "such a budget to measure": f"bench h2o --budget {HUGE}",
    "a threshold beyond floats": f"replay store --t {HUGE}",
    "a folder of too long a name": f"sweep --dataset easy --out {'x' * 300}",
    "a text of too long a name": f"curve {'x' * 300}",
    "a store of too long a name": f"curve {'x' * 300}:3fa9",
    "no number to JSON": "replay store --rate 1e400 --json",
    "half a character": "report \ud800",
    "half a character of a text": "curve \ud800",
    "half a character of a number": "run --top-p \udcff",
    "a flag's value that is none": "report store --rows=--",
    "one of a flag that may come several times": "replay store --set=--",
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


def test_commands_that_decode(tmp_path: Path) -> None:
    findings = Findings()
    campaign.commands(findings, tmp_path, 5, range(40), campaign.Told(findings, None, 40))
    assert findings.faults == {}
    assert findings.done >= 12
    assert findings.refused >= 5


def test_damaged_stores(tmp_path: Path) -> None:
    findings = Findings()
    told = campaign.Told(findings, None, 20)
    campaign.damaged(findings, tmp_path, 5, range(20), told, [STORE])
    assert findings.faults == {}
    assert findings.done >= 5


def test_a_command_is_made_of_its_seed_and_number() -> None:
    flags = {"sweep": {"--seed": True, "--json": False}}
    nouns = ("run", "report", "replay", "calibrate", "curve", "chopper", "why")
    made = [Commands(seed, dict.fromkeys(nouns, flags["sweep"]) | flags) for seed in (1, 1, 2)]
    one, again, other = ([commands(n) for n in range(30, 60)] for commands in made)
    assert one == again
    assert one != other
    assert made[0].files(7) == made[1].files(7) != made[2].files(7)


def test_a_campaign_finds_faults_and_writes_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("experiments.cli.nouns.run.command", broken)
    findings, log = Findings(), tmp_path / "faults.jsonl"
    (tmp_path / "work").mkdir()
    told = campaign.Told(findings, log, 20)
    campaign.commands(findings, tmp_path / "work", 5, range(20), told)
    # One place with --json and one without: commands are called from two lines.
    assert 1 <= len(findings.faults) <= 2
    assert all(place.startswith("KeyError experiments/cli/entry.py") for place in findings.faults)
    assert json.loads(log.read_text().splitlines()[-1])["faults"] == {
        name: list(found) for name, found in findings.faults.items()
    }


@pytest.mark.parametrize(
    ("out", "err", "fault"),
    [
        ("{}\n", "", None),
        ("", "lil: error: no\n", None),
        ("{}\n{}\n", "", "--json with something else than one document"),
        ("a table\n", "", "--json with something else than one document"),
        ("{}", "Traceback (most recent call last):", "a traceback printed"),
        ("{}", "\x1b[2J", "'\\x1b' printed"),
    ],
)
def test_what_is_printed_is_judged(out: str, err: str, fault: str | None) -> None:
    assert said(["run", "--json"], out, err) == fault


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
