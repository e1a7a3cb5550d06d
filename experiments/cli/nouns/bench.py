"""`lil bench`: speed of the parts."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.parser import Done, Parser, comma_list

EXAMPLES = """\
examples:
  lil bench meter                    one Guardian check at 10,000 to 1,000,000 tokens
  lil bench meter --tokens 131072 --f 1000
  lil bench attention                a decode step of a layer at 1k to 128k tokens
  lil bench attention --contexts 32768 --backends full,quest --budget 512
  lil bench penalty                  a step of the LZ penalty, and of a model of 1.5B weights
  lil bench penalty --batches 16 --layers 0
"""


#: The flags of each part, with their defaults.
PARTS: dict[str, dict[str, Any]] = {
    "meter": {
        "tokens": [10_000, 32_768, 131_072, 1_000_000],
        "f": 250,
        "repeats": 9,
        "seed": 0,
    },
    "attention": {
        "backends": ["full", "sink", "h2o", "quest", "infllm"],
        "budget": 1024,
        "contexts": [1024, 4096, 16_384, 32_768, 131_072],
        "batches": [1, 16],
        "dtype": "float32",
        "device": "cpu",
        "steps": 64,
    },
    "penalty": {
        "batches": [1, 16, 64],
        "vocabulary": 151_936,
        "context": 1024,
        "window": 512,
        "buffer": 32,
        "layers": 28,
        "dtype": "bfloat16",
        "device": "cpu",
        "steps": 20,
    },
}


def add_arguments(parser: Parser) -> None:
    """Flags of `lil bench`."""
    parser.add_argument(
        "what",
        choices=tuple(PARTS),
        help="meter: a Guardian check, incremental against from scratch; "
        "attention: a decode step of a layer, beside transformers' own; "
        "penalty: a step of the LZ penalty, beside plain ways and a model's own step",
    )
    meter = parser.add_argument_group("meter", argument_default=argparse.SUPPRESS)
    meter.add_argument("--tokens", type=comma_list, help="lengths of the text")
    meter.add_argument("--f", type=int, help="tokens between two checks")
    meter.add_argument("--repeats", type=int, help="measurements; the median counts")
    meter.add_argument("--seed", type=int)
    layer = parser.add_argument_group("attention", argument_default=argparse.SUPPRESS)
    layer.add_argument("--backends", type=comma_list, help="names, separated by commas")
    layer.add_argument("--budget", type=int, help="tokens a decode query may read")
    layer.add_argument("--contexts", type=comma_list, help="tokens seen before")
    both = parser.add_argument_group("attention and penalty", argument_default=argparse.SUPPRESS)
    both.add_argument("--batches", type=comma_list, help="rows")
    both.add_argument("--dtype", help="float32, bfloat16 or float16; of the model in penalty")
    both.add_argument("--device", help="cpu or cuda")
    both.add_argument("--steps", type=int, help="steps a point; the median counts")
    penalty = parser.add_argument_group("penalty", argument_default=argparse.SUPPRESS)
    penalty.add_argument("--vocabulary", type=int, help="scores")
    penalty.add_argument("--context", type=int, help="tokens of a row so far")
    penalty.add_argument("--window", type=int, help="tokens that are searched")
    penalty.add_argument("--buffer", type=int, help="newest tokens that are matched")
    penalty.add_argument(
        "--layers",
        type=int,
        help="of the model; 0 leaves its step out, which takes most of the time",
    )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Measure and print, conditions beside the numbers."""
    flags = PARTS[args.what]
    for name in {flag for part in PARTS.values() for flag in part} - set(flags):
        if hasattr(args, name):
            allowed = f"a flag of bench {args.what}: " + ", ".join(f"--{flag}" for flag in flags)
            raise InvalidValue("flag", f"--{name}", allowed)
    given = argparse.Namespace(**{**flags, **vars(args)})
    return {"meter": _meter, "attention": _attention, "penalty": _penalty}[args.what](
        given, console
    )


def _meter(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench import meter as bench

    lengths = _whole("tokens", args.tokens)
    with Console(stderr=True).status("measuring"):
        found = [bench.meter(tokens, args.f, args.repeats, args.seed) for tokens in lengths]
    table = Table(title=f"one check, medians of {args.repeats}", title_justify="left", box=None)
    for name in ("tokens", "bytes", "compressed", "incremental ms", "from scratch ms", "times"):
        table.add_column(name, justify="right")
    own = ("tokens", "original_bytes", "compressed_bytes", "incremental_ms", "from_scratch_ms")
    for row in found:
        whole, times = [row[name] for name in own[:3]], [row[name] for name in own[3:]]
        cells = [*(f"{n:,}" for n in whole), *(f"{ms:.3f}" for ms in times)]
        table.add_row(*cells, f"{row['speedup']:.0f}")
    console.print(table)
    shared = {name: value for name, value in found[0].items() if name not in (*own, "speedup")}
    _conditions(console, "conditions", shared)
    return Done({"rows": found})


def _attention(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench import attention as speed

    contexts, batches = _whole("contexts", args.contexts), _whole("batches", args.batches)
    shapes = [
        speed.Shape(batch=batch, context=context, dtype=args.dtype, device=args.device)
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
            *(_times(row[f"faster_than_{than}"]) for than in ("full", "full_cold", "transformers")),
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
        console.print(f"left out: {line}")
    _conditions(console, "conditions", {k: v for k, v in found.items() if k != "rows"})
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
        for batch in _whole("batches", args.batches)
    ]
    with Console(stderr=True).status("measuring") as status:
        found = speed.penalty(shapes, args.steps, args.layers, args.dtype, progress=status.update)
    title = f"one step: median of {args.steps}, and least; shares and ratios of medians"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("batch", "", "ms", "least ms", "of decode step", "times lz"):
        table.add_column(name, justify="right" if name else "left")
    for row in found["rows"]:
        times = (f"{row[name]:.3f}" for name in ("ms", "least_ms"))
        share, ratio = row["of_decode_step"], row["times_lz"]
        cells = (*times, "" if share is None else f"{share:.2%}", _times(ratio))
        table.add_row(str(row["batch"]), row["way"], *cells)
    console.print(table)
    for line in found["left_out"]:
        console.print(f"left out: {line}")
    _conditions(console, "conditions", {k: v for k, v in found.items() if k != "rows"})
    return Done(found)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}"


def _whole(field: str, texts: list[Any]) -> list[int]:
    if not texts or not all(str(text).isdecimal() and int(text) > 0 for text in texts):
        raise InvalidValue(
            field, ",".join(map(str, texts)), "whole numbers above 0, separated by commas"
        )
    return [int(text) for text in texts]


def _conditions(console: Console, title: str, found: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for name, value in found.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    console.print(table)
