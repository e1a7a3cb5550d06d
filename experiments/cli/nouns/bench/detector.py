"""`lil bench detector`: what watching costs."""

from __future__ import annotations

import argparse

from rich.table import Table

from experiments.cli.console import Console
from experiments.cli.nouns.bench.parts import Flag, Part, conditions
from experiments.cli.parser import Done

#: Every detector by itself, and a combination.
ALL = "guardian,cycle,budget,chopper,recurrence,stall,margin,either(parts='recurrence+margin')"


def _measure(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench import detector as cost

    with Console(stderr=True).status("measuring") as status:
        found = cost.detectors(
            args.detectors, args.tokens, args.repeats, args.seed, args.model, status.update
        )
    table = Table(
        title=f"a detector that watches {args.tokens:,} tokens", title_justify="left", box=None
    )
    for name in ("detector", "us a token", "of the last tenth", "MB held", "bytes a token"):
        table.add_column(name, justify="left" if name == "detector" else "right")
    for row in found["rows"]:
        table.add_row(
            row["detector"],
            f"{row['us_a_token']:.2f}",
            f"{row['us_a_token_last']:.2f}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['bytes'] / args.tokens:.0f}",
        )
    console.print(table)
    conditions(console, "conditions", {k: v for k, v in found.items() if k != "rows"})
    return Done(found)


DETECTOR = Part(
    "what watching costs: time a token and memory, by detector",
    """\
examples:
  lil bench detector                 every detector, 100,000 tokens
  lil bench detector --detectors "guardian,recurrence(k=8)" --tokens 20000
""",
    _measure,
    (
        Flag("detectors", ALL, "names, parameters in brackets", str),
        Flag("tokens", 100_000, "of a text that does not repeat"),
        Flag("repeats", 3, "texts that are timed; the median counts"),
        Flag("seed", 0, "of the texts"),
        Flag("model", "reasoner", "whose hidden size states have, and whose chopper is taken", str),
    ),
)
