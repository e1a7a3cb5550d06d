"""A claim of one report holds in another where that makes it, too."""

from __future__ import annotations

from typing import Any

import pytest
import replicated_claims


def report(value: float, *claims: str, **fields: Any) -> dict[str, Any]:
    """Of one configuration, whose lengths alone differ."""
    cap = {
        "length_ratio": value,
        "length_ratio_solved": None,
        "keys_read_per_solved_ratio": None,
        "accuracy_change": 0.0,
        "claims": list(claims),
    }
    name = {"dataset": "hard", "backend": "h2o", "budget": 128, "role": "method"}
    plain = {"detector": "none", "penalty": "none"}
    return {"rows": [{**name, **plain, **cap, "caps": [], **fields}], "pooled": []}


@pytest.mark.parametrize(
    ("second", "fate"),
    [
        (report(1.1, "longer", "loses"), "holds"),
        (report(1.1), "same side"),
        (report(0.9), "other side"),
        (report(0.9, "shorter"), "reversed"),
        (report(1.1, "longer", budget=64), "not measured"),
        (report(1.1, "longer", detector="cycle"), "not measured"),
    ],
)
def test_what_becomes_of_a_claim(second: dict[str, Any], fate: str) -> None:
    ((name, word, found),) = replicated_claims.compared(report(1.5, "longer"), second)
    assert name == ("hard", "h2o", 128, "method", "cap")
    assert (word, found) == ("longer", fate)


def test_caps_are_held_against_their_like() -> None:
    smaller = {**report(1.2, "longer")["rows"][0], "factor": 2}
    first = report(1.5, caps=[smaller])
    ((name, _, found),) = replicated_claims.compared(first, report(1.5, "longer"))
    assert (name[-1], found) == (2, "not measured")
