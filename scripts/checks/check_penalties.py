"""Compares every penalty with its naive oracle on random streams and prints the differences.

    python scripts/checks/check_penalties.py                     # 10,000 streams of each, minutes
    python scripts/checks/check_penalties.py --streams 300
    python scripts/checks/check_penalties.py --kind "lz derived" --seed 7

The oracles live with the tests (tests/lil/oracles) and share no code with the package. Streams
repeat themselves: few different tokens, one block over and over, chunks copied from before, and
noise; 5 to 200 different tokens, for the LZ penalty windows of 1 to 600. They come as ragged padded
batches with their padding masked or named by its id, rows of which end early. Exit code 1 if scores
differ by more than their type can tell.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from lil import penalties

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lil.oracles import compare


def check(kind: str, streams: int, seed: int, report: Table) -> bool:
    """Compare one kind of penalty and add its line; whether all scores were equal."""
    started = time.perf_counter()
    worst, longest, scored = compare.Difference(0.0, 0.0), 0, 0
    bar = Console(stderr=True)
    cases = list(compare.cases(kind, streams, seed))
    for case in track(cases, description=kind, transient=True, console=bar):
        worst = max(worst, case.difference(penalties.get), key=lambda d: d.of_tolerance)
        rows = zip(case.batch.prompts, case.batch.new, strict=True)
        longest = max(longest, *(len(prompt) + len(new) for prompt, new in rows))
        scored += len(case.checked) * len(case.batch.prompts) * case.V
    ok = worst.of_tolerance <= 1
    report.add_row(
        kind,
        f"{streams:,}",
        f"{len(cases):,}",
        f"{longest:,}",
        f"{scored:,}",
        f"{worst.absolute:.1e}" if ok else f"[red]{worst.absolute:.1e}[/red]",
        f"{time.perf_counter() - started:.0f}",
    )
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(description="Largest difference of each penalty to its oracle")
    parser.add_argument("--kind", choices=compare.KINDS, help="only this one")
    parser.add_argument("--streams", type=int, default=10_000, help="of each (10,000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.streams < 1:
        parser.error(f"--streams {args.streams}: expected at least 1")

    torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it gives
    report = Table(title="Penalties beside their oracles", box=None)
    report.add_column("penalty")
    for name in ("streams", "batches", "longest", "scores compared", "largest difference", "s"):
        report.add_column(name, justify="right")
    kinds = [args.kind] if args.kind else compare.KINDS
    good = [check(kind, args.streams, args.seed, report) for kind in kinds]
    Console(width=None if sys.stdout.isatty() else 120).print(report)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
