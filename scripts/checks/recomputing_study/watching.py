"""What detectors would have stopped of the methods' texts, and of full attention's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recomputing.compare import _labelled
from recomputing.intervals import sign_flips
from recomputing.samples import Line, Sample, Sweep
from scipy import stats

from recomputing_study.comparing import share
from recomputing_study.stores import Cell, Level, manifests
from recomputing_study.tables import METHODS

#: Methods that drop keys, which no later step can have again.
EVICTING = ("h2o", "sink")

Name = tuple[str, str, str]  # data set, detector, action


@dataclass
class Watched:
    """Texts that a detector has seen, by method and problem: plain, stopped, after its action."""

    texts: dict[tuple[Cell, str], tuple[Sample, Sample, Sample]] = field(default_factory=dict)
    full: dict[str, Sample] = field(default_factory=dict)  # whatever follows a stop


def watched(
    folders: Sequence[Path], levels: Mapping[str, Level]
) -> tuple[dict[Name, dict[str, Any]], dict[str, str]]:
    """What is told of each detector, and of which nothing can be told here, and why."""
    found: dict[Name, Watched] = {}
    left_out: dict[str, str] = {}
    for folder in folders:
        sweep = Sweep(folder, brief=True)
        seen: dict[str, set[tuple[str, str]]] = {}
        # The newest first: what an earlier sweep of the same runs would say again is passed over.
        for manifest in reversed(manifests(folder)):
            sweep.manifest, runs = manifest, _planned(manifest)
            plain: dict[tuple[str, Cell], Line] | None = None
            for detector in _labelled(manifest["detectors"]):
                called = detector.get("label", detector["name"])
                whole = json.dumps(detector, sort_keys=True)
                if runs <= seen.setdefault(whole, set()):
                    continue
                seen[whole] |= runs
                if plain is None:
                    lines = sweep.lines([])
                    plain = {_at(line): line for line in lines if not line.cell["penalties"]}
                try:
                    _add(found, called, detector, sweep, plain)
                except NotImplementedError as error:
                    left_out[called] = f"no definition: {error}"
    told = {name: _told(one, levels[name[0]]) for name, one in found.items()}
    return told, left_out


def _planned(manifest: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The runs that a sweep asked for, each by its cell and problem."""
    plan = manifest["plan"]
    problems = {(one["model"], one["dataset"]): one["problems"] for one in plan["items"]}
    return {
        (json.dumps(cell, sort_keys=True), str(item))
        for cell in plan["cells"]
        for item, *_ in problems[cell["model"], cell["dataset"]]
    }


def _add(
    found: dict[Name, Watched],
    called: str,
    detector: Mapping[str, Any],
    sweep: Sweep,
    plain: Mapping[tuple[str, Cell], Line],
) -> None:
    action = detector["on_stop"]["name"]
    stop = {**detector, "on_stop": {"name": "stop"}}
    stopped = {_at(line): line for line in sweep.lines([stop]) if line.detector is not None}
    acted = stopped
    if action != "stop":
        acted = {_at(line): line for line in sweep.lines([detector]) if line.detector is not None}
    for (dataset, cell), line in plain.items():
        one = found.setdefault((dataset, called, action), Watched())
        for name, other in found.items():
            if name[:2] == (dataset, called):
                one.full = other.full
        if cell.is_full and line.role != "null":
            for problem, _ in line.samples:
                sample = stopped[dataset, cell].samples[problem, 0]
                if sample.usable:
                    one.full.setdefault(problem, sample)
        if cell.backend not in METHODS or cell.kept:
            continue
        if action == "densify" and cell.backend in EVICTING:
            continue
        for problem, _ in line.samples:
            three = tuple(
                some[dataset, cell].samples[problem, 0] for some in (plain, stopped, acted)
            )
            if all(sample.usable for sample in three):
                before, at, after = three
                one.texts.setdefault((cell, problem), (before, at, after))


def _at(line: Line) -> tuple[str, Cell]:
    cell = Cell.of(line.cell["backend"])
    penalties = "+".join(str(one["name"]) for one in line.cell["penalties"])
    return line.cell["dataset"], cell._replace(backend=cell.backend + penalties)


def _told(one: Watched, level: Level) -> dict[str, Any]:
    texts = one.texts
    fired = {at: three for at, three in texts.items() if three[1].fired}
    false, of_full = sum(x.fired for x in one.full.values()), len(one.full)
    changes: dict[str, list[int]] = {}
    for (_, problem), (before, _, after) in texts.items():
        changes.setdefault(problem, []).append(int(after.solved) - int(before.solved))
    right_before = 0
    for at, (before, stopped, _) in fired.items():
        text = level.readings[at].within(before.tokens, {})
        right_before += text.until is not None and text.until <= stopped.paid
    return {
        "n": len(texts),
        "solved": sum(before.solved for before, _, _ in texts.values()),
        "fired": len(fired),
        "false": false,
        "of_full": of_full,
        "false_high": float(stats.beta.ppf(0.975, false + 1, of_full - false))
        if false < of_full
        else 1.0,
        "saved": share(
            [(at[1], three) for at, three in texts.items()],
            lambda one: one[1][0].tokens - one[1][2].paid,
            lambda one: one[1][0].tokens,
            lambda one: one[0],
        ),
        "lost": sum(before.solved and not after.solved for before, _, after in texts.values()),
        "gained": sum(after.solved and not before.solved for before, _, after in texts.values()),
        "p": sign_flips([sum(one) for one in changes.values()]),
        "right_before": right_before,
    }
