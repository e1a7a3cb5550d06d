"""Short names of detectors and penalties in tables, no two alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from experiments.grid.plan import Plan, distinct
from lil import Detector


def labels(detectors: Sequence[Detector]) -> list[str]:
    """A name for each detector; parameters are spelled out where name and action are not unique."""
    return _labels([(f"{d.name}:{d.action.name}", d.params()) for d in detectors])


def penalty_labels(plan: Plan) -> list[str]:
    """A name for the penalty of each configuration of the plan; "none" where it has none."""
    tables = distinct(dict(table) for c in plan.configurations for table in c.penalties)
    names = _labels([(table["name"], table) for table in tables])
    return [
        "+".join(names[tables.index(dict(table))] for table in configuration.penalties) or "none"
        for configuration in plan.configurations
    ]


def _labels(things: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    names = [name for name, _ in things]
    out = []
    for name, params in things:
        others = [other for same, other in things if same == name]
        shown = {
            key: _distinguishing(value, [other[key] for other in others])
            for key, value in params.items()
            if any(other[key] != value for other in others)
        }
        inside = ", ".join(f"{key}={short(value)}" for key, value in shown.items())
        label = name.partition(":")[0]
        out.append(f"{label}({inside})" if names.count(name) > 1 else label)
    return out


def _distinguishing(value: object, others: Sequence[object]) -> object:
    """A value; parts whose names are those of other parts, with all their parameters."""
    if not _are_parts(value) or short(value) not in map(short, (o for o in others if o != value)):
        return value
    return "+".join(
        f"{part['name']}({', '.join(f'{k}={short(v)}' for k, v in part.items() if k != 'name')})"
        for part in cast("list[dict[str, object]]", value)
    )


def _are_parts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict) and "name" in part for part in value
    )


def short(value: object) -> str:
    """A parameter's value as labels and tables show it; of a detector's parts, their names."""
    if _are_parts(value):
        return "+".join(str(part["name"]) for part in cast("list[dict[str, object]]", value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
