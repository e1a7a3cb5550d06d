"""What docs/results/actions.md says of detectors is said by rule."""

from __future__ import annotations

from typing import Any

import pytest
import stopping_readings


def found(estimate: float | None, width: float = 0.002) -> dict[str, float | None]:
    bounds = (None, None) if estimate is None else (estimate - width, estimate + width)
    return {"estimate": estimate, "low": bounds[0], "high": bounds[1]}


def row(detector: str = "cycle", action: str = "stop", **fields: Any) -> dict[str, Any]:
    shares = {"loops": found(0.92), "tails": found(0.91), "losing": []}
    moved = {"net_differing": found(-0.001), "levels": [level(3, 1)]}
    counts = {"differing": 1500, "samples": 2400, "cells": 48}
    return {"detector": detector, "action": action, **shares, **moved, **counts, **fields}


def level(lost: int, gained: int, dataset: str = "hard") -> dict[str, Any]:
    """Of 600 solved outputs that differ from full attention's."""
    return {"dataset": dataset, "solved": 600, "lost": lost, "gained": gained}


def told(*rows: dict[str, Any], cap: int = 2) -> dict[str, str]:
    cells = stopping_readings.reading("greedy", cap, rows)
    return dict(zip(stopping_readings.HEADS, cells, strict=True))


BEST = "of the safe ones, it spares most"
PAPER, DEMO = "Guardian, the paper's, then stop", "Guardian, the demo's, then stop"


@pytest.mark.parametrize(
    ("fields", "safe"),
    [
        ({}, True),
        ({"net_differing": found(-0.0079)}, True),
        ({"net_differing": found(-0.0081)}, False),
        ({"net_differing": found(None)}, False),
        ({"net_differing": found(0.01), "losing": ["h2o 256 on hard"]}, False),
        # Where nothing moves, resampled problems rule out everything: traces must be many, too,
        # and those that are full attention's do not count.
        ({"net_differing": found(0.0, 0.0), "levels": [level(0, 0)]}, True),
        ({"net_differing": found(0.0, 0.0), "levels": [level(0, 0)], "differing": 350}, False),
        ({"net_differing": found(-0.002, 0.001), "levels": [level(12, 3), level(5, 2)]}, False),
    ],
)
def test_safe_is_a_small_loss_ruled_out_everywhere(fields: dict[str, Any], safe: bool) -> None:
    assert stopping_readings.is_safe(row(**fields)) is safe
    cells = told(row(**fields))
    assert cells["safe"] == f"{int(safe)} of 1"
    assert cells[BEST].startswith("`cycle`, then stop: L 92%" if safe else "none")


def test_the_best_is_safe_though_another_spares_more() -> None:
    eager = row(
        "guardian(f=250, rate=0.08)",
        loops=found(0.99),
        tails=found(0.99),
        losing=["quest 256 on hard"],
    )
    little = row("stall", loops=found(0.5), tails=found(0.5))
    cells = told(eager, row(), little)
    assert cells["safe"] == "2 of 3"
    assert cells[BEST].startswith("`cycle`")
    assert cells[PAPER].startswith("L 99% [99, 99], T 99% [99, 99]; 3 lost of 600, 1 gained")
    assert cells[PAPER].endswith("; not safe")
    assert cells[DEMO] == "-"
    assert told(row("guardian(f=100, rate=0.08)"))[DEMO].endswith("1 gained; safe")
    assert told(row("guardian(f=100, rate=0.01)"))[DEMO] == "-"
    assert told(row("guardian(f=100, rate=0.08)", "answer"))[DEMO] == "-"


def test_what_a_configuration_must_lose_to_be_seen() -> None:
    # One of 48: 48 * 2 / 2**11 = 0.047, and twice that with one problem fewer.
    assert stopping_readings.seen_from(48) == 11
    assert stopping_readings.seen_from(1) == 6
    assert told(row())["a loss is seen from"] == "11 problems"


@pytest.mark.parametrize(
    ("cap", "shares", "said"),
    [
        (2, (0.903, 0.903), "90% of L: reached, 90% of T: reached"),
        (2, (0.903, 0.897), "90% of L: reached, 90% of T: missed"),
        (2, (0.897, 0.901), "90% of L: missed, 90% of T: neither reached nor missed for certain"),
        (4, (0.94, 0.96), "95% of L: missed, 95% of T: reached"),
        (8, (0.1, 0.1), "-"),
    ],
)
def test_an_aim_is_reached_or_missed_where_the_interval_says_so(
    cap: int, shares: tuple[float, float], said: str
) -> None:
    assert told(row(loops=found(shares[0]), tails=found(shares[1])), cap=cap)["aims"] == said


def test_without_waste_nothing_is_best() -> None:
    cells = told(row(loops=found(None), tails=found(None)))
    assert (cells[BEST], cells["aims"]) == ("none", "-")


def pair(budget: int = 320, **fields: Any) -> dict[str, Any]:
    shares = {"change": found(0.0, 0.05), "p": 0.9, "against_full": against(20)}
    longer = {"longer": found(1.0, 0.05), "both": 60}
    return {"method": "h2o", "budget": budget, "longer_kept": longer, **shares, **fields}


def against(lost: int, **fields: Any) -> dict[str, Any]:
    """Two sets of answers to 96 problems of which the first loses so many."""
    counts = {"lost": lost, "gained": 0, "problems": 96}
    return {"change": found(-lost / 96, 0.05), "p": 0.9, **counts, **fields}


def kept(*rows: dict[str, Any], beside: dict[str, Any] | None = None) -> str:
    random = {"budget": 320, "strongest": "rkv", **(beside or against(20))}
    return "\n".join(stopping_readings.kept_readings({"rows": rows, "random": [random]}))


def test_keeping_the_prompt_helps_where_the_corrected_test_says_so() -> None:
    helps, hurts = {"change": found(0.3), "p": 0.01}, {"change": found(-0.2), "p": 0.001}
    text = kept(pair(), pair(384, **helps), pair(512, **hurts))
    assert "solves more in 1 of 3 (h2o 384), and less in 1 of 3 (h2o 512)" in text
    # Alone 0.02 is enough, beside two others it is not.
    some = {"change": found(0.3), "p": 0.02}
    assert "solves more in 1 of 1 (h2o 320)" in kept(pair(**some))
    assert "solves more in 0 of 3," in kept(pair(**some), pair(384), pair(512))


def test_longer_at_full_accuracy_needs_both_bounds() -> None:
    longer = {"longer": found(1.2, 0.1), "both": 60}
    text = kept(pair(longer_kept=longer), pair(384, longer_kept=longer, against_full=against(0)))
    assert "in 2 of 2 (h2o 320, h2o 384): 95% intervals above 1" in text
    assert "ruled out, too, in 1 of 2 (h2o 384)" in text
    assert "too, in 0 of 1." in kept(pair(against_full=against(0)))
    few = kept(pair(longer_kept=longer | {"both": 5}))
    assert "both solve, 6 problems or more, in 0 of 1:" in few


def test_one_lost_of_96_rules_out_no_loss_of_five_points() -> None:
    longer = {"longer": found(1.2, 0.1), "both": 60}
    text = kept(pair(longer_kept=longer, against_full=against(1)))
    assert "ruled out, too, in 0 of 1." in text


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (against(20, p=0.001), "solves less than `rkv`"),
        (against(0), "is as good, to within 5 points, as `rkv`"),
        (against(10, p=0.2), "is not distinguished from `rkv`"),
    ],
)
def test_random_beside_the_strongest(beside: dict[str, Any], said: str) -> None:
    assert said in kept(pair(), beside=beside)
