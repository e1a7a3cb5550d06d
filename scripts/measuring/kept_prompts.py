"""Two sweeps beside each other, the same but for `keep_prompt`: what keeping the prompt changes.

    python scripts/measuring/kept_prompts.py lil-out/dropped lil-out/kept

Pairs of runs of the same problem, method and budget. By method and budget, data sets together:
accuracy of both and its change; length over full attention's among problems that it and full
attention both solve; keys read per solved problem, kept over dropped. Then `random` against the
strongest other method at each budget, prompts kept. 95% intervals, problems resampled. One JSON
document on standard output, a table on standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.report.aggregate import by_problem, keys_read_of, per_solved_ratio
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import Interval, change_p
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

Place = tuple[str, int]
Pairs = list[tuple[Sample, Sample]]


def runs(folder: Path) -> tuple[dict[Place, list[Sample]], dict[tuple[object, ...], Sample]]:
    """Samples by method and budget, and full attention's by problem.

    Raises:
        RuntimeError: a run is missing or failed.
    """
    found: dict[Place, list[Sample]] = defaultdict(list)
    full = {}
    for sample in Study.open(folder).samples([], texts=False).samples:
        if not is_usable(sample):
            raise RuntimeError(f"{folder}: {sample.backend} {sample.budget} {sample.item_id}")
        if sample.budget is None:
            full[sample.pair] = sample
        else:
            found[sample.backend, sample.budget].append(sample)
    return found, full


def paired(ones: Sequence[Sample], others: Sequence[Sample]) -> Pairs:
    """The same problems of both.

    Raises:
        RuntimeError: they are not of the same problems.
    """
    partner = {other.pair: other for other in others}
    if len(partner) != len(ones):
        raise RuntimeError("the two sweeps are not over the same problems")
    return [(one, partner[one.pair]) for one in ones]


def problem(sample: Sample) -> str:
    return f"{sample.dataset}/{sample.item_id}"


def solved(samples: Sequence[Sample]) -> float:
    return sum(bool(sample.correct) for sample in samples) / len(samples)


def change(pairs: Pairs, bootstrap: Bootstrap) -> dict[str, Any]:
    """Accuracy of the first less that of the second, its exact p, and what it is made of."""
    moved = [(problem(m), int(bool(m.correct)) - int(bool(t.correct))) for m, t in pairs]
    found = bootstrap.ratio(by_problem((name, float(one), 1.0) for name, one in moved))
    return {
        "change": asdict(found),
        "p": change_p(moved, bootstrap.seed),
        "lost": sum(one < 0 for _, one in moved),
        "gained": sum(one > 0 for _, one in moved),
        "problems": len(moved),
    }


def longer(
    samples: Sequence[Sample], full: dict[tuple[object, ...], Sample], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Length over full attention's, mean over problems that both solve."""
    both = [(one, full[one.pair]) for one in samples if one.correct and full[one.pair].correct]
    ratios = by_problem((problem(m), (m.tokens or 0) / (t.tokens or 1), 1.0) for m, t in both)
    return {"longer": asdict(bootstrap.ratio(ratios)), "both": len(both)}


def compared(dropped: Path, kept: Path, seed: int) -> dict[str, Any]:
    bootstrap = Bootstrap(seed)
    without, full = runs(dropped)
    with_it, again = runs(kept)
    rows = []
    for (method, budget), ones in with_it.items():
        others = without[method, budget]
        pairs = paired(ones, others)
        rows.append(
            {
                "method": method,
                "budget": budget,
                "dropped": solved(others),
                "kept": solved(ones),
                **change(pairs, bootstrap),
                "against_full": change([(one, again[one.pair]) for one in ones], bootstrap),
                "longer_dropped": longer(others, full, bootstrap),
                "longer_kept": longer(ones, again, bootstrap),
                "cost": asdict(per_solved_ratio(pairs, keys_read_of, bootstrap)),
            }
        )
    return {"rows": rows, "random": strongest(with_it, bootstrap), "seed": seed}


def strongest(kept: dict[Place, list[Sample]], bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """`random` less the method that solves most beside it, budget by budget."""
    found = []
    for budget in sorted({budget for _, budget in kept}):
        beside = {m: s for (m, b), s in kept.items() if b == budget and m != "random"}
        best = max(beside, key=lambda method: solved(beside[method]))
        pairs = paired(kept["random", budget], beside[best])
        found.append({"budget": budget, "strongest": best, **change(pairs, bootstrap)})
    return found


def told(found: dict[str, Any], scale: float = 1, digits: int = 2) -> str:
    interval = Interval(**found)
    if interval.estimate is None:
        return "-"
    text = f"{scale * interval.estimate:.{digits}f}"
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{scale * interval.low:.{digits}f}, {scale * interval.high:.{digits}f}]"


def shown(found: dict[str, Any]) -> Table:
    table = Table(box=None)
    heads = ("method", "budget", "solved", "kept", "points", "longer", "kept", "cost")
    for name in heads:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in found["rows"]:
        table.add_row(
            row["method"],
            str(row["budget"]),
            f"{row['dropped']:.0%}",
            f"{row['kept']:.0%}",
            told(row["change"], 100, 0),
            told(row["longer_dropped"]["longer"]),
            told(row["longer_kept"]["longer"]),
            told(row["cost"]),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dropped", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = compared(args.dropped, args.kept, args.seed)
    Console(stderr=True, width=120).print(shown(found))
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
