"""The study's document beside what is recomputed, number by number."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from recomputing.compare import apart
from recomputing.tally import Tally

from recomputing_study import penalised, stores, tables, watching
from recomputing_study.stores import Cell, Prices

#: What is not recomputed, and why.
LEFT_OUT = {
    "null_worlds": "only a share of worlds that are drawn",
    "prices": "taken as told: of the model and its number format",
    "intensity": "taken as told: of a machine",
    "same_bound": "no definition here",
    "penalty": "a name for its parameters, which are compared",
}
DETECTOR = ("dataset", "detector", "action")


class Recomputed(NamedTuple):
    """What some stores say, by level and by detector."""

    levels: dict[str, dict[str, Any]]
    missing: int
    watched: dict[watching.Name, dict[str, Any]]
    left_out: dict[str, str]
    penalised: dict[penalised.Name, dict[str, Any]]


def recomputed(
    folders: Sequence[Path], caps: Sequence[int], prices: Prices, threads: int
) -> Recomputed:
    """All numbers of some stores that share levels with no other."""
    levels = stores.levels(folders)
    return Recomputed(
        {name: tables.level(one, caps, prices, threads) for name, one in levels.items()},
        sum(one.missing for one in levels.values()),
        *watching.watched(folders, levels),
        penalised.penalised(folders, levels, max(caps)),
    )


def groups(folders: Sequence[Path]) -> list[list[Path]]:
    """Stores that share a level together, all others alone."""
    found: list[tuple[set[str], list[Path]]] = []
    for folder in folders:
        names = {
            str(cell["dataset"])
            for manifest in stores.manifests(folder)
            for cell in manifest["plan"]["cells"]
        }
        same = [one for one in found if one[0] & names]
        found = [one for one in found if one not in same]
        found.append((names.union(*(one[0] for one in same)),
                      [*chain.from_iterable(one[1] for one in same), folder]))  # fmt: skip
    return [some for _, some in found]


class Comparison(Tally):
    """Compares, and keeps what was compared, what was not, and what is wrong.

    Args:
        folders: the stores that the document was made of.
        document: what was told of them.
    """

    def __init__(self, folders: Sequence[Path], document: Mapping[str, Any]) -> None:
        super().__init__()
        self.left_out = dict(LEFT_OUT)
        self.folders, self.document = folders, document
        self.groups = groups(folders)

    def compare(self) -> None:
        """Compare the whole document."""
        told = self.document
        plans = [one for folder in self.folders for one in stores.manifests(folder)]
        least = min(map(stores.factor, plans))
        caps = [times for times in (2, 4, 8) if times <= least]
        prices = Prices(**told["prices"], intensity=told["intensity"])
        # Of the newest sweep of the first store: some runs may have been made on another machine.
        newest = stores.manifests(self.folders[0])[-1]
        threads, workers = int(newest["threads"]), int(newest["workers"])
        work = partial(recomputed, caps=caps, prices=prices, threads=threads)
        if len(self.groups) == 1:
            found = [work(self.groups[0])]
        else:
            with ProcessPoolExecutor(min(len(self.groups), os.cpu_count() or 1)) as pool:
                found = [*pool.map(work, self.groups)]
        levels = {name: one for some in found for name, one in some.levels.items()}
        expected: dict[str, Any] = {
            "caps": caps,
            "margin": 0.05,
            "missing": sum(one.missing for one in found),
            "threads": threads,
            "workers": workers,
        }
        parts = {name: told[name] for name in ("levels", "detectors", "penalties")}
        self._value("document", "", {k: v for k, v in told.items() if k not in parts}, expected)
        self._keys("levels", told["levels"], levels)
        for name, level in levels.items():
            if name in told["levels"]:
                self._level(name, told["levels"][name], level)
        self._detectors(told["detectors"], found)
        self._penalties(told["penalties"], found)

    def _level(self, name: str, told: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        self._value(f"{name} full", "full", told["full"], expected["full"])
        self._value(name, "censored", told["censored"], expected["censored"])
        self._keys(f"{name} caps", told["at"], expected["at"])
        for times, at in told["at"].items():
            if times in expected["at"]:
                self._at(f"{name} at {times}", at, expected["at"][times])
        for field in told.keys() - {"full", "censored", "at"}:
            self.left_out.setdefault(field, "unknown here")

    def _at(self, of: str, told: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        rows = told["rows"]
        corrected = tables.holm([row["against_full"] for row in rows], [*map(tables.family, rows)])
        null = next((row["against_full"] for row in rows if row["role"] == "null"), None)
        mine = {_cell(row): row for row in expected["rows"]}
        self._keys(f"{of} rows", map(_cell, rows), mine)
        for at, row in enumerate(rows):
            if _cell(row) not in mine:
                continue
            one = dict(mine[_cell(row)])
            one |= {"against_full": _corrected(one["against_full"], corrected, at)}
            beside = None if null is None or row["role"] == "null" else null["ratio_solved"]
            one["said"] = tables.said(row, beside)
            self._value(f"{of} {_short(row)}", "", row, one)
        for name in ("selection", "random", "window", "budgets", "prompt"):
            self._beside(of, name, told[name], expected[name])
        self._value(of, "pooled", told["pooled"], expected["pooled"])
        free = tables.sparsity_free(rows)
        self._value(of, "sparsity_free", sorted(told["sparsity_free"]), free)
        even = tables.break_even(rows)
        self._keys(f"{of} break_even", (_cost(one) for one in told["break_even"]), even)
        for one in told["break_even"]:
            if _cost(one) in even:
                backend, cost = _cost(one)
                kinds = {"backend": backend, "cost": cost, **even[_cost(one)]}
                self._value(f"{of} break_even {backend} {cost}", "break_even", one, kinds)

    def _beside(
        self, of: str, name: str, told: Sequence[Mapping[str, Any]], expected: Sequence[Any]
    ) -> None:
        """Methods beside another choice at the same budget."""
        chosen = {_method(one): one for one in expected}
        self._keys(f"{of} {name}", map(_method, told), chosen)
        corrected = tables.holm(told, ["methods"] * len(told))
        for at, one in enumerate(told):
            if _method(one) in chosen:
                short = f"{of} {name} {one['backend']} {one['budget']}"
                self._value(short, name, one, _corrected(chosen[_method(one)], corrected, at))

    def _detectors(self, told: Sequence[Mapping[str, Any]], parts: Sequence[Recomputed]) -> None:
        found = {name: one for some in parts for name, one in some.watched.items()}
        left_out = {name: why for some in parts for name, why in some.left_out.items()}
        self.left_out |= {f"detector {name}": why for name, why in left_out.items()}
        names = [tuple(one[key] for key in DETECTOR) for one in told]
        self._keys("detectors", (name for name in names if name[1] not in left_out), found)
        corrected = tables.holm_of([one["p"] for one in told], [name[0] for name in names])
        for at, (name, one) in enumerate(zip(names, told, strict=True)):
            if name in found:
                known = dict(zip(DETECTOR, name, strict=True)) | found[name]
                known |= {"p_holm": corrected[at]}
                self._value(f"detector {' '.join(name)}", "detectors", one, known)

    def _penalties(self, told: Sequence[Mapping[str, Any]], parts: Sequence[Recomputed]) -> None:
        found = {name: one for some in parts for name, one in some.penalised.items()}
        names = [(one["dataset"], json.dumps(one["parameters"], sort_keys=True)) for one in told]
        self._keys("penalties", names, found)
        levels = [name[0] for name in names]
        corrected = tables.holm_of([one["p"] for one in told], levels)
        of_full = tables.holm_of([one["full"]["p"] for one in told], levels)
        for at, (name, one) in enumerate(zip(names, told, strict=True)):
            if name not in found:
                continue
            known = found[name] | {"dataset": name[0]}
            if at in corrected:
                known["p_holm"] = corrected[at]
            if at in of_full:
                known["full"] = known["full"] | {"p_holm": of_full[at]}
            rest = {field: told for field, told in one.items() if field != "parameters"}  # its name
            self._value(f"penalty {one['penalty']}", "penalties", rest, known)

    # ------------------------------------------------------------ numbers

    def _keys(self, of: str, told: Any, expected: Any) -> None:
        """The names of what is told of, each of which there has to be once."""
        ours, its = list(told), list(expected)
        for name in ours:
            if name not in its or ours.count(name) > 1:
                self.wrong.append(f"{of}: {name}: nothing of the kind here, or twice")
        self.wrong += [f"{of}: {name}: not told" for name in its if name not in ours]

    def _value(self, of: str, field: str, told: Any, expected: Any) -> None:
        if isinstance(told, Mapping) and isinstance(expected, Mapping):
            for name in sorted(told.keys() | expected.keys()):
                inner = f"{field}.{name}" if field else name
                if name in LEFT_OUT and name not in expected:
                    continue
                if name not in expected:
                    self.wrong.append(f"{of}: {inner}: {told[name]!r}, not known here")
                elif name not in told:
                    self.wrong.append(f"{of}: {inner}: not told, recomputed {expected[name]!r}")
                else:
                    self._value(of, inner, told[name], expected[name])
            return
        self.count(of, field, lambda: _apart(told, expected))


def _apart(told: Any, expected: Any) -> tuple[float, int]:
    if isinstance(expected, bool) or isinstance(told, bool):
        if told is not expected:
            raise ValueError(f"{told!r}, recomputed {expected!r}")
        return 0.0, 1
    return apart(told, expected)


def _corrected(
    compared: Mapping[str, Any], corrected: Mapping[tuple[int, str], float], at: int
) -> dict[str, Any]:
    found = dict(compared)
    for outcome in tables.OUTCOMES:
        if (at, outcome) in corrected:
            p = {"p_holm": corrected[at, outcome]}
            found |= {outcome: {**found[outcome], **p}} if outcome else p
    return found


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["backend"], row["budget"], row["kept"])


def _method(one: Mapping[str, Any]) -> tuple[str, int]:
    return one["backend"], one["budget"]


def _cost(one: Mapping[str, Any]) -> tuple[str, str]:
    return one["backend"], one["cost"]


def _short(row: Mapping[str, Any]) -> str:
    return " ".join(map(str, _cell(row)[:2])) + (" with the prompt kept" if row["kept"] else "")
