"""docs/results/null_worlds.md is what was measured, its aims said by rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import null_page
import pytest

ROOT = Path(__file__).parents[1]


def found(any_claim: float = 0.04, ratio: float = 1.004, covered: float = 0.94) -> null_page.Found:
    of: dict[str, Any] = {"pool": "reasoner-0.6", "problems": 300}
    null = {"samples": 4, "mean_tokens": 540.0, "scatter": 0.1, "solved": 0.9, "same": 0.2}
    null |= {"worlds": 200, "any_claim": any_claim, "claims": {"longer": 3}}
    intervals: dict[str, Any] = {name: [0.95, 800] for name in null_page.INTERVALS}
    intervals |= {"mean_tokens": [covered, 800], "length_ratio": None}
    return {
        "null": [of | null | {"mean_length_ratio": ratio}],
        "coverage": [of | intervals],
        "power": [of | {"length_ratio": 1.07, "found": 0.5, "false_beside": 0.02}],
    }


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "claim is at most 5% (4.0%), and mean length ratios are within 0.01 of 1"),
        ({"any_claim": 0.06}, "claim is more than 5% (6.0%)"),
        ({"ratio": 0.985}, "ratios are not within 0.01 of 1 (furthest: 0.9850)"),
        ({}, "Of 5 intervals at a nominal 95%, 0 cover less than 0.93."),
        ({"covered": 0.92}, "1 cover less than 0.93: mean tokens of the shipped reasoner, temp"),
    ],
)
def test_aims_are_said_by_rule(fields: dict[str, float], said: str) -> None:
    assert said in null_page.render(found(**fields))


def test_what_was_not_measured_again_stays() -> None:
    other = {part: [row | {"pool": "dither"} for row in rows] for part, rows in found().items()}
    both = null_page.merged(found(), [other])
    assert [row["pool"] for row in both["power"]] == ["reasoner-0.6", "dither"]
    again = null_page.merged(both, [found(any_claim=0.01)])
    assert [row["any_claim"] for row in again["null"]] == [0.01, 0.04]


def test_the_page_is_what_was_measured() -> None:
    assert set(json.loads(null_page.KEPT.read_text())) == {"null", "coverage", "power"}
    command = [sys.executable, str(ROOT / "scripts" / "pages" / "null_page.py"), "--check"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
