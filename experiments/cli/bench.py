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
  lil bench meter                    one Guardian check at 131,072 tokens
  lil bench meter --tokens 1000000
  lil bench attention                a decode step of a layer at 1k to 128k tokens
  lil bench attention --contexts 32768 --backends full,quest --budget 512
"""


#: The flags of each part, with their defaults.
PARTS: dict[str, dict[str, Any]] = {
    "meter": {"tokens": 131_072, "f": 250, "repeats": 9, "seed": 0},
    "attention": {
        "backends": ["full", "sink", "h2o", "quest", "infllm"],
        "budget": 1024,
        "contexts": [1024, 4096, 16_384, 32_768, 131_072],
        "batches": [1, 16],
        "dtype": "float32",
        "device": "cpu",
        "steps": 64,
    },
}


def add_arguments(parser: Parser) -> None:
    """Flags of `lil bench`."""
    parser.add_argument(
        "what",
        choices=tuple(PARTS),
        help="meter: a Guardian check, incremental against from scratch; "
        "attention: a decode step of a layer, beside transformers' own",
    )
    meter = parser.add_argument_group("meter", argument_default=argparse.SUPPRESS)
    meter.add_argument("--tokens", type=int, help="length of the text")
    meter.add_argument("--f", type=int, help="tokens between two checks")
    meter.add_argument("--repeats", type=int, help="measurements; the median counts")
    meter.add_argument("--seed", type=int)
    layer = parser.add_argument_group("attention", argument_default=argparse.SUPPRESS)
    layer.add_argument("--backends", type=comma_list, help="names, separated by commas")
    layer.add_argument("--budget", type=int, help="tokens a decode query may read")
    layer.add_argument("--contexts", type=comma_list, help="tokens seen before")
    layer.add_argument("--batches", type=comma_list, help="rows")
    layer.add_argument("--dtype", help="float32, bfloat16 or float16")
    layer.add_argument("--device", help="cpu or cuda")
    layer.add_argument("--steps", type=int, help="steps a point; the median counts")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Measure and print, conditions beside the numbers."""
    flags = PARTS[args.what]
    for name in {flag for part in PARTS.values() for flag in part} - set(flags):
        if hasattr(args, name):
            allowed = f"a flag of bench {args.what}: " + ", ".join(f"--{flag}" for flag in flags)
            raise InvalidValue("flag", f"--{name}", allowed)
    given = argparse.Namespace(**{**flags, **vars(args)})
    return {"meter": _meter, "attention": _attention}[args.what](given, console)


def _meter(args: argparse.Namespace, console: Console) -> Done:
    from lil import bench

    if args.tokens < 1:
        raise InvalidValue("tokens", args.tokens, "at least 1")
    with Console(stderr=True).status("measuring"):
        found = bench.meter(args.tokens, args.f, args.repeats, args.seed)
    _conditions(console, "meter, medians", found)
    return Done(found)


def _attention(args: argparse.Namespace, console: Console) -> Done:
    from experiments import attention_speed as speed

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
