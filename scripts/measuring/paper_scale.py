"""Make a store of the size of the paper's study; measure what open, replay and report of it cost.

    python scripts/measuring/paper_scale.py /tmp/paper                # 30,600 runs of 6,000 tokens
    python scripts/measuring/paper_scale.py /tmp/paper --problems 10  # a twentieth of it

Nothing is decoded: three models, three data sets, 17 configurations of attention, texts of random
words that get repetitive in some, answers right and wrong. Kept where the folder is there already.
A sweep keeps the samples of each configuration as it ends; here a command of its own does so before
the report. Each command runs in a process of its own; its seconds and its largest resident memory,
that of its helpers added, are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout this script belongs to

import numpy as np

from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.grid.identity import Cell, digest
from experiments.grid.plan import Plan, PlannedProblem, build_backends, build_cells
from experiments.grid.presets import load
from experiments.store import manifest
from experiments.store.store import Store
from lil import Cost, Trace

TOKENS = 6000
EVERY = 50
VOCABULARY = 32_000
SWEEP = "20260101T000000Z-0000000"


@dataclass(frozen=True)
class Words:
    """A vocabulary of random words, one a token id."""

    pieces: tuple[bytes, ...]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Words:
        lengths = rng.integers(2, 7, VOCABULARY)
        letters = rng.integers(97, 123, int(lengths.sum()), dtype=np.uint8).tobytes()
        ends = list(accumulate(lengths.tolist()))
        starts = [0, *ends[:-1]]
        return cls(tuple(b" " + letters[a:b] for a, b in zip(starts, ends, strict=True)))


def plan_of(config: Config, problems: int) -> Plan:
    """The grid of the `paper` preset over made-up models and problems."""
    backends = build_backends(config)
    cells: list[Cell] = []
    items = {}
    for model in config.models:
        cells += build_cells(config, model, digest(model), config.datasets, backends)
        for dataset in config.datasets:
            items[model, dataset] = tuple(
                PlannedProblem(f"{dataset}-{i}", digest([model, dataset, i]), str(i * 7), "math")
                for i in range(problems)
            )
    return Plan(tuple(cells), items, 1)


def trace(words: Words, rng: np.random.Generator, tokens: int, answer: str, budget: int) -> Trace:
    """A trace of so many tokens, the last third in a loop in one of three, ending in an answer."""
    ids = rng.integers(0, VOCABULARY, tokens)
    if rng.random() < 1 / 3:
        period = int(rng.integers(3, 200))
        start = 2 * tokens // 3
        ids[start:] = np.resize(ids[start : start + period], tokens - start)
    pieces = [words.pieces[i] for i in ids]
    pieces[-2:] = [f"\n\\boxed{{{answer}}}".encode(), b"</s>"]
    sizes = list(accumulate(len(piece) for piece in pieces))
    at = [*range(EVERY, tokens, EVERY), tokens]
    layers_heads = 28 * 8
    keys = float(budget or tokens / 2) * layers_heads
    checks = tuple(Cost(n, keys * n, 4096 * n, 0.02 * n, float(keys * n), None) for n in at)
    return Trace(
        prompt_ids=tuple(range(120)),
        new_ids=tuple(ids.tolist()),
        prompt_bytes=b" ".join(words.pieces[:120]),
        pieces=tuple(pieces),
        finish="eos",
        evidence=None,
        curve=tuple((n, sizes[n - 1], sizes[n - 1] // 2) for n in at),
        checks=checks,
        keys_kept_max=budget or tokens,
        keys_read_max=budget or tokens,
        keys_read_mean=float(budget or tokens / 2),
        dense_layer_keys_read_mean=None,
        cache_bytes_peak=4096 * tokens,
        prefill_sec=0.1,
        decode_sec=0.02 * tokens,
    )


def make(folder: Path, problems: int, tokens: int) -> None:
    """Fill a store; where one is there, leave it."""
    if folder.exists():
        return
    config = load("paper", {"limit": problems})
    plan = plan_of(config, problems)
    rng = np.random.default_rng(0)
    words = Words.drawn(rng)
    with Store(folder) as store:
        for cell in plan.cells:
            for run in plan.runs(cell):
                length = max(100, int(rng.normal(tokens, tokens / 6)))
                right = rng.random() < (0.8 if cell.is_full else 0.7)
                answer = str(run.problem.gold) if right else str(rng.integers(10_000))
                made = trace(words, rng, length, answer, cell.budget or 0)
                meta = {
                    "cell": cell.to_dict(),
                    "item_id": run.item_id,
                    "prompt": run.problem.prompt,
                    "sample_index": 0,
                    "status": "ok",
                    "finish": made.finish,
                    "tokens": made.tokens,
                    "message": None,
                    "detector": None,
                    "signals": [],
                    "sweep": SWEEP,
                    "batch_size": 1,
                    "workers": 1,
                }
                store.append(run.id, meta, made.to_dict())
    values: dict[str, Any] = {
        "status": "finished",
        "preset": "paper",
        "arguments": ["sweep", "--preset", "paper"],
        "config": config.to_dict(),
        "plan": plan.to_dict(),
        "detectors": [{"name": d.name, **d.params()} for d in build_detectors(config)],
        "started": manifest.now(),
        "ended": manifest.now(),
    }
    manifest.write(folder, SWEEP, values)


def measured(arguments: list[str]) -> dict[str, Any]:
    """Seconds and peak memory of one command, with that of the processes it started.

    Memory is the largest sum of resident sets, looked at twenty times a second.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(arguments, stdout=said, stderr=subprocess.STDOUT)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            time.sleep(0.05)
        seconds = time.perf_counter() - start
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(arguments)} failed:\n{said.read().decode()}")
    return {"seconds": round(seconds, 1), "peak_gb": round(peak / 2**30, 2)}


def _resident(pid: int) -> int:
    """Resident bytes of a process and its children; pages that they share count once a process."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        try:
            pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
            children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
        except (OSError, IndexError):  # it has ended
            continue
        total += pages * os.sysconf("SC_PAGE_SIZE")
        left += map(int, children)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--problems", type=int, default=200, help="of each data set (200)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an output (6000)")
    args = parser.parse_args()
    make(args.store, args.problems, args.tokens)
    store = str(args.store)
    lil = [sys.executable, "-m", "experiments.cli"]
    opening = "import pathlib, sys; from experiments.store.study import Study; "
    opening += "study = Study.open(pathlib.Path(sys.argv[1]))"
    keeping = "; import os; from experiments.grid.detectors import build_detectors; "
    keeping += "study.samples(build_detectors(study.config), texts=False, workers=os.cpu_count())"
    commands = {
        "open": [sys.executable, "-c", opening, store],
        "replay": [*lil, "replay", store, "--f", "500"],
        "keep samples": [sys.executable, "-c", opening + keeping, store],
        "report": [*lil, "report", store],
        "report again": [*lil, "report", store],
    }
    found = {name: measured(command) for name, command in commands.items()}
    print(
        json.dumps(
            {
                "runs": args.problems * 153,
                "cpus": os.cpu_count(),
                "machine": platform.machine(),
                **found,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
