"""Stores as the study takes them: runs by level, method and problem, and what their tokens cost."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from recomputing import frames

from recomputing_study.texts import Reading, Text

COSTS = ("keys", "bytes", "byte_steps", "seconds", "eflops", "tokens")


class Cell(NamedTuple):
    """A method at a budget, and whether it keeps the prompt."""

    backend: str
    budget: int | None
    kept: bool

    @property
    def is_full(self) -> bool:
        """Full attention itself."""
        return self.backend == "full"

    @classmethod
    def of(cls, backend: Mapping[str, Any]) -> Cell:
        """Of a backend as a plan has it."""
        kept = bool(backend.get("keep_prompt", False))
        return cls(backend["name"], backend.get("budget"), kept)


class Prices(NamedTuple):
    """What the document reckons costs with."""

    parameters: float
    key_bytes: float
    key_flops: float
    intensity: float


@dataclass
class Level:
    """Runs of one data set."""

    roles: dict[Cell, str] = field(default_factory=dict)
    planned: dict[tuple[Cell, str], None] = field(default_factory=dict)
    readings: dict[tuple[Cell, str], Reading] = field(default_factory=dict)
    processors: dict[tuple[Cell, str], str] = field(default_factory=dict)

    @property
    def processor(self) -> str | None:
        """The one that decoded most of full attention's texts."""
        names = Counter(name for (cell, _), name in self.processors.items() if cell.is_full)
        return min(names, key=lambda name: (-names[name], name), default=None)

    @property
    def missing(self) -> int:
        """Planned runs without a trace."""
        return len(set(self.planned) - set(self.readings))


def factor(manifest: Mapping[str, Any]) -> int:
    """A sweep's cap as times full attention's length."""
    return int(str(manifest["config"]["cap"]).removesuffix("x-full"))


def manifests(folder: Path) -> list[dict[str, Any]]:
    """Of all sweeps of a store, the oldest first."""
    told = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("sweeps/*.json")]
    if not told:
        raise FileNotFoundError(f"{folder}: expected the folder of a sweep")
    return sorted(told, key=lambda one: str(one["started"]))


def planned(
    folder: Path,
) -> Iterator[tuple[Mapping[str, Any], Cell, str, frames.Stored | None]]:
    """Every planned run of a store: its cell as told and in short, its problem, its record."""
    stored = frames.records(folder)
    for manifest in manifests(folder):
        plan = manifest["plan"]
        problems = {(one["model"], one["dataset"]): one["problems"] for one in plan["items"]}
        for cell in plan["cells"]:
            for item, prompt, *_ in problems[cell["model"], cell["dataset"]]:
                record = stored.get(frames.key_of(cell, item, prompt, 0))
                yield cell, Cell.of(cell["backend"]), item, record


def levels(folders: Sequence[Path]) -> dict[str, Level]:
    """Every planned run of some stores without a penalty; the same run counts once."""
    found: dict[str, Level] = {}
    processors: dict[str, str] = {}
    for path in (path for folder in folders for path in folder.glob("sweeps/*.json")):
        processors[path.stem] = str(json.loads(path.read_text(encoding="utf-8"))["device_name"])
    for told, cell, item, record in chain.from_iterable(map(planned, folders)):
        if told["penalties"]:
            continue
        level, at = found.setdefault(told["dataset"], Level()), (cell, item)
        level.roles.setdefault(cell, told.get("role", "method"))
        level.planned[at] = None
        if at in level.readings or record is None or record.trace is None:
            continue
        level.readings[at] = Reading(item, record.trace)
        level.processors[at] = processors.get(record.meta["sweep"], "unknown")
    return found


def read(level: Level, times: int, prices: Prices) -> dict[Cell, dict[str, Text]]:
    """The texts of a level within so many times full attention's own length."""
    full = {problem: one for (cell, problem), one in level.readings.items() if cell.is_full}
    found: dict[Cell, dict[str, Text]] = {}
    usual = level.processor
    for (cell, problem), one in level.readings.items():
        if problem not in full:
            continue
        cap = times * full[problem].whole
        cost = costs(one.trace, min(cap, one.whole), prices)
        if level.processors[cell, problem] != usual:
            cost["seconds"] = math.nan
        found.setdefault(cell, {})[problem] = one.within(cap, cost)
    return found


def costs(trace: Mapping[str, Any], tokens: int, prices: Prices) -> dict[str, float]:
    """Of the first tokens, by the trace's checks and straight lines between them."""
    checks = sorted(trace["checks"], key=lambda one: int(one["tokens"]))
    at = [0.0, *(one["tokens"] for one in checks)]
    keys = float(np.interp(tokens, at, [0.0, *(one["keys_read"] for one in checks)]))
    held = [checks[0]["cache_bytes"], *(one["cache_bytes"] for one in checks)]
    marks = [mark for mark in at if mark < tokens] + [tokens]
    steps = float(np.trapezoid(np.interp(marks, at, held), marks))
    spent = [0.0, *(one["seconds"] for one in checks)]
    decode = math.nan if None in spent else float(np.interp(tokens, at, spent))
    moved = keys * prices.key_bytes
    return {
        "keys": keys,
        "bytes": moved,
        "byte_steps": steps,
        "seconds": trace["prefill_sec"] + decode,
        "eflops": 2 * prices.parameters * tokens
        + prices.key_flops * keys
        + prices.intensity * moved,
        "tokens": float(tokens),
    }
