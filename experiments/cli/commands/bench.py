"""`lil bench`: a decode step of a method next to a step of full attention."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from experiments.cli.console import Console, table
from experiments.cli.parser import Done, Parser

EXAMPLES = """\
examples:
  lil bench                                       four methods, 8,192 tokens before
  lil bench mine:Mine --budget 512                your own, in mine.py of this folder
  lil bench h2o "quest(page=32)" --context 32768 --batch 4
  lil bench mine:Mine --device cuda --dtype bfloat16 --json

columns, of steps of all methods in turn:
  ms, least ms    median and fastest step, milliseconds; the fastest is disturbed least
  times full      how many times faster than full attention: the median over pairs of steps made
                  directly after each other; below 1 it is slower
  MB              10^6 bytes of keys, values and method state, after the last step

On a machine that others use too, --threads 1 disturbs and is disturbed least.
"""

_SIZES = {
    "budget": (1024, "tokens a decode query may read, for a method that has a budget"),
    "batch": (1, "rows"),
    "context": (8192, "tokens before the first step"),
    "heads": (32, "of queries"),
    "kv_heads": (8, "of keys and values"),
    "head_size": (128, "numbers of a key"),
    "repeats": (32, "timed steps of each; the median counts"),
}


def add_arguments(parser: Parser) -> None:
    """Flags of `lil bench`."""
    own = ["sink", "h2o", "quest", "infllm"]
    methods = f"name or module:Class, parameters in brackets ({' '.join(own)})"
    parser.add_argument("methods", nargs="*", default=own, metavar="METHOD", help=methods)
    for name, (default, line) in _SIZES.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, help=f"{line} ({default})")
    for flag, text, line in (
        ("--dtype", "float32", "float32, float64, bfloat16 or float16"),
        ("--device", "cpu", "cpu or cuda, or auto"),
        ("--engine", "auto", "one of cpp, triton, flash, torch, or auto"),
    ):
        parser.add_argument(flag, default=text, help=f"{line} ({text})")
    threads = "of the CPU (all cores, unless OMP_NUM_THREADS)"
    parser.add_argument("--threads", type=int, metavar="N", help=threads)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Measure and print the numbers and their conditions."""
    from experiments import bench
    from experiments.grid.config import check
    from experiments.grid.models import resolve_device, use_threads
    from experiments.store.manifest import device_name

    names = ("batch", "context", "heads", "kv_heads", "head_size", "dtype", "engine")
    if args.threads is not None:
        use_threads(check({"threads": args.threads}, "--threads")["threads"])
    sizes = {name: getattr(args, name) for name in names}
    shape = bench.Shape(device=resolve_device(args.device), **sizes)
    methods = {entry: bench.sparse(entry, args.budget) for entry in args.methods}
    with Console(stderr=True).status("measuring"):
        rows = bench.decode_steps(methods, shape, args.repeats)
    title = f"a step of one layer after {shape.context:,} tokens, batch {shape.batch}"
    cells = [
        (
            row.method,
            "" if row.budget is None else f"{row.budget:,}",
            f"{row.ms:.3f}",
            f"{row.least_ms:.3f}",
            "" if row.times_full is None else f"{row.times_full:.1f}",
            f"{row.held_bytes / 1e6:,.1f}",
        )
        for row in rows
    ]
    columns = ("method", "budget", "ms", "least ms", "times full", "MB")
    console.print(table(title, columns, cells, left=columns[:1]))
    about = {"repeats": args.repeats, **bench.conditions()}
    about["device"] = device_name(shape.device)
    named = ", ".join(f"{name} {value}" for name, value in {**asdict(shape), **about}.items())
    console.plain(f"Medians of steps in turn: {named}.")
    return Done({"rows": [asdict(row) for row in rows], "shape": asdict(shape), **about})
