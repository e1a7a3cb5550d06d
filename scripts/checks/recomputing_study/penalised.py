"""What penalties do to the methods' texts, and to full attention's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from recomputing.intervals import sign_flips

from recomputing_study.comparing import share, upper
from recomputing_study.stores import Cell, Level, planned
from recomputing_study.tables import is_method
from recomputing_study.texts import Reading, Text

Name = tuple[str, str]  # data set, the penalty and its parameters
Side = tuple[Text, Text]  # with it, without it


def penalised(
    folders: Sequence[Path], levels: Mapping[str, Level], times: int
) -> dict[Name, dict[str, Any]]:
    """All penalties, each beside the same texts without it.

    Args:
        folders: of stores that share their levels.
        levels: what they say without penalties.
        times: the cap, as times full attention's length.
    """
    found: dict[Name, dict[tuple[Cell, str], Side]] = {}
    longest = {
        (name, problem): times * one.whole
        for name, level in levels.items()
        for (cell, problem), one in level.readings.items()
        if cell.is_full
    }
    for told, cell, item, record in chain.from_iterable(map(planned, folders)):
        if not told["penalties"]:
            continue
        level, at = told["dataset"], (cell, item)
        sides = found.setdefault((level, json.dumps(told["penalties"], sort_keys=True)), {})
        plain, cap = levels[level].readings.get(at), longest.get((level, item))
        if at in sides or record is None or record.trace is None or plain is None or cap is None:
            continue
        sides[at] = Reading(item, record.trace).within(cap, {}), plain.within(cap, {})
    return {name: _told(sides) for name, sides in found.items()}


def _told(sides: Mapping[tuple[Cell, str], Side]) -> dict[str, Any]:
    full = _beside([side for (cell, _), side in sides.items() if cell.is_full])
    right = full["solved"]
    full["lost_high"] = upper(full["lost"], right) if right else 1.0
    return _beside([side for (cell, _), side in sides.items() if is_method(cell)]) | {"full": full}


def _beside(sides: Sequence[Side]) -> dict[str, Any]:
    changes: dict[str, list[int]] = {}
    for with_it, without in sides:
        change = int(with_it.solved) - int(without.solved)
        changes.setdefault(without.problem, []).append(change)
    lost, gained = (sum(some.count(one) for some in changes.values()) for one in (-1, 1))
    return {
        "n": len(sides),
        "solved": sum(without.solved for _, without in sides),
        "lost": lost,
        "gained": gained,
        "p": sign_flips([sum(some) for some in changes.values()]) if sides else None,
        "saved": share(
            sides,
            lambda side: side[1].tokens - side[0].tokens,
            lambda side: side[1].tokens,
            lambda side: side[1].problem,
        )
        if sides
        else None,
        "cut": [sum(side[at].cut for side in sides) for at in (0, 1)],
        "loops": [sum(side[at].classes["loop"] > 0 for side in sides) for at in (0, 1)],
    }
