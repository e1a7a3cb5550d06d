"""What docs/results/actions.md says of actions, penalties and the chopper, by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.report.statistics import holm

Row = dict[str, Any]

#: What is called beyond chance's correction.
P = 0.05


def action_readings(rows: Sequence[Row]) -> list[str]:
    """Sentences on what follows a verdict.

    Args:
        rows: pooled over the sparse configurations, one for each detector and action.
    """
    lines = []
    for action in dict.fromkeys(row["action"] for row in rows):
        mine = [row for row in rows if row["action"] == action]
        saves = [row for row in mine if _above(row["tokens"])]
        costs = [row for row in mine if _below(row["tokens"])]
        loses = [row for row in mine if _below(row["net"])]
        gains = [row for row in mine if _above(row["net"])]
        fewer = _most(mine) < _most(rows)
        lines.append(
            f"- `{action}` saves tokens after {_named(saves)}{_more(costs, ', takes more after')}"
            f"; over all, it loses answers after {_named(loses)} and gains some after "
            f"{_named(gains)}: 95% intervals that leave 0 out."
            + (f" It is over {_most(mine)} of {_most(rows)} configurations." if fewer else "")
        )
    return lines


def penalty_readings(rows: Sequence[Row]) -> list[str]:
    """Sentences on penalties, without a detector beside them.

    Args:
        rows: one for each configuration and penalty.
    """
    mine = [row for row in rows if row["detector"] == "none" and row["penalty"] != "none"]
    apart = [row for row in mine if row["penalty_accuracy_change_p"] is not None]
    corrected = holm([row["penalty_accuracy_change_p"] for row in apart])
    beyond = [row for row, p in zip(apart, corrected, strict=True) if p < P]
    lines = []
    for penalty in dict.fromkeys(row["penalty"] for row in mine):
        its = [row for row in mine if row["penalty"] == penalty]
        longer = [row for row in its if _bound(row, "low", lambda at: at > 1)]
        shorter = [row for row in its if _bound(row, "high", lambda at: at < 1)]
        loses = [row for row in its if row in beyond and row["penalty_accuracy_change"] < 0]
        gains = [row for row in its if row in beyond and row["penalty_accuracy_change"] > 0]
        lines.append(
            f"- `{penalty}` makes outputs longer in {_cells(longer, its)} and shorter in "
            f"{_cells(shorter, its)} (95% intervals, uncorrected); it loses answers beyond "
            f"chance (Holm, {len(apart)} tests) in "
            f"{_cells(loses, its)} and gains some in {_cells(gains, its)}."
        )
    return lines


def chopper_readings(rows: Sequence[Row]) -> list[str]:
    """What the chopper chopped, counted."""
    lines = []
    for told, full in (("Full", True), ("Sparse", False)):
        mine = [row for row in rows if row["dataset"] != "all"]
        mine = [row for row in mine if (row["backend"] == "full") == full]
        salad = sum(row["salad_traces"] for row in mine)
        traces = sum(row["traces"] for row in mine)
        lines.append(
            f"- {told} attention: the chopper chops {sum(r['chopped_salad'] for r in mine)} of "
            f"{salad:,} traces with word salad and {sum(r['chopped_sound'] for r in mine)} of "
            f"{traces - salad:,} without any."
        )
    return lines


def _above(found: Mapping[str, Any]) -> bool:
    return found["low"] is not None and found["low"] > 0


def _below(found: Mapping[str, Any]) -> bool:
    return found["high"] is not None and found["high"] < 0


def _most(rows: Sequence[Row]) -> int:
    """Configurations; an action that needs every key is not tried where keys are dropped."""
    return max(row["cells"] for row in rows)


def _bound(row: Row, which: str, holds: Callable[[float], bool]) -> bool:
    at = row[f"penalty_length_ratio_{which}"]
    return at is not None and holds(at)


def _named(rows: Sequence[Row]) -> str:
    return ", ".join(f"`{row['detector']}`" for row in rows) or "none"


def _more(rows: Sequence[Row], words: str) -> str:
    return f"{words} {_named(rows)}" if rows else ""


def _cells(rows: Sequence[Row], among: Sequence[Row]) -> str:
    told = ", ".join(
        " ".join(str(row[key]) for key in ("dataset", "backend", "budget") if row[key])
        for row in rows
    )
    return f"{len(rows)} of {len(among)}" + (f" ({told})" if told else "")
