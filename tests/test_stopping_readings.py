"""What docs/actions.md says of detectors is said by rule."""

from __future__ import annotations

from typing import Any

import pytest
import stopping_readings


def found(estimate: float | None, width: float = 0.002) -> dict[str, float | None]:
    bounds = (None, None) if estimate is None else (estimate - width, estimate + width)
    return {"estimate": estimate, "low": bounds[0], "high": bounds[1]}


def row(detector: str = "cycle", action: str = "stop", **fields: Any) -> dict[str, Any]:
    shares = {"loops": found(0.92), "tails": found(0.91), "net": found(-0.001), "losing": []}
    counts = {"lost": 3, "gained": 1, "samples": 2400}
    return {"detector": detector, "action": action, **shares, **counts, **fields}


def told(*rows: dict[str, Any], cap: int = 2) -> str:
    return "\n".join(stopping_readings.readings("greedy", cap, rows))


@pytest.mark.parametrize(
    ("fields", "safe"),
    [
        ({}, True),
        ({"net": found(-0.0029)}, True),
        ({"net": found(-0.0031)}, False),
        ({"net": found(None)}, False),
        ({"net": found(0.01), "losing": ["h2o 256 on hard"]}, False),
    ],
)
def test_safe_is_a_small_loss_ruled_out_everywhere(fields: dict[str, Any], safe: bool) -> None:
    assert stopping_readings.is_safe(row(**fields)) is safe
    assert (" 1 of 1 detectors and actions are safe" in told(row(**fields))) is safe
    assert ("Of these, `cycle`, then stop" in told(row(**fields))) is safe
    assert ("None is called best" in told(row(**fields))) is not safe


def test_the_best_is_safe_though_another_spares_more() -> None:
    eager = row("guardian", loops=found(0.99), tails=found(0.99), losing=["quest 256 on hard"])
    little = row("stall", loops=found(0.5), tails=found(0.5))
    text = told(eager, row(), little)
    assert "2 of 3 detectors" in text
    assert "Of these, `cycle`" in text
    assert "Guardian, the paper's: `guardian`, then stop (L 99%" in text
    assert "and is not safe" in text
    assert "not safe" not in told(row("guardian"))


@pytest.mark.parametrize(
    ("cap", "shares", "said"),
    [
        (2, (0.9, 0.9), "90% reached"),
        (2, (0.9, 0.89), "90% of T is missed"),
        (2, (0.89, 0.89), "90% of L and of T is missed"),
        (4, (0.94, 0.96), "95% of L is missed"),
        (4, (0.95, 0.95), "95% reached"),
        (8, (0.1, 0.1), "spares most, picked on these traces."),
    ],
)
def test_an_aim_is_reached_by_both_or_missed(
    cap: int, shares: tuple[float, float], said: str
) -> None:
    text = told(row(loops=found(shares[0]), tails=found(shares[1])), cap=cap)
    assert said in text
    assert ("reached" in text) == ("reached" in said)


def test_without_waste_nothing_is_best() -> None:
    assert "None is called best" in told(row(loops=found(None), tails=found(None)))


def pair(budget: int = 320, **fields: Any) -> dict[str, Any]:
    shares = {"change": found(0.0, 0.05), "against_full": {"change": found(-0.2, 0.05)}}
    longer = {"longer": found(1.0, 0.05)}
    return {"method": "h2o", "budget": budget, "longer_kept": longer, **shares, **fields}


def kept(*rows: dict[str, Any], change: dict[str, Any] | None = None) -> str:
    against = {"budget": 320, "strongest": "rkv", "change": change or found(0.0, 0.2)}
    return "\n".join(stopping_readings.kept_readings({"rows": rows, "random": [against]}))


def test_keeping_the_prompt_helps_where_the_interval_says_so() -> None:
    text = kept(pair(), pair(384, change=found(0.3, 0.1)), pair(512, change=found(-0.2, 0.1)))
    assert "solves more in 1 of 3 (h2o 384), and less in 1 of 3 (h2o 512)" in text


def test_longer_at_full_accuracy_needs_both_bounds() -> None:
    longer, full = {"longer": found(1.2, 0.1)}, {"change": found(-0.01, 0.03)}
    text = kept(pair(longer_kept=longer), pair(384, longer_kept=longer, against_full=full))
    assert "longer where both solve in 2 of 2 (h2o 320, h2o 384)" in text
    assert "ruled out, too, in 1 of 2 (h2o 384)" in text
    assert "too, in 0 of 1." in kept(pair(against_full=full))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (found(-0.2, 0.1), "solves less than `rkv`"),
        (found(-0.01, 0.03), "is as good, to within 5 points, as `rkv`"),
        (found(-0.1, 0.2), "is not told apart from `rkv`"),
    ],
)
def test_random_beside_the_strongest(change: dict[str, Any], said: str) -> None:
    assert said in kept(pair(), change=change)
