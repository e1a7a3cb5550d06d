"""`lil bench model`: a decode step of a whole model of 1.5B weights."""

from __future__ import annotations

import argparse

from rich.table import Table

from experiments.cli.console import Console
from experiments.cli.nouns.bench.parts import DEVICE, Flag, Part, conditions, times, whole
from experiments.cli.parser import Done, comma_list

LEGEND = """\
ms: median of a step, least: the fastest, which other work on the machine disturbs least. full, \
sdpa: times faster than our full attention and than transformers' sdpa with DynamicCache. \
attention: share of the step beyond the same forward with attention and cache left out. MB: keys, \
values and method state."""


def _measure(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench.model import Point, model

    contexts, batches = whole("contexts", args.contexts), whole("batches", args.batches)
    points = [Point(batch, context) for batch in batches for context in contexts]
    with Console(stderr=True).status("measuring") as status:
        found = model(
            args.backends,
            args.budget,
            points,
            shape=args.shape,
            layers=args.layers,
            dtype=args.dtype,
            device=args.device,
            engine=args.engine,
            steps=args.steps,
            progress=status.update,
        )
    title = (
        f"one decode step of {found['model']}, budget {args.budget}: medians of {found['steps']}"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("batch", "context", "backend", "ms", "least", "full", "sdpa", "attention", "MB"):
        table.add_column(name, justify="left" if name == "backend" else "right")
    for row in found["rows"]:
        table.add_row(
            str(row["batch"]),
            f"{row['context']:,}",
            row["backend"],
            *(f"{row[name]:.1f}" for name in ("ms", "least_ms")),
            *(times(row[f"faster_than_{than}"]) for than in ("full", "transformers")),
            f"{row['attention_share']:.0%}",
            f"{row['held_bytes'] / 1e6:,.0f}",
        )
    console.print(table)
    console.print(LEGEND)
    for line in found["left_out"]:
        console.print(f"left out: {line}", markup=False)
    conditions(console, "conditions", {k: v for k, v in found.items() if k != "rows"})
    return Done(found)


MODEL = Part(
    "a decode step of a whole model with random weights, beside transformers' own",
    """\
examples:
  lil bench model                    1.5B weights; 8k and 32k tokens, 1 and 8 rows
  lil bench model --shape tiny --contexts 512
""",
    _measure,
    (
        Flag("backends", ["full", "h2o", "sink", "quest", "infllm"], "names", comma_list),
        Flag("budget", 1024, "tokens a decode query may read"),
        Flag("contexts", [8192, 32_768], "tokens before", comma_list),
        Flag("batches", [1, 8], "rows", comma_list),
        Flag("shape", "qwen2-1.5b", "sizes of the model: qwen2-1.5b, qwen2-0.5b or tiny", str),
        Flag("layers", None, "of the model; none: as many as its shape has"),
        Flag("dtype", "bfloat16", "of the model: float32, bfloat16 or float16", str),
        DEVICE,
        Flag("engine", "auto", "one of cpp, triton, flash, torch, or auto", str),
        Flag("steps", 8, "steps a point; the median counts"),
    ),
)
