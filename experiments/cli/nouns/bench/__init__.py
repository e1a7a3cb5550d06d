"""`lil bench`: speed of the parts."""

from __future__ import annotations

import argparse

from rich.table import Table

from experiments.cli.console import Console
from experiments.cli.nouns.bench.detector import DETECTOR
from experiments.cli.nouns.bench.model import MODEL
from experiments.cli.nouns.bench.parts import DEVICE, Flag, Part, conditions, times, whole
from experiments.cli.nouns.bench.peers import PEERS
from experiments.cli.nouns.bench.step import STEP
from experiments.cli.parser import Done, Parser, add_json, comma_list, typed

EXAMPLES = """\
examples:
  lil bench meter
  lil bench attention --contexts 32768 --backends full,quest --budget 512
  lil bench penalty --batches 16 --layers 0
  lil bench peers --backends full,h2o --repeats 1
  lil bench model --contexts 8192 --batches 1

`lil bench PART --help` shows the flags of a part.
"""


def add_arguments(parser: Parser) -> None:
    """The parts of `lil bench`, each with flags of its own."""
    parts = parser.add_subparsers(dest="what", metavar="PART", required=True, title="parts")
    for name, part in PARTS.items():
        told = f"{part.line[0].upper()}{part.line[1:]}."
        sub = parts.add_parser(name, help=part.line, description=told, epilog=part.examples)
        sub.set_defaults(parser=sub)
        add_json(sub)
        for flag in part.flags:
            line = f"{flag.line} ({typed(flag.default)})"
            sub.add_argument(f"--{flag.name}", type=flag.kind, default=flag.default, help=line)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Measure and print, conditions beside the numbers."""
    return PARTS[args.what].measure(args, console)


def _meter(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench import meter as bench

    lengths = whole("tokens", args.tokens)
    with Console(stderr=True).status("measuring"):
        found = [bench.meter(tokens, args.f, args.repeats, args.seed) for tokens in lengths]
    table = Table(title=f"one check, medians of {args.repeats}", title_justify="left", box=None)
    for name in ("tokens", "bytes", "compressed", "incremental ms", "from scratch ms", "times"):
        table.add_column(name, justify="right")
    own = ("tokens", "original_bytes", "compressed_bytes", "incremental_ms", "from_scratch_ms")
    for row in found:
        sizes, spent = [row[name] for name in own[:3]], [row[name] for name in own[3:]]
        cells = [*(f"{n:,}" for n in sizes), *(f"{ms:.3f}" for ms in spent)]
        table.add_row(*cells, f"{row['speedup']:.0f}")
    console.print(table)
    shared = {name: value for name, value in found[0].items() if name not in (*own, "speedup")}
    conditions(console, "conditions", shared)
    return Done({"rows": found})


def _attention(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench import attention as speed

    contexts, batches = whole("contexts", args.contexts), whole("batches", args.batches)
    shapes = [
        speed.Shape(
            batch=batch,
            context=context,
            dtype=args.dtype,
            device=args.device,
            engine=args.engine,
        )
        for batch in batches
        for context in contexts
    ]
    with Console(stderr=True).status("measuring") as status:
        found = speed.attention(
            args.backends, args.budget, shapes, args.steps, progress=status.update
        )
    table = Table(
        title=f"one decode step of one layer at budget {args.budget}: milliseconds, and times "
        "faster than full attention and than transformers' sdpa with DynamicCache",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in ("batch", "context", "backend", "ms", "mean", "cold"):
        table.add_column(name, justify="left" if name == "backend" else "right")
    for name in ("full", "cold", "sdpa", "floor", "MB"):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        table.add_row(
            str(row["batch"]),
            f"{row['context']:,}",
            row["backend"],
            *(f"{row[name]:.2f}" for name in ("ms", "mean_ms", "cold_ms")),
            *(times(row[f"faster_than_{than}"]) for than in ("full", "full_cold", "transformers")),
            f"{row['of_floor']:.0%}",
            f"{row['held_bytes'] / 1e6:.1f}",
        )
    console.print(table)
    console.print(
        "ms: median, the same layer over and over; mean: of the same steps; cold: median with "
        "the caches overwritten before each step, as the other layers of a large model do. "
        "floor: share reached of the time that reading the bytes takes at the bandwidth measured "
        "in this run; beyond 100% they lay in a cache. MB: keys, values and method state."
    )
    for line in found["left_out"]:
        console.print(f"left out: {line}", markup=False)
    conditions(console, "conditions", {k: v for k, v in found.items() if k != "rows"})
    return Done(found)


def _penalty(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench import penalty as speed

    shapes = [
        speed.Shape(
            batch=batch,
            vocabulary=args.vocabulary,
            context=args.context,
            window=args.window,
            buffer=args.buffer,
            device=args.device,
        )
        for batch in whole("batches", args.batches)
    ]
    with Console(stderr=True).status("measuring") as status:
        found = speed.penalty(shapes, args.steps, args.layers, args.dtype, progress=status.update)
    title = f"one step: median of {args.steps}, and least; shares and ratios of medians"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("batch", "", "ms", "least ms", "of decode step", "times lz"):
        table.add_column(name, justify="right" if name else "left")
    for row in found["rows"]:
        spent = (f"{row[name]:.3f}" for name in ("ms", "least_ms"))
        share, ratio = row["of_decode_step"], row["times_lz"]
        cells = (*spent, "" if share is None else f"{share:.2%}", times(ratio))
        table.add_row(str(row["batch"]), row["way"], *cells)
    console.print(table)
    for line in found["left_out"]:
        console.print(f"left out: {line}", markup=False)
    conditions(console, "conditions", {k: v for k, v in found.items() if k != "rows"})
    return Done(found)


PARTS = {
    "meter": Part(
        "a Guardian check, incremental against from scratch",
        """\
examples:
  lil bench meter                    one check at 10,000 to 1,000,000 tokens
  lil bench meter --tokens 131072 --f 1000
""",
        _meter,
        (
            Flag("tokens", [10_000, 32_768, 131_072, 1_000_000], "lengths of the text", comma_list),
            Flag("f", 250, "tokens between two checks"),
            Flag("repeats", 9, "measurements; the median counts"),
            Flag("seed", 0, "of the text"),
        ),
    ),
    "attention": Part(
        "a decode step of a layer, beside transformers' own",
        """\
examples:
  lil bench attention                1k to 128k tokens
  lil bench attention --contexts 32768 --backends full,quest --budget 512
""",
        _attention,
        (
            Flag("backends", ["full", "sink", "h2o", "quest", "infllm"], "names", comma_list),
            Flag("budget", 1024, "tokens a decode query may read"),
            Flag("contexts", [1024, 4096, 16_384, 32_768, 131_072], "tokens before", comma_list),
            Flag("batches", [1, 16], "rows", comma_list),
            Flag("dtype", "float32", "float32, bfloat16 or float16", str),
            DEVICE,
            Flag("engine", "auto", "one of cpp, triton, flash, torch, or auto", str),
            Flag("steps", 64, "steps a point; the median counts"),
        ),
    ),
    "penalty": Part(
        "a step of the LZ penalty, beside plain ways and a model's own step",
        """\
examples:
  lil bench penalty                  and of a model of 1.5B weights
  lil bench penalty --batches 16 --layers 0
""",
        _penalty,
        (
            Flag("batches", [1, 16, 64], "rows", comma_list),
            Flag("vocabulary", 151_936, "scores"),
            Flag("context", 1024, "tokens of a row so far"),
            Flag("window", 512, "tokens that are searched"),
            Flag("buffer", 32, "newest tokens that are matched"),
            Flag("layers", 28, "of the model; 0 leaves its step out, which takes most of the time"),
            Flag("dtype", "bfloat16", "of the model: float32, bfloat16 or float16", str),
            DEVICE,
            Flag("steps", 20, "steps a point; the median counts"),
        ),
    ),
    "detector": DETECTOR,
    "step": STEP,
    "peers": PEERS,
    "model": MODEL,
}
