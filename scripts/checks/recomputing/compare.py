"""A report's rows beside those recomputed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recomputing import pooled as definitions_pooled
from recomputing import rows as definitions
from recomputing.against import Reading
from recomputing.cheaper import cheaper
from recomputing.claims import claims
from recomputing.frames import canonical
from recomputing.samples import Line, Sweep, is_baseline, merged
from recomputing.tally import Tally

#: What says which configuration a row is of; a row that fits none is a disagreement.
IDENTITY = (
    "model",
    "dataset",
    "backend",
    "budget",
    "backend_params",
    "penalty",
    "detector",
    "action",
)

#: What says which detector is pooled.
POOLED = ("model", "penalty", "detector", "action")

#: Exact numbers may differ by this share: sums are taken in other orders.
CLOSE = 1e-9

#: How samples of one problem are taken together in these is a choice no definition here makes.
CLUSTERED = (
    "accuracy_low",
    "accuracy_high",
    *(
        f"{change}_{part}"
        for change in (
            "accuracy_change",
            "detector_accuracy_change",
            "penalty_accuracy_change",
        )
        for part in ("low", "high", "p")
    ),
)

Name = tuple[str, ...]
Lines = dict[Name, Line]

#: What a data set is called that is all of them together.
ALL = "all"


class Comparison(Tally):
    """Compares, and keeps what was compared, what was not, and what is wrong.

    Args:
        store: folder of a sweep.
        detectors: those that a replay took; the sweep's own if None.
    """

    def __init__(self, store: Path, detectors: Sequence[Mapping[str, Any]] | None = None) -> None:
        super().__init__()
        sweep = Sweep(store)
        self.detectors = _labelled(sweep.manifest["detectors"] if detectors is None else detectors)
        self.seed = int(sweep.config["seed"])
        self.factor = sweep.factor
        self.lines = {self._name(line): line for line in sweep.lines([])}
        self.at: dict[int, Lines] = {
            factor: {self._name(line): line for line in sweep.lines([], factor)}
            for factor in sweep.smaller
        }
        for one in self.detectors:
            try:
                self.lines |= {self._name(line): line for line in sweep.lines([one])}
            except NotImplementedError as error:
                self.left_out[f"rows of {self._watched(one)[0]}"] = f"no definition: {error}"
        self._known: dict[Name, dict[str, Any]] = {}
        for lines in (self.lines, *self.at.values()):
            lines |= _over_all_datasets(lines)

    # ------------------------------------------------------------ which row is which

    def _watched(self, detector: Mapping[str, Any] | None) -> tuple[str, str]:
        if detector is None:
            return "none", "none"
        return detector.get("label", detector["name"]), detector["on_stop"]["name"]

    def _name(self, line: Line) -> Name:
        cell = line.cell
        penalty = "+".join(one["name"] for one in cell["penalties"]) or "none"
        return (
            cell["model"],
            cell["dataset"],
            canonical(line.backend),
            penalty,
            *self._watched(line.detector),
        )

    def _of(self, row: Mapping[str, Any]) -> Name:
        backend = {"name": row["backend"], **(row["backend_params"] or {})}
        if row["budget"] is not None:
            backend["budget"] = row["budget"]
        return (
            row["model"],
            row["dataset"],
            canonical(backend),
            row["penalty"],
            row["detector"],
            row["action"],
        )

    # ------------------------------------------------------------ comparing

    def compare(
        self, rows: Sequence[Mapping[str, Any]], over_all: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Compare every row; a row too many or too few is wrong as well.

        Args:
            rows: of each data set.
            over_all: of all data sets together; not compared if None.
        """
        pooled = over_all or ()
        told: dict[Name, Mapping[str, Any]] = {}
        for row in (*rows, *pooled):
            name = self._of(row)
            if f"rows of {row['detector']}" in self.left_out:
                continue
            if name not in self.lines or name in told:
                self.wrong.append(f"{_short(row)}: no such configuration, or twice")
            else:
                told[name] = row
        for name in self.lines:
            # One that goes on densely is for methods that keep every key, which only they know.
            if name[1] == ALL and over_all is None:
                continue
            if name not in told and name[-1] != "densify":
                self.wrong.append(f"{' '.join(name)}: no row")
        for name in told:
            if name not in self._known:
                self._known[name] = self._expected(name)
        said = self._said(rows) | self._said(pooled)
        for name, row in told.items():
            expected = self._known[name] | {
                "cheaper": _cheaper(name, row, told, self._known),
                "claims": said[name, None],
            }
            expected["caps"] = [
                one | {"claims": said.get((name, one["factor"]))} for one in expected["caps"]
            ]
            self._row(row, expected)
        for field in sorted({key for row in rows for key in row} - set(IDENTITY)):
            if field not in self.fields:
                self.left_out.setdefault(field, "unknown here")

    def _said(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> dict[tuple[Name, int | None], frozenset[str]]:
        return {
            (self._of(rows[at]), factor): frozenset(words)
            for (at, factor), words in claims(rows).items()
        }

    def compare_pooled(
        self, told: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Compare what is told of detectors over all sparse configurations together.

        Args:
            told: the report's `stopping`.
            rows: the report's, which say where a detector's action is possible.
        """
        expected = {
            (model, penalty, *watched): definitions_pooled.pooled(pairs)
            for (model, penalty, *watched), pairs in self._by_detector(rows).items()
            if any(
                line.role == "method" and line.cell["backend"]["name"] != "full"
                for line, _ in pairs
            )
        }
        for one in told:
            name = tuple(one[key] for key in POOLED)
            if f"rows of {one['detector']}" in self.left_out:
                continue
            if name not in expected:
                self.wrong.append(f"{' '.join(name)}: no such detector, or twice")
                continue
            recomputed = expected.pop(name)
            several = recomputed.pop("several")
            for field, value in one.items():
                if field in POOLED:
                    continue
                if several and field == "losing":
                    self.left_out["pooled losing"] = "several samples a problem"
                    continue
                self._field(" ".join(name), f"pooled {field}", value, recomputed[field])
        self.wrong += [f"{' '.join(name)}: not pooled" for name in expected]

    def _by_detector(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> dict[Name, list[tuple[Line, Line]]]:
        found: dict[Name, list[tuple[Line, Line]]] = {}
        for row in rows:
            name = self._of(row)
            if row["detector"] != "none" and name in self.lines:
                model, _, _, penalty, *watched = name
                plain = self.lines[*name[:4], "none", "none"]
                pairs = found.setdefault((model, penalty, *watched), [])
                pairs.append((self.lines[name], plain))
        return found

    def _expected(self, name: Name) -> dict[str, Any]:
        model, dataset, backend, penalty, *watched = name
        line = self.lines[name]
        without = self.lines[model, dataset, backend, penalty, "none", "none"]
        plain = self.lines.get((model, dataset, backend, "none", *watched))
        found = definitions.row(
            line,
            _baseline(self.lines, name),
            None if line.detector is None else without,
            None if penalty == "none" else plain,
            Reading(self.factor, self.seed),
        )
        # Where runs are missing there are counts alone.
        smaller = self.at if line.detector is None and found["n"] else {}
        found["caps"] = [
            definitions.at_cap(lines[name], _baseline(lines, name), Reading(factor, self.seed))
            for factor, lines in smaller.items()
        ]
        return found

    def _row(self, row: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        several = expected["samples_per_problem"] > 1
        for field, value in row.items():
            if field in IDENTITY:
                continue
            if several and field in CLUSTERED:
                self.left_out[field] = "several samples a problem"
                continue
            if field not in definitions.FIELDS:
                continue
            if several and field == "caps":
                clustered = dict.fromkeys(CLUSTERED)
                value = [{**one, **{k: None for k in clustered if k in one}} for one in value]
            self._field(_short(row), field, value, expected.get(field))

    def _field(self, of: str, field: str, value: object, expected: object) -> None:
        self.count(of, field, lambda: apart(value, expected))


def apart(told: object, expected: object) -> tuple[float, int]:
    """How far what a report tells is from what is expected, and how many numbers were compared.

    Raises:
        ValueError: too far.
    """
    if isinstance(expected, frozenset):
        if not isinstance(told, list) or sorted(told) != sorted(expected):
            raise ValueError(f"{told!r}, recomputed {sorted(expected)!r}")
        return 0.0, len(told)
    if isinstance(expected, Mapping) or isinstance(told, Mapping):
        return _worst(_fields_apart(told, expected))
    if isinstance(expected, list) or isinstance(told, list):
        return _worst(_items_apart(told, expected))
    if isinstance(expected, tuple):
        return _beyond(told, expected), int(told is not None)
    if expected == definitions.WORDS and isinstance(told, str) and told:
        return 0.0, 1
    if told is None or expected is None or isinstance(expected, str):
        if told != expected:
            raise ValueError(f"{told!r}, recomputed {expected!r}")
        return 0.0, int(told is not None)
    if not isinstance(told, (int, float)) or isinstance(told, bool):
        raise ValueError(f"{told!r}, recomputed {expected!r}")
    assert isinstance(expected, (int, float))
    off = abs(told - expected)
    if not off <= CLOSE * max(1.0, abs(expected)):
        raise ValueError(f"{told!r}, recomputed {expected!r}")
    return off, 1


def _fields_apart(told: object, expected: object) -> Iterator[tuple[float, int]]:
    if (
        not isinstance(told, Mapping)
        or not isinstance(expected, Mapping)
        or (told.keys() != expected.keys())
    ):
        raise ValueError(f"{told!r}, recomputed {expected!r}")
    for name in expected:
        yield apart(told[name], expected[name])


def _items_apart(told: object, expected: object) -> Iterator[tuple[float, int]]:
    if not isinstance(told, list) or not isinstance(expected, list) or len(told) != len(expected):
        raise ValueError(f"{told!r}, recomputed {expected!r}")
    for one, other in zip(told, expected, strict=True):
        yield apart(one, list(other) if isinstance(other, tuple) else other)


def _worst(parts: Iterator[tuple[float, int]]) -> tuple[float, int]:
    found = list(parts)
    return max((off for off, _ in found), default=0.0), sum(count for _, count in found)


def _beyond(told: object, band: tuple[float, float]) -> float:
    """Distance of a bound from the middle of where another program's may lie; None is unbounded."""
    low, high = band
    if told is None:
        if high < math.inf:
            raise ValueError(f"None, recomputed {low:.6g} to {high:.6g}")
        return 0.0
    if not isinstance(told, (int, float)) or not low - CLOSE <= told <= high + CLOSE:
        raise ValueError(f"{told!r}, recomputed {low:.6g} to {high:.6g}")
    return max(told - low, high - told) if high < math.inf else 0.0


def _cheaper(
    name: Name,
    row: Mapping[str, Any],
    told: Mapping[Name, Mapping[str, Any]],
    expected: Mapping[Name, Mapping[str, Any]],
) -> dict[str, Any] | None:
    """From the rows of the same line, all that differ in budget alone; none of all data sets."""
    if row["budget"] is None or row["dataset"] == ALL:
        return None
    alike = {
        its: other
        for its, other in told.items()
        if (its[:2], its[3:], other["backend"]) == (name[:2], name[3:], row["backend"])
    }
    # Parameters may follow the budget: only rows of one budget say which do not.
    telling = {
        key
        for one, other in itertools.combinations(alike.values(), 2)
        if one["budget"] == other["budget"]
        for key in (one["backend_params"] or {}) | (other["backend_params"] or {})
        if (one["backend_params"] or {}).get(key) != (other["backend_params"] or {}).get(key)
    }
    mine = row["backend_params"] or {}
    line = [
        {
            "budget": other["budget"],
            "accuracy": expected[its].get("accuracy"),
            "full_solves": expected[its].get("full_solves"),
            "keys_read_per_solved_ratio": expected[its].get("keys_read_per_solved_ratio"),
            # A bootstrap's, so a band here; whose it is in `best_high` must be that row's own.
            "keys_read_per_solved_ratio_high": other["keys_read_per_solved_ratio_high"],
        }
        for its, other in alike.items()
        if all((other["backend_params"] or {}).get(key) == mine.get(key) for key in telling)
    ]
    return cheaper(line)


def _labelled(detectors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Detectors of one name and action with the parameters by which they differ behind it."""
    found: list[Mapping[str, Any]] = []
    for one in detectors:
        others = [
            other
            for other in detectors
            if (other["name"], other["on_stop"]["name"]) == (one["name"], one["on_stop"]["name"])
        ]
        told = [
            f"{key}={one[key]}"
            for key in one
            if key not in ("name", "on_stop", "signals", "label")
            and any(other.get(key) != one[key] for other in others)
        ]
        known = "label" in one or not told
        found.append(one if known else {**one, "label": f"{one['name']}({', '.join(told)})"})
    return found


def _over_all_datasets(lines: Lines) -> Lines:
    """Configurations without a detector that all data sets of a model have, over all of them."""
    datasets: dict[str, set[str]] = {}
    found: dict[Name, list[Line]] = {}
    for (model, dataset, *rest), line in lines.items():
        datasets.setdefault(model, set()).add(dataset)
        if line.detector is None:
            found.setdefault((model, ALL, *rest), []).append(line)
    return {
        name: merged(parts)
        for name, parts in found.items()
        if len(parts) == len(datasets[name[0]]) > 1
    }


def _baseline(lines: Lines, name: Name) -> Line:
    """Full attention on the same problems, without a detector."""
    return next(
        one
        for its, one in lines.items()
        if its[:2] == name[:2] and is_baseline(one.cell) and one.detector is None
    )


def _short(row: Mapping[str, Any]) -> str:
    return " ".join(str(row[key]) for key in IDENTITY if key != "backend_params")
