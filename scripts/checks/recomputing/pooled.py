"""What a detector does over all sparse configurations, from the samples of their lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from recomputing.frames import canonical
from recomputing.intervals import interval, mcnemar, wilson
from recomputing.means import always_some
from recomputing.samples import Line, Sample

Pairs = list[tuple[str, Sample, Sample]]  # problem with its data set, with the detector, without
Sums = Mapping[str, tuple[float, float]]

_NONE = {"estimate": None, "low": None, "high": None}


def pooled(lines: Sequence[tuple[Line, Line]]) -> dict[str, Any]:
    """All that is told of one detector and action.

    Args:
        lines: of each configuration, with the detector and without.
    """
    sparse, full = Pairs(), Pairs()
    cells: dict[tuple[str, str], Pairs] = {}
    texts = {
        (plain.cell["dataset"], *at): one.ids
        for _, plain in lines
        if plain.cell["backend"]["name"] == "full" and plain.role == "method"
        for at, one in plain.samples.items()
    }
    apart: dict[str, Pairs] = defaultdict(list)
    for line, plain in lines:
        backend, dataset = line.cell["backend"], line.cell["dataset"]
        pairs = [
            (f"{dataset}/{one.problem}", one, plain.samples[at]) for at, one in line.samples.items()
        ]
        if backend["name"] == "full" and plain.role == "method":
            full += pairs
        elif plain.role == "method":
            sparse += pairs
            apart[dataset] += [
                (name, one, alone)
                for name, one, alone in pairs
                if texts.get((dataset, *alone.at)) != alone.ids
            ]
            # Two of one name and budget may differ in other parameters.
            called = f"{backend['name']} {backend.get('budget')} on {dataset}"
            cells[called, canonical(backend)] = pairs
    missing = sum(not (one.usable and plain.usable) for _, one, plain in [*sparse, *full])
    told = {
        "samples": len(sparse),
        "problems": len({name for name, _, _ in sparse}),
        "missing": missing,
    }
    if missing:
        sparse, full, cells, apart = [], [], {}, {}
    net = _sums((name, int(one.solved) - int(plain.solved), 1) for name, one, plain in sparse)
    changes = [int(one.solved) - int(plain.solved) for _, one, plain in sparse]
    return {
        **told,
        "several": any(one.index for _, one, _ in sparse),
        "fired": sum(one.fired for _, one, _ in sparse),
        "tokens": _share(_sums((n, one.paid, plain.paid) for n, one, plain in sparse), less=True),
        "loops": _share(_sums((n, one.loop, plain.loop) for n, one, plain in sparse), less=True),
        "tails": _share(_sums((n, one.tail, plain.tail) for n, one, plain in sparse), less=True),
        "wasted_loops": sum(plain.loop for _, _, plain in sparse),
        "wasted_tails": sum(plain.tail for _, _, plain in sparse),
        "solved": sum(plain.solved for _, _, plain in sparse),
        "lost": changes.count(-1),
        "gained": changes.count(1),
        "net": _share(net),
        "differing": sum(map(len, apart.values())),
        "net_differing": _share(
            _sums(
                (name, int(one.solved) - int(plain.solved), 1)
                for pairs in apart.values()
                for name, one, plain in pairs
            )
        ),
        "levels": [
            {
                "dataset": dataset,
                "solved": sum(plain.solved for _, _, plain in pairs),
                "lost": sum(plain.solved and not one.solved for _, one, plain in pairs),
                "gained": sum(one.solved and not plain.solved for _, one, plain in pairs),
                "lost_share": _lost_share(
                    [(name, not one.solved) for name, one, plain in pairs if plain.solved]
                ),
            }
            for dataset, pairs in apart.items()
            if pairs
        ],
        "cells": len(cells),
        "losing": _losing(cells),
        "full": _false_stops(full),
    }


def _sums(items: Iterable[tuple[str, float, float]]) -> Sums:
    """Two sums by problem."""
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for name, first, second in items:
        found[name] = (found[name][0] + first, found[name][1] + second)
    return found


def _share(sums: Sums, less: bool = False) -> dict[str, Any]:
    """First over second, or one less that, over all; bounds by problems drawn again."""
    first, second = (np.array([pair[i] for pair in sums.values()]) for i in (0, 1))
    if less:
        first = second - first
    if not second.sum():
        return _NONE
    found = float(first.sum() / second.sum())
    if not always_some(list(zip(first.tolist(), second.tolist(), strict=True))):
        return {"estimate": found, "low": None, "high": None}
    low, high = interval(
        len(sums), lambda drawn: first[drawn].sum(axis=1) / second[drawn].sum(axis=1)
    )
    return {"estimate": found, "low": low, "high": high}


def _lost_share(lost: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    """Share lost, by as many traces as would be as sure of it if no two had a problem in common."""
    if not lost:
        return _NONE
    names = sorted({name for name, _ in lost})
    values = np.array([float(one) for _, one in lost])
    owners = np.array([names.index(name) for name, _ in lost])
    n, share = float(len(values)), float(values.mean())
    least = float(len(names))
    if len(names) == 1 or not values.var():
        n = least
    elif least < n:
        rest = np.bincount(owners, weights=values - share)
        of_problems = (rest**2).sum() * least / (least - 1) / n**2  # the mean's variance
        n = float(np.clip(values.var(ddof=1) / of_problems if of_problems else n, least, n))
    low, high = wilson(share * n, n)
    return {"estimate": share, "low": low, "high": high}


def _losing(cells: Mapping[tuple[str, str], Pairs]) -> list[str]:
    """Cells with a net loss whose exact p withstands Holm: each set it is in is rejected whole."""
    moved = {
        name: [int(one.solved) - int(plain.solved) for _, one, plain in pairs]
        for name, pairs in cells.items()
    }
    p = {name: mcnemar(each.count(-1), each.count(1)) for name, each in moved.items()}
    ordered = sorted(p.values())
    rejected = 0
    while rejected < len(ordered) and ordered[rejected] * (len(ordered) - rejected) <= 0.05:
        rejected += 1
    least = ordered[rejected] if rejected < len(ordered) else 2.0
    return [name[0] for name, each in moved.items() if sum(each) < 0 and p[name] < least]


def _false_stops(full: Pairs) -> dict[str, Any]:
    ended: dict[str, list[bool]] = defaultdict(list)
    for name, one, plain in full:
        if plain.status == "finished":
            ended[name].append(one.fired)
    fired = [stop for stops in ended.values() for stop in stops]
    n, stopped = len(fired), sum(fired)
    # The rate at which so few stops have a chance of one in twenty.
    high = float(stats.beta.ppf(0.95, stopped + 1, n - stopped)) if stopped < n else 1.0
    return {
        "problems": len(ended),
        "traces": n,
        "stopped": stopped,
        "problems_stopped": sum(any(stops) for stops in ended.values()),
        "rate": float(np.mean([np.mean(stops) for stops in ended.values()])) if ended else None,
        "high": (high - 1e-8, high + 1e-8) if len(ended) == n else (0.0, 1.0),
    }
