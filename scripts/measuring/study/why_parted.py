"""What heals runs that parted: `lil why` over N parted runs of a store, drawn by seed, by method.

The noise control reads every key, so there is nothing to put back, and it is left out. Lines are
appended as runs are done, and a later call goes on behind them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from study_texts import METHODS

from attention.errors import InvalidValue
from experiments.cli.nouns.why import why
from experiments.grid.models import LoadedModel
from experiments.grid.plan import Run
from experiments.report.statistics import wilson
from experiments.store.study import Study
from experiments.why.parting import parting


def main() -> None:
    """Measure, append, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--of", nargs="*", help="methods; default: all of the store")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=Path, help="default: STORE/why.jsonl")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    file = args.lines or args.store / "why.jsonl"
    study = Study.open(args.store)
    done: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            one = json.loads(line)
        except json.JSONDecodeError:  # the end of a call that was killed
            continue
        if one["seed"] == args.seed:
            done[one["id"]] = one
    chosen = drawn(study, args.runs, args.seed, args.of)
    shelf: dict[str, LoadedModel] = {}
    for run in chosen:
        if run.id in done:
            continue
        started = time.perf_counter()
        try:
            told = why(study, run, seed=args.seed, shelf=shelf)
        except InvalidValue as error:
            told = {"id": run.id, "backend": run.cell.backend["name"], "refused": str(error)}
        for heavy in ("by_token", "by_head", "texts"):
            told.pop(heavy, None)
        told |= {"seconds": time.perf_counter() - started, "seed": args.seed}
        done[run.id] = told
        with file.open("a") as out:
            out.write(json.dumps(told) + "\n")
    found = summary([*done.values()])
    if args.json:
        json.dump(found, sys.stdout)
        print()
        return
    for name, row in found.items():
        print(name, json.dumps(row))


def drawn(study: Study, count: int, seed: int, of: Collection[str] | None = None) -> list[Run]:
    """Parted greedy runs, as many of each method as there are, or an even share.

    Args:
        study: of the store.
        count: how many at most.
        seed: of the draw.
        of: methods; None for all.
    """
    by_method: dict[str, list[Run]] = defaultdict(list)
    for run in study.runs():
        cell = run.cell
        mine, full = study.served(run), study.full(run)
        if cell.backend["name"] == "full" or cell.sampling["temperature"] or mine is None:
            continue
        if full is None or full.failed:
            continue
        if parting(full.trace().new_ids, mine.trace().new_ids) is not None:
            by_method[cell.backend["name"]].append(run)
    dice = random.Random(seed)
    for runs in by_method.values():
        runs.sort(key=lambda run: run.id)
        dice.shuffle(runs)
    # Only now, so that the same runs are drawn of a method whichever others are wanted.
    for name, runs in by_method.items():
        if runs[0].cell.role == "null" or (of and name not in of):
            runs.clear()
    found: list[Run] = []
    while len(found) < count and any(by_method.values()):
        for name in sorted(by_method):
            if by_method[name] and len(found) < count:
                found.append(by_method[name].pop())
    return found


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """By method, and of the methods together in which keys can be put back.

    Args:
        lines: of `why`; healed is counted by how many keys a layer are put back, those that were
            missed most and those drawn at random, and for one key how often only one of both heals.
    """
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in lines:
        groups[one["backend"]].append(one)
        if one["backend"] in METHODS and one.get("put_back"):
            groups["methods"].append(one)
    found = {}
    for name, group in groups.items():
        good = [one for one in group if one.get("reproduced")]
        healed: dict[str, list[bool]] = defaultdict(list)
        agreed: list[int] = []
        to_the_end = 0
        alone = Counter[bool]()
        for one in good:
            for tried in one["put_back"]:
                key = f"{tried['keys']} {'drawn' if tried['control'] else 'most missed'}"
                healed[key].append(tried["healed"])
            first = {x["control"]: x["healed"] for x in one["put_back"] if x["keys"] == 1}
            if len(set(first.values())) == 2:
                alone[next(control for control, well in first.items() if well)] += 1
            for tried in one["put_back"]:
                if tried["healed"] and tried["keys"] == 1 and not tried["control"]:
                    agreed.append(tried["agreed_tokens"])
                    to_the_end += tried["to_the_end"]
        total = sum(one["missed"] for one in good)
        inside = sum(one["missed"] * (one["missed_in_prompt"] or 0) for one in good)
        found[name] = {
            "runs": len(group),
            "refused": sum("refused" in one for one in group),
            "not_reproduced": sum(one.get("reproduced") is False for one in group),
            "seconds_each": sum(one["seconds"] for one in good) / len(good) if good else None,
            "healed": {
                key: {"of": len(x), **asdict(wilson(sum(x), len(x)))} for key, x in healed.items()
            },
            "only_missed": alone[False],
            "only_drawn": alone[True],
            "agreed": statistics.median(agreed) if agreed else None,
            "to_the_end": to_the_end,
            "missed_in_prompt": inside / total if total else None,
            "missed_in_output": 1 - inside / total if total else None,
        }
    return found


if __name__ == "__main__":
    main()
