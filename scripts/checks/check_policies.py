"""Stored texts of the shipped reasoner decoded again by the naive oracles, end to end.

    python scripts/checks/check_policies.py lil-out/study/hard-1000 --problems 50

The oracles are numpy and loops, in float64, and share no code with the package; each decodes its
own tokens, one by one, to the end of the stored text. Tokens have to be the stored ones. Where they
part, the gap between the two likeliest tokens is told: below `TIE` rounding decides, which float32
does otherwise. Lines are appended to STORE/policies.jsonl as texts are done, and a later call goes
on behind them. Exit code 1 where texts part without a tie.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
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


def chosen(study: Study, problems: int) -> list[Run]:
    """Runs of the five policies on the first problems, problem by problem."""
    by_item: dict[str, list[Run]] = defaultdict(list)
    for run in study.runs():
        cell = run.cell
        plain = not cell.penalties and not cell.sampling["temperature"] and cell.role == "method"
        if plain and cell.backend["name"] in METHODS and not cell.backend.get("keep_prompt"):
            by_item[run.item_id].append(run)
    return [run for runs in list(by_item.values())[:problems] for run in runs]


def main(argv: Sequence[str] | None = None) -> int:
    """Decode, append, summarise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--longest", type=int, help="texts with more tokens are left out")
    parser.add_argument("--seconds", type=float, help="begin no text after so many")
    args = parser.parse_args(argv)
    try:
        study = Study.open(args.store)
    except InvalidValue as error:
        print(f"check_policies: {error}", file=sys.stderr)
        return 2
    file, started = args.store / "policies.jsonl", time.monotonic()
    known = file.read_text().splitlines() if file.exists() else []
    done = {one["id"]: one for one in map(json.loads, known)}
    source = models.find(study.config.models[0], study.config.revision, here=True)
    loaded = models.load(source, "float64", "cpu")
    make_exact(loaded.model)
    runs = chosen(study, args.problems)
    for run in runs:
        record = study.served(run)
        late = args.seconds is not None and time.monotonic() - started > args.seconds
        if run.id in done or record is None or record.failed or late:
            continue
        trace = record.trace()
        if args.longest is not None and trace.tokens > args.longest:
            continue
        found = decoded_again(loaded.model, run, trace.prompt_ids, trace.new_ids)
        told = {"id": run.id, "method": run.cell.told, "tokens": trace.tokens, **found}
        done[run.id] = told
        with file.open("a") as out:
            out.write(json.dumps(told) + "\n")
    return summary([done[run.id] for run in runs if run.id in done], len(runs))


def summary(found: Sequence[dict[str, Any]], asked: int) -> int:
    """Print by method and budget; 1 where a text parts without a tie."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    tokens: Counter[str] = Counter()
    for one in found:
        kind = "equal" if one["parts"] is None else "tie" if one["gap"] < TIE else "parts"
        counts[one["method"]][kind] += 1
        tokens[one["method"]] += one["tokens"] if one["parts"] is None else one["parts"]
    for name, of in counts.items():
        print(f"{name}: {of['equal']} texts equal, {of['tie']} part at a tie, {of['parts']} part; "
              f"{tokens[name]:,} tokens equal")  # fmt: skip
    every = sum(counts.values(), Counter[str]())
    print(f"{len(found)} of {asked} texts: {every['equal']} equal, {every['tie']} at a tie, "
          f"{every['parts']} parted; {sum(tokens.values()):,} tokens equal")  # fmt: skip
    return 1 if every["parts"] else 0


if __name__ == "__main__":
    sys.exit(main())
