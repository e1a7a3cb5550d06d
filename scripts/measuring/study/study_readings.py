"""What stores of the study of the reasoner say: every number that its page prints.

    python scripts/measuring/study/study_readings.py lil-out/study/hard-1000 --json > hard.json

Stores are those of `measure_study.py`. Nothing is decoded. Each store is read at every cap; every
cell stands beside full attention on the same problems, and so does the null (`dither`), which goes
through the same reading and the same rules. Constants behind eFLOPs stand in the document.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from comparisons import MARGIN, alone, compared, ended_at_first, interval, pooled, shares
from study_claims import break_even, changes, claim, is_free, null_worlds, with_holm
from study_penalties import penalised
from study_texts import (
    INTENSITY,
    Cell,
    Prices,
    Row,
    Text,
    caps_of,
    cell_of,
    is_method,
    paired,
    texts,
)

from attention.errors import InvalidValue
from experiments.grid.detectors import build_detectors
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import change_p
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

#: A false stop in no more than this share of full attention's texts, by the upper bound.
FALSE_STOPS = 0.01
#: Whose p are corrected within a family; None: answers lost and gained.
OUTCOMES = ("ratio_solved", "ratio_all", "until_right", "after_right", None)


def detected(
    studies: Sequence[Study],
    cells: Mapping[str, Mapping[Cell, Mapping[str, Text]]],
    bootstrap: Bootstrap,
) -> list[Row]:
    """Every detector over the methods' texts, and its false stops under full attention."""
    from scipy.stats import beta

    groups: dict[tuple[str, str, str], dict[tuple[Cell, str], Sample]] = defaultdict(dict)
    for study in studies:
        for sample in study.samples(build_detectors(study.config)).samples:
            if sample.detector != "none" and sample.penalty == "none" and is_usable(sample):
                key = (sample.dataset, sample.detector, sample.action)
                groups[key][cell_of(sample), sample.item_id] = sample
    # A false stop is one whatever follows: an action that few texts have is bound by all of them.
    honest: dict[tuple[str, str], dict[str, Sample]] = defaultdict(dict)
    for (level, detector, _), some in groups.items():
        for (cell, item), one in some.items():
            if cell[0] == "full":
                honest[level, detector].setdefault(item, one)
    rows = []
    for (level, detector, action), some in groups.items():
        full = [*honest[level, detector].values()]
        false = sum(one.stopped_at is not None for one in full)
        bound = float(beta.ppf(0.975, false + 1, len(full) - false)) if false < len(full) else 1.0
        mine = [
            (under, cells[level][cell][item])
            for (cell, item), under in some.items()
            if is_method(cell) and item in cells[level].get(cell, {})
        ]
        fired = [(under, one) for under, one in mine if under.stopped_at is not None]
        moved = [(under.item_id, bool(under.correct) - one.top.solved) for under, one in mine]
        rows.append({
            "dataset": level, "detector": detector, "action": action, "n": len(mine),
            "fired": len(fired), "false": false, "of_full": len(full), "false_high": bound,
            "same_bound": bound <= FALSE_STOPS,
            "saved": spared(mine, bootstrap), "solved": sum(one.top.solved for _, one in mine),
            "lost": sum(change < 0 for _, change in moved),
            "gained": sum(change > 0 for _, change in moved),
            "p": change_p(moved, bootstrap.seed),
            "right_before": sum(
                (one.top.first_right or math.inf) <= (under.stopped_at or 0)
                for under, one in fired
            ),
        })  # fmt: skip
    for level in {row["dataset"] for row in rows}:
        with_holm([row for row in rows if row["dataset"] == level])
    return rows


def spared(some: Sequence[tuple[Sample, Text]], bootstrap: Bootstrap) -> Row:
    """Share of the tokens that a detector's stops and actions leave unwritten."""
    rows = [(under.item_id, one.top.tokens - (under.paid_tokens or 0), one.top.tokens)
            for under, one in some]  # fmt: skip
    return interval(shares(rows, bootstrap))


def read_stores(folders: Sequence[Path], worlds: int = 100, shape: str | None = None) -> Row:
    """The document of some stores.

    Args:
        folders: of measure_study.py.
        worlds: trials of the null world.
        shape: a model whose numbers cost the same, where theirs is not here.

    Raises:
        InvalidValue: one that cannot be read so.
    """
    studies = [study for folder in folders for study in Study.each(folder)]
    caps = caps_of(studies)
    levels, missing = texts(studies, shape)
    bootstrap = Bootstrap(0)
    threads = int(studies[0].manifest.get("threads") or 1)
    found: Row = {
        "caps": caps, "margin": MARGIN, "missing": missing, "threads": threads,
        "workers": studies[0].config.workers, "intensity": INTENSITY,
        "prices": asdict(Prices.of(studies[0], shape)), "levels": {},
    }  # fmt: skip
    for level, cells in levels.items():
        full = cells[("full", None, False)]
        found["levels"][level] = {
            "full": {cap: alone([*full.values()], cap, threads, bootstrap) | {
                "ended_at_first": ended_at_first(
                    [(item, one.at[cap]) for item, one in full.items()], bootstrap
                )
            } for cap in caps},
            "censored": sum(one.sample.status == "capped" for one in full.values()),
            "at": {cap: at_cap(cells, cap, threads, bootstrap) for cap in caps},
            "null_worlds": null_worlds(
                [changes(paired(some, full), max(caps)) for cell, some in cells.items()
                 if is_method(cell)], worlds, 1
            ),
        }  # fmt: skip
    found["detectors"] = detected(studies, levels, bootstrap)
    found["penalties"] = penalised(studies, levels, bootstrap)
    return json.loads(json.dumps(found))


def read_apart(folders: Sequence[Path], worlds: int = 100, shape: str | None = None) -> Row:
    """The same, each store by a process of its own where no level is in two of them.

    Raises:
        InvalidValue: as `read_stores`.
    """
    if len(folders) == 1:
        return read_stores(folders, worlds, shape)
    with ProcessPoolExecutor(min(len(folders), os.cpu_count() or 1)) as pool:
        given = [([one], worlds, shape) for one in folders]
        parts = [*pool.map(read_stores, *zip(*given, strict=True))]
    return joined(parts)


def joined(parts: Sequence[Row]) -> Row:
    """Documents of other levels as one.

    Raises:
        InvalidValue: one level is in several of them, or they were read or decoded otherwise.
    """
    first, *others = parts
    same = ("caps", "margin", "threads", "workers", "intensity", "prices")
    whole = {**first, "levels": dict(first["levels"]), "detectors": [*first["detectors"]],
             "penalties": [*first["penalties"]]}  # fmt: skip
    for one in others:
        differ = [name for name in same if one[name] != first[name]]
        if differ or whole["levels"].keys() & one["levels"].keys():
            told = ", ".join(differ) or "a level in several of them"
            raise InvalidValue("stores", told, "stores of other levels, decoded alike")
        whole["levels"] |= one["levels"]
        whole["detectors"] += one["detectors"]
        whole["penalties"] += one["penalties"]
        whole["missing"] += one["missing"]
    return whole


def at_cap(
    cells: Mapping[Cell, Mapping[str, Text]], cap: int, threads: int, bootstrap: Bootstrap
) -> Row:
    """Rows of all cells of a level, selection, sparsity and break-even, at one cap."""
    full = cells[("full", None, False)]
    rows: list[Row] = []
    for cell, some in cells.items():
        if cell[0] == "full" or not some:
            continue
        name, budget, kept = cell
        told = {"backend": name, "budget": budget, "kept": kept}
        told["role"] = next(iter(some.values())).sample.role
        told |= alone([*some.values()], cap, threads, bootstrap)
        told["against_full"] = compared(paired(some, full), cap, bootstrap)
        told["solved"] = sum(one.at[cap].solved for one in some.values())
        rows.append(told)
    null = next((row for row in rows if row["role"] == "null"), None)
    families: Sequence[Callable[[Row], bool]] = (
        lambda row: is_method((row["backend"], row["budget"], row["kept"])),
        lambda row: row["role"] == "control" or row["kept"],
    )
    for wanted in families:
        for outcome in OUTCOMES:
            with_holm([row["against_full"] for row in rows if wanted(row)], outcome)
    for row in rows:
        other = None if null is None or row is null else null["against_full"]["ratio_solved"]
        row["said"] = claim(row["against_full"]["ratio_solved"], other)
    # A method beside an oracle, a random sample, the newest tokens alone and its next smaller
    # budget, and with the prompt kept beside the same without.
    own = [cell for cell in cells if is_method(cell)]
    others: Mapping[str, Mapping[Cell, Cell]] = {
        "selection": {cell: ("oracle", cell[1], False) for cell in own},
        "random": {cell: ("random", cell[1], False) for cell in own},
        "window": {cell: ("window", cell[1], False) for cell in own if cell[0] == "sink"},
        "budgets": dict(steps(own)),
        "prompt": {cell: (*cell[:2], False) for cell in cells if cell[2]},
    }  # fmt: skip
    ended = {item: text for item, text in full.items() if text.sample.status != "capped"}
    beside = {
        name: [
            {"backend": cell[0], "budget": cell[1], **compared(
                paired(cells[cell], {item: text for item, text in cells[other].items()
                                     if item in ended}), cap, bootstrap)}
            for cell, other in chosen.items()
            if cells[cell] and cells.get(other)
        ]
        for name, chosen in others.items()
    }  # fmt: skip
    for some in beside.values():
        for outcome in OUTCOMES:
            with_holm(some, outcome)
    methods = [paired(some, full) for cell, some in cells.items() if is_method(cell) and some]
    return {
        "rows": rows,
        "pooled": pooled(methods, cap, bootstrap),
        **beside,
        "sparsity_free": sorted(row["budget"] for row in rows if is_free(row)),
        "break_even": [*break_even(rows)],
    }


def steps(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Each cell of a method and the one with the next smaller budget, where there is one."""
    for name in dict.fromkeys(cell[0] for cell in cells):
        mine = sorted((cell for cell in cells if cell[0] == name), key=lambda cell: cell[1] or 0)
        yield from ((more, less) for less, more in pairwise(mine))


def main(argv: Sequence[str] | None = None) -> int:
    """The document; 2 where a store cannot be read so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stores", nargs="+", type=Path, help="folders of measure_study.py")
    parser.add_argument("--worlds", type=int, default=100, help="trials of the null world")
    parser.add_argument("--shape", help="a model of the same shape, where theirs is not here")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        found = read_apart(args.stores, args.worlds, args.shape)
    except InvalidValue as error:
        print(f"study_readings: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(found))
        return 0
    for level, told in found["levels"].items():
        for row in told["at"][str(max(found["caps"]))]["rows"]:
            one = row["against_full"]["ratio_solved"]
            print(f"{level} {row['backend']} {row['budget'] or ''}: {row['solved']} of {row['n']}, "
                  f"both solve {one['estimate']}, n {one['n']}: {row['said'] or '-'}")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
