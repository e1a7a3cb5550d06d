"""`lil bench step`: where the time of a decode step goes."""

from __future__ import annotations

import argparse

from rich.table import Table

from experiments.cli.console import Console
from experiments.cli.nouns.bench.parts import Flag, Part, conditions, whole
from experiments.cli.parser import Done, comma_list


def _measure(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench import step as speed

    with Console(stderr=True).status("measuring") as status:
        found = speed.step(
            args.backends,
            args.budget,
            whole("batches", args.batches),
            whole("threads", args.threads),
            args.steps,
            args.engine,
            args.model,
            args.dataset,
            args.penalties,
            args.detectors,
            status.update,
        )
    title = f"milliseconds of a decode step at budget {args.budget}, by part"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    heads = ("thr", "B", "backend", "step", "model", "read", "state", "pen", "det", "samp", "stat")
    for name in (*heads, "loop", "book", "tok/s"):
        table.add_column(name, justify="left" if name == "backend" else "right")
    for row in found["rows"]:
        table.add_row(
            str(row["threads"]),
            str(row["batch"]),
            row["backend"],
            f"{row['ms']:.2f}",
            *(f"{row[part]:.2f}" for part in speed.PARTS),
            f"{row['bookkeeping']:.0%}",
            f"{row['tokens_per_s']:,.0f}",
        )
    console.print(table)
    console.print(
        "model: its forward without attention; read: keys, values and page summaries; state: the "
        "rest of attention; pen, det, samp, stat: penalties, detectors, sampling, costs of rows; "
        "loop: what is left; book: share of the last two."
    )
    table = Table(title="floors of two parts, milliseconds", title_justify="left", box=None)
    for name in ("threads", "B", "backend", "model", "floor", "reading", "floor"):
        table.add_column(name, justify="left" if name == "backend" else "right")
    for row in found["rows"]:
        pairs = ("model", "model_floor_ms", "reading", "reading_floor_ms")
        cells = (f"{row[name]:.2f}" for name in pairs)
        table.add_row(str(row["threads"]), str(row["batch"]), row["backend"], *cells)
    console.print(table)
    console.print(
        "model: weights read, or multiplied with every row, whichever takes longer; reading: bytes "
        "read at the bandwidth measured. Both at the speed of one large operation in this run."
    )
    conditions(console, "conditions", {k: v for k, v in found.items() if k != "rows"})
    return Done(found)


STEP = Part(
    "where the time of a decode step goes, part by part",
    """\
examples:
  lil bench step                     the shipped reasoner, at 1 to 64 rows
  lil bench step --batches 32 --threads 1,2 --backends full,quest --penalties lz
""",
    _measure,
    (
        Flag("backends", ["full", "sink", "h2o", "quest", "infllm"], "names", comma_list),
        Flag("budget", 128, "tokens a decode query may read"),
        Flag("batches", [1, 16, 32, 64], "rows", comma_list),
        Flag("threads", [1], "of torch", comma_list),
        Flag("steps", 150, "steps a point; the first quarter is not timed"),
        Flag("engine", "auto", "one of cpp, triton, flash, torch, or auto", str),
        Flag("model", "reasoner", "name or folder", str),
        Flag("dataset", "hard", "whose prompts are decoded", str),
        Flag("penalties", [], "names", comma_list),
        Flag("detectors", ["guardian"], "names", comma_list),
    ),
)
