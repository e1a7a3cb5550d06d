"""What docs/results/actions.md says of actions, penalties and the chopper is said by rule."""

from __future__ import annotations

from typing import Any

import action_readings
import pytest


def found(low: float | None, high: float | None) -> dict[str, float | None]:
    return {"low": low, "high": high}


NOTHING = found(-0.01, 0.01)


def acted(tokens: dict[str, float | None] = NOTHING, net: dict[str, float | None] = NOTHING) -> str:
    rows = [{"detector": "cycle", "action": "stop", "tokens": tokens, "net": net, "cells": 8}]
    (line,) = action_readings.action_readings(rows)
    return line


@pytest.mark.parametrize("unclear", [NOTHING, found(0, 0.2), found(-0.2, 0), found(None, None)])
def test_an_interval_with_nothing_in_it_says_nothing(unclear: dict[str, float | None]) -> None:
    said = "`stop` saves tokens after none; over all, it loses answers after none and gains some"
    assert said + " after none:" in acted(unclear, unclear)


def test_what_an_interval_leaves_out_is_said() -> None:
    assert "saves tokens after `cycle`;" in acted(found(0.1, 0.2))
    assert "after none, takes more after `cycle`;" in acted(found(-0.2, -0.1))
    assert "loses answers after `cycle` and gains some after none" in acted(net=found(-0.2, -0.1))
    assert "loses answers after none and gains some after `cycle`" in acted(net=found(0.1, 0.2))


def test_an_action_that_is_not_tried_everywhere_says_so() -> None:
    row = {"detector": "cycle", "tokens": NOTHING, "net": NOTHING}
    rows = [row | {"action": "stop", "cells": 8}, row | {"action": "densify", "cells": 4}]
    stop, densify = action_readings.action_readings(rows)
    assert densify.endswith("leave 0 out. It is over 4 of 8 configurations.")
    assert stop.endswith("leave 0 out.")


def penalised(**fields: Any) -> dict[str, Any]:
    return {
        "dataset": "hard",
        "backend": "h2o",
        "budget": 256,
        "penalty": "lz",
        "detector": "none",
        "penalty_length_ratio_low": 0.9,
        "penalty_length_ratio_high": 1.1,
        "penalty_accuracy_change": -0.2,
        "penalty_accuracy_change_p": 0.3,
        **fields,
    }


def test_a_penalty_that_does_nothing_clear() -> None:
    (line,) = action_readings.penalty_readings([penalised()])
    assert "longer in 0 of 1 and shorter in 0 of 1 (95% intervals, uncorrected);" in line
    assert "beyond chance (Holm, 1 tests) in 0 of 1 and gains some in 0 of 1." in line


def test_lengths_whose_interval_leaves_one_out() -> None:
    longer = penalised(penalty_length_ratio_low=1.01, penalty_length_ratio_high=1.4)
    shorter = penalised(
        backend="full", budget=None, penalty_length_ratio_low=0.5, penalty_length_ratio_high=0.99
    )
    (line,) = action_readings.penalty_readings([longer, shorter])
    assert "longer in 1 of 2 (hard h2o 256) and shorter in 1 of 2 (hard full) (95%" in line


def test_answers_are_lost_beyond_chance_after_holms_correction() -> None:
    lost = penalised(penalty_accuracy_change_p=0.02)
    (line,) = action_readings.penalty_readings([lost])
    assert "(Holm, 1 tests) in 1 of 1 (hard h2o 256) and gains some in 0 of 1." in line
    (line,) = action_readings.penalty_readings([lost | {"penalty_accuracy_change": 0.2}])
    assert "(Holm, 1 tests) in 0 of 1 and gains some in 1 of 1 (hard h2o 256)." in line
    # Three tests: the least p must lie below a third of 0.05.
    (line,) = action_readings.penalty_readings([lost, penalised(), penalised()])
    assert "(Holm, 3 tests) in 0 of 3" in line


def test_rows_beside_a_detector_and_without_a_penalty_stay_out() -> None:
    assert action_readings.penalty_readings([penalised(detector="guardian")]) == []
    assert action_readings.penalty_readings([penalised(penalty="none")]) == []


def test_what_is_chopped_is_counted_apart() -> None:
    one = {"dataset": "easy", "salad_traces": 3, "traces": 10}
    rows = [
        one | {"backend": "full", "chopped_salad": 0, "chopped_sound": 2},
        one | {"backend": "h2o", "chopped_salad": 3, "chopped_sound": 1},
        one | {"backend": "quest", "chopped_salad": 1, "chopped_sound": 1},
        one | {"dataset": "all", "backend": "all", "chopped_salad": 4, "chopped_sound": 4},
    ]
    full, sparse = action_readings.chopper_readings(rows)
    assert full.startswith(
        "- Full attention: the chopper chops 0 of 3 traces with word salad and 2 of 7 "
    )
    assert sparse.startswith(
        "- Sparse attention: the chopper chops 4 of 6 traces with word salad and 2 of 14 "
    )
