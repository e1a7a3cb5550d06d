"""Compares every backend with its naive oracle and prints the largest logit differences.

    python scripts/checks/check_oracles.py            # the whole grid, minutes
    python scripts/checks/check_oracles.py --quick    # every method and budget once per dtype

The oracles live with the tests (tests/attention/oracles) and share no code with the package, so
they are imported from there by path. Each comparison teacher-forces 200 random tokens through a
tiny random model (Llama, Qwen2, Qwen3; query/KV heads 4/4, 4/2, 4/1) and compares the logits of
every step, and which positions were kept and read. Where rounding would decide which token wins
(two scores closer than the dtype can tell) other tokens are drawn; the table counts such draws.
Exit code 1 if a difference exceeds its tolerance or positions differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import attention

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.attention.oracles.compare import (  # noqa: E402 - found by the path above
    STEPS,
    TOLERANCE,
    Case,
    Difference,
    decisive,
    difference,
)
from tests.attention.oracles.grid import full_grid, further_grid, sample  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Largest logit difference of each backend to its naive oracle."
    )
    parser.add_argument(
        "--quick", action="store_true", help="every method and budget once per dtype"
    )
    parser.add_argument("--method", help="only this method, e.g. h2o")
    args = parser.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 120)
    torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it gives
    cases = sample() if args.quick else [*full_grid(), *further_grid()]
    if args.method is not None:
        methods = sorted({case.method for case in cases})
        if args.method not in methods:
            parser.error(f"--method {args.method!r}: expected one of {', '.join(methods)}")
        cases = [case for case in cases if case.method == args.method]

    started = time.perf_counter()
    results = run(cases, console)
    console.print(table(results))
    return verdict(results, time.perf_counter() - started, console)


Result = tuple[Case, Difference, int]


def run(cases: list[Case], console: Console) -> list[Result]:
    """(case, difference, seeds passed over) for each case."""
    results = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=f"{case.method} {case.family}")
            case, skipped = decisive(case)
            results.append((case, difference(case, attention.get), skipped))
            progress.advance(task)
    return results


def table(results: list[Result]) -> Table:
    """One line per comparison."""
    view = Table(title=f"Largest logit difference to the oracle over {STEPS} decode steps")
    for name in ("family", "method", "heads", "budget", "layers", "sharp", "prompt", "dtype"):
        view.add_column(name)
    for name in ("difference", "positions", "redrawn"):
        view.add_column(name, justify="right")
    for case, found, skipped in results:
        params = dict(case.params)
        budget = str(params.pop("budget", "-"))
        extra = "".join(f", {name} {value}" for name, value in params.items())
        ok = found.logits <= TOLERANCE[case.dtype]
        view.add_row(
            case.family,
            case.method + extra,
            f"{case.heads[0]}/{case.heads[1]}",
            budget,
            str(case.layers),
            f"{case.sharp:g}",
            str(case.prompt),
            str(case.dtype).removeprefix("torch."),
            f"{found.logits:.1e}" if ok else f"[red]{found.logits:.1e}[/red]",
            "equal" if found.first is None else "[red]differ[/red]",
            str(skipped),
        )
    return view


def verdict(results: list[Result], seconds: float, console: Console) -> int:
    """The maximum of each dtype, what failed, and the exit code."""
    failed = [(case, found) for case, found, _ in results if not found.within(case.dtype)]
    for case, found in failed:
        console.print(f"[red]FAIL[/red] {case} seed {case.seed}: {found.logits:.1e}", end="")
        console.print(f" at step {found.step}; {found.first or 'positions equal'}")
    for dtype, tolerance in TOLERANCE.items():
        worst = max((r for r in results if r[0].dtype is dtype), key=lambda r: r[1].logits)
        bad = sum(case.dtype is dtype for case, _ in failed)
        word = "[red]fail[/red]" if bad else "[green]pass[/green]"
        name = str(dtype).removeprefix("torch.")
        console.print(
            f"{name}: maximum {worst[1].logits:.2e} ({worst[0]}), allowed {tolerance:.0e}: {word}"
        )
    redrawn = sum(skipped for *_, skipped in results)
    console.print(
        f"{len(results)} comparisons, {len(failed)} failed, {redrawn} token draws replaced, "
        f"{seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
