"""Does fidelity step by step say how long outputs get, and how many answers are lost?

    python scripts/measuring/acceptance_readings.py STORE --problems 40 > FILE
    python scripts/measuring/acceptance_readings.py STORE --also window,tova --budgets 384 > FILE
    python scripts/pages/acceptance_page.py --take reasoner FILE    # the tables of docs/lossless.md

For every sparse cell of a store: the share of full attention's tokens that it would have chosen on
the first problems (`lil acceptance`), and from its own stored texts of the same problems the
geometric mean of the length ratio where both solve, and the share solved. Then the rank correlation
(Spearman) of the first with both, over cells; intervals resample problems. A text that full
attention itself was cut in counts for nothing. Methods of `--also` were not decoded: they have the
share alone, and no part in the correlations.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import lil
from attention import Backend
from attention.errors import InvalidValue
from experiments import bench
from experiments.grid import models
from experiments.grid.stored import model_of
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import wilson
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study
from experiments.why import fidelity

DRAWS = 2000
#: Cells with fewer problems that both solve have no length ratio.
FEWEST = 5
Floats = NDArray[np.float64]


class Measured(NamedTuple):
    """A cell, number by number for each problem.

    Attributes:
        about: which cell.
        accepted, steps: of full attention's text.
        logs: logarithm of the length ratio; NaN where not both solve; none where nothing was
            decoded.
        solved: 1 or 0; none where nothing was decoded.
    """

    about: dict[str, Any]
    accepted: Floats
    steps: Floats
    logs: Floats
    solved: Floats


def measured(study: Study, problems: int, also: Sequence[Backend] = ()) -> list[Measured]:
    """Every sparse cell of the store, and other methods on the same texts.

    Raises:
        InvalidValue: no greedy texts of full attention, or several data sets.
    """
    found = fidelity.texts(study, problems)
    if len(found) != 1:
        allowed = "full attention's texts of one model and data set"
        raise InvalidValue("store", str(study.folder), allowed)
    ((cell, traces),) = found
    by_cell: dict[str, dict[str, Sample]] = {}
    for sample in study.samples([]).samples:
        if sample.penalty == "none" and is_usable(sample) and sample.item_id in traces:
            by_cell.setdefault(_name(sample), {})[sample.item_id] = sample
    full = by_cell["full"]
    items = [one for one in traces if one in full and full[one].status == "ok"]
    model = model_of(study.config, cell, {}).model
    rows = []
    for other in study.plan.cells:
        if other.is_full or other.role == "null" or other.penalties:
            continue
        backend = study.backend(other)
        first = next(iter(study.plan.runs(other)))
        mine = next(some for some in by_cell.values()
                    if first.item_id in some and _is_of(some[first.item_id], other))  # fmt: skip
        there = [one for one in items if one in mine]
        print(f"{other.told}: {len(there)} problems", file=sys.stderr, flush=True)
        read = lil.acceptance(model, [traces[one] for one in there], backend)
        pairs = [(mine[one], full[one]) for one in there]
        logs = [
            math.log(m.tokens / t.tokens) if m.correct and t.correct else math.nan for m, t in pairs
        ]
        about = {"backend": backend.name, "budget": other.budget, "role": other.role}
        kept = dict(other.backend).get("keep_prompt")
        rows.append(
            Measured(
                {**about, **({"keep_prompt": True} if kept else {}), **fidelity.counted(read)},
                np.array([one.accepted for one in read], dtype=np.float64),
                np.array([one.steps for one in read], dtype=np.float64),
                np.array(logs),
                np.array([float(bool(m.correct)) for m, _ in pairs]),
            )
        )
    for backend in also:
        print(f"{backend.name} {backend.budget}", file=sys.stderr, flush=True)
        read = lil.acceptance(model, [traces[one] for one in items], backend)
        about = {"backend": backend.name, "budget": backend.budget, "role": "not decoded"}
        rows.append(
            Measured(
                about | fidelity.counted(read),
                np.array([one.accepted for one in read], dtype=np.float64),
                np.array([one.steps for one in read], dtype=np.float64),
                *(np.array([]) for _ in range(2)),
            )
        )
    return rows


def _name(sample: Sample) -> str:
    params = json.dumps(dict(sample.backend_params), sort_keys=True)
    return "full" if sample.backend == "full" else f"{sample.backend} {sample.budget} {params}"


def _is_of(sample: Sample, cell: Any) -> bool:
    own = {name: value for name, value in cell.backend.items() if name not in ("name", "budget")}
    given = dict(sample.backend_params)
    return bool(
        sample.backend == cell.backend["name"]
        and sample.budget == cell.budget
        and all(own.get(name) == value for name, value in given.items() if name != "budget")
        and bool(given.get("keep_prompt")) == bool(own.get("keep_prompt"))
    )


def told(cells: Sequence[Measured], seed: int = 0) -> dict[str, Any]:
    """Rows, and rank correlations over cells."""
    bootstrap, rows = Bootstrap(seed), []
    for one in cells:
        share = bootstrap.ratio([*zip(one.accepted.tolist(), one.steps.tolist(), strict=True)])
        both = one.logs[~np.isnan(one.logs)]
        ratio = bootstrap.log_mean(both.tolist())
        solved = wilson(float(one.solved.sum()), len(one.solved)) if len(one.solved) else None
        few = len(both) < FEWEST
        rows.append(
            one.about
            | {"share": _interval(share), "solved_by_both": len(both)}
            | {
                "length_ratio": None if few else _interval(ratio),
                "accuracy": solved and _interval(solved),
            }
        )
    return {
        "problems": max((len(one.solved) for one in cells), default=0),
        "cells": rows,
        "correlations": [
            {"with": name, "of": kind, **correlation(some, name, seed)}
            for kind, some in (
                ("methods", [one for one in cells if one.about["role"] == "method"]),
                ("all", [one for one in cells if one.about["role"] != "not decoded"]),
            )
            for name in ("length_ratio", "accuracy")
        ],
    }


def _interval(one: Any) -> list[float | None]:
    return [one.estimate, one.low, one.high]


def correlation(cells: Sequence[Measured], name: str, seed: int) -> dict[str, Any]:
    """Spearman's of the share chosen with another number, over cells, with its interval.

    Cells without enough problems that both solve are left out of that with the length ratio.
    """
    if name == "length_ratio":
        cells = [one for one in cells if (~np.isnan(one.logs)).sum() >= FEWEST]
    if len({one.solved.size for one in cells}) != 1 or len(cells) < 4:
        return {"cells": len(cells), "rho": None, "low": None, "high": None}
    n, random = cells[0].solved.size, np.random.default_rng(seed)
    drawn = [_rho(cells, name, random.integers(0, n, n)) for _ in range(DRAWS)]
    known = [one for one in drawn if not math.isnan(one)]
    low, high = np.percentile(known, [2.5, 97.5]) if len(known) > DRAWS / 2 else (None, None)
    rho = _rho(cells, name, np.arange(n))
    return {
        "cells": len(cells),
        "rho": None if math.isnan(rho) else rho,
        "low": None if low is None else float(low),
        "high": None if high is None else float(high),
    }


def _rho(cells: Sequence[Measured], name: str, those: NDArray[np.int64]) -> float:
    """Of these problems; NaN where a number is not there or all are alike."""
    from scipy.stats import rankdata

    share = [one.accepted[those].sum() / one.steps[those].sum() for one in cells]
    if name == "accuracy":
        other = [one.solved[those].mean() for one in cells]
    else:
        logs = [one.logs[those] for one in cells]
        if any(np.isnan(some).all() for some in logs):
            return math.nan
        other = [np.nanmean(some) for some in logs]
    first, second = rankdata(share), rankdata(other)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def _names(text: str) -> list[str]:
    return text.split(",")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--also", type=_names, default=[], help="methods that were not decoded")
    parser.add_argument("--budgets", type=_names, default=[], help="of those")
    args = parser.parse_args(argv)
    models.quiet_transformers()
    also = [bench.method(name, int(budget)) for name in args.also for budget in args.budgets]
    found = told(measured(Study.open(args.store), args.problems, also))
    print(json.dumps(found | {"store": args.store.name}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
