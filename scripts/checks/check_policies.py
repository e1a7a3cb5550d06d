"""Stored texts of the shipped reasoner decoded again by the naive oracles, end to end.

    python scripts/checks/check_policies.py lil-out/study/hard-1000 --problems 50 --workers 2

The oracles are numpy and loops, in float64, and share no code with the package; each decodes its
own tokens, one by one, to the end of the stored text. Tokens have to be the stored ones. Where they
part, the gap between the two likeliest tokens is told: below `TIE` rounding decides, which float32
does otherwise. Lines are appended to a file (STORE/policies.jsonl) as texts are done, and a later
call goes on behind them. Exit code 1 where texts part without a tie.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from attention.errors import InvalidValue  # noqa: E402
from experiments.grid import models  # noqa: E402
from experiments.grid.plan import Run  # noqa: E402
from experiments.store.study import Study  # noqa: E402
from tests.attention.oracles.compare import oracle  # noqa: E402
from tests.attention.oracles.models import make_exact  # noqa: E402

METHODS = ("full", "sink", "h2o", "quest", "infllm")
#: Scores closer than that are one and the same in float32, after some layers.
TIE = 1e-3


@torch.no_grad()
def decoded_again(
    model: Any, run: Run, prompt: Sequence[int], stored: Sequence[int]
) -> dict[str, Any]:
    """The step at which the oracle's text parts from the stored one, and by what, if ever."""
    backend = dict(run.cell.backend)
    method = backend.pop("name")
    naive = oracle(model, method, backend, torch.float64)
    ids = list(prompt)
    for step, token in enumerate(stored):
        scores = np.asarray(naive.forward(ids)[-1], np.float64)
        best = int(scores.argmax())
        if best != token:
            return {"parts": step, "gap": float(scores[best] - scores[token])}
        ids = [best]
    return {"parts": None, "gap": None}


def chosen(store: Path, problems: int) -> list[Run]:
    """Runs of the policies on the first problems, problem by problem, of all sweeps of a store."""
    by_item: dict[str, dict[str, Run]] = defaultdict(dict)
    for study in Study.each(store):
        for run in study.runs():
            cell = run.cell
            plain = not cell.penalties and not cell.sampling["temperature"]
            method = cell.role == "method" and cell.backend["name"] in METHODS
            if plain and method and not cell.backend.get("keep_prompt"):
                by_item[run.item_id].setdefault(run.id, run)
    items = sorted(by_item)[:problems]
    return [run for item in items for run in by_item[item].values()]


def again(store: Path, run: Run, longest: int | None) -> dict[str, Any] | None:
    """The line of one run; None where it is too long or has no text."""
    torch.set_num_threads(1)
    study = _study(store)
    record = study.served(run)
    if record is None or record.failed:
        return None
    trace = record.trace()
    if longest is not None and trace.tokens > longest:
        return None
    model = _model(study.config.models[0], study.config.revision)
    found = decoded_again(model, run, trace.prompt_ids, trace.new_ids)
    return {"id": run.id, "method": run.cell.told, "tokens": trace.tokens, **found}


@lru_cache(1)
def _study(store: Path) -> Study:
    return Study.open(store)


@lru_cache(1)
def _model(name: str, revision: str | None) -> Any:
    model = models.load(models.find(name, revision, here=True), "float64", "cpu").model
    make_exact(model)
    return model


def known(file: Path) -> Iterator[dict[str, Any]]:
    """Lines of an earlier call; the last may be torn, if it was killed."""
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def main(argv: Sequence[str] | None = None) -> int:
    """Decode, append, summarise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--longest", type=int, help="texts with more tokens are left out")
    parser.add_argument("--seconds", type=float, help="begin no text after so many")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lines", type=Path, help="default: STORE/policies.jsonl")
    parser.add_argument("--json", action="store_true", help="counts by method and budget")
    args = parser.parse_args(argv)
    file, started = args.lines or args.store / "policies.jsonl", time.monotonic()
    try:
        runs = chosen(args.store, args.problems)
    except InvalidValue as error:
        print(f"check_policies: {error}", file=sys.stderr)
        return 2
    done = {one["id"]: one for one in known(file)}
    left = iter([run for run in runs if run.id not in done])
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(again, args.store, run, args.longest)
                   for run in islice(left, args.workers)}  # fmt: skip
        while waiting:
            ended = next(as_completed(waiting))
            waiting.remove(ended)
            if (found := ended.result()) is not None:
                done[found["id"]] = found
                with file.open("a") as out:
                    out.write(json.dumps(found) + "\n")
            if args.seconds is None or time.monotonic() - started < args.seconds:
                waiting |= {pool.submit(again, args.store, run, args.longest)
                            for run in islice(left, 1)}  # fmt: skip
    told = counts([done[run.id] for run in runs if run.id in done])
    parted = sum(one["parts"] for one in told.values())
    if args.json:
        print(json.dumps(told))
        return 1 if parted else 0
    for name, one in told.items():
        print(f"{name}: {one['equal']} texts equal, {one['tie']} part at a tie, {one['parts']} "
              f"part; {one['tokens']:,} tokens equal")  # fmt: skip
    print(f"{sum(one['texts'] for one in told.values())} of {len(runs)} texts")
    return 1 if parted else 0


def counts(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By method and budget: texts that are equal, part at a tie or part; tokens until then."""
    told: dict[str, dict[str, int]] = {}
    for one in found:
        kind = "equal" if one["parts"] is None else "tie" if one["gap"] < TIE else "parts"
        empty = dict.fromkeys(("texts", "equal", "tie", "parts", "tokens"), 0)
        at = told.setdefault(one["method"], empty)
        at["texts"] += 1
        at[kind] += 1
        at["tokens"] += one["tokens"] if one["parts"] is None else one["parts"]
    return told


if __name__ == "__main__":
    sys.exit(main())
