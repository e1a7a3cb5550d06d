"""Names for readers: short ones of models and data sets, labels of backends and of detectors."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from attention.errors import InvalidValue
from experiments.grid.detectors import short
from experiments.report.row import DetectorAction, ReportRow, order


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Each name by its shortest unique path ending."""
    parts = {name: _parts(name) for name in sorted(set(names))}
    ends = {name: path[-1] for name, path in parts.items()}
    for depth in range(2, 1 + max(map(len, parts.values()), default=0)):
        for name in _repeated(ends):
            ends[name] = "/".join(parts[name][-depth:])
    return ends | {name: name for name in _repeated(ends)}  # a.json and a.jsonl


def _parts(name: str) -> list[str]:
    stem = name.removesuffix(".jsonl").removesuffix(".json")
    return [part for part in stem.split("/") if part] or [name]


def _repeated(ends: dict[str, str]) -> list[str]:
    times = Counter(ends.values())
    return [name for name, end in ends.items() if times[end] > 1]


def short_named(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows under short names of their models and data sets, for readers."""
    models = short_names(row.model for row in rows)
    datasets = short_names(row.dataset for row in rows)
    return [replace(row, model=models[row.model], dataset=datasets[row.dataset]) for row in rows]


def series(rows: Sequence[ReportRow]) -> dict[str, list[ReportRow]]:
    """Rows of one model, data set and detector that differ in budget alone, under a label.

    The label is the backend's name, then the parameters that are not its defaults or tell it from
    another series of that name.
    """
    telling: dict[str, set[str]] = defaultdict(set)
    for row, other in itertools.combinations(rows, 2):
        if row.backend == other.backend:
            left, right = _parameters(row), _parameters(other)
            differ = {name for name in left | right if left.get(name) != right.get(name)}
            # Parameters may follow the budget (H2O's halves); only at the same one do they tell.
            telling[row.backend] |= differ if row.budget == other.budget else differ & {"penalty"}
    lines: dict[str, list[ReportRow]] = defaultdict(list)
    for row in sorted(rows, key=order):
        names = (telling[row.backend] - {"penalty"}) | _unusual(row)
        shown = sorted(names & row.backend_params.keys())  # what is left out has its default
        parts = [f"{name}={short(row.backend_params[name])}" for name in shown]
        label = f"{row.backend} ({', '.join(parts)})" if parts else row.backend
        if "penalty" in telling[row.backend] and row.penalty != "none":
            label += f" + {row.penalty}"
        lines[label].append(row)
    return dict(lines)


def _parameters(row: ReportRow) -> dict[str, object]:
    return {**row.backend_params, "penalty": row.penalty}


def _unusual(row: ReportRow) -> set[str]:
    """The parameters that are not the method's defaults; none of a method that does not ship."""
    from attention.methods import METHODS

    if row.budget is None or row.backend not in METHODS.shipped():
        return set()
    try:
        usual = METHODS.get(row.backend, budget=row.budget).params()
    except InvalidValue:  # a budget that is too small for the defaults
        return set()
    # What the defaults lack is `left_out` of parameters while it has its default.
    return {name for name, x in row.backend_params.items() if name not in usual or usual[name] != x}


def detector_name(name: str, action: str, among: Sequence[DetectorAction]) -> str:
    """What tables and sentences call a detector: its action only where it comes with several."""
    return name if [other for other, _ in among].count(name) == 1 else f"{name} ({action})"


def counted(count: int, noun: str) -> str:
    """A count with its noun in the number that it needs."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def capital(text: str) -> str:
    """A sentence's beginning; what is a capital already stays one."""
    return text[:1].upper() + text[1:]
