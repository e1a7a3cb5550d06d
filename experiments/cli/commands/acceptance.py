"""`lil acceptance`: how many of full attention's tokens a sparse method would have chosen."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import lil
from attention.errors import InvalidValue
from experiments.cli.console import Console, table
from experiments.cli.parser import Done, Parser, whole_number
from experiments.cli.progress import bar
from experiments.cli.stores import add_load_flag, add_store, open_store, to_load
from experiments.grid import models
from experiments.grid.plan import distinct
from experiments.grid.stored import model_of
from experiments.report.statistics import Bootstrap
from experiments.store.study import Study

EXAMPLES = """\
examples:
  lil acceptance lil-out/demo               the sparse cells of the store
  lil acceptance lil-out/demo --limit 50    on at most 50 problems of each data set

Full attention's stored texts are read again, token by token, under each method: the share of tokens
that it would have chosen too, where all before them are the text's. Intervals: problems resampled.
Other methods over the same texts: lil.acceptance(model, traces, backend).
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil acceptance`."""
    add_store(parser)
    parser.add_argument("--limit", metavar="N", help="problems of each data set (default: all)")
    add_load_flag(parser)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Read full attention's texts under each method and print how many tokens it shares."""
    limit = None if args.limit is None else whole_number("limit", args.limit, 1)
    rows = list(_acceptances(open_store(Path(args.store), to_load(args.load)), limit))
    names = ("data set", "model", "backend", "budget")
    columns = (*names, "texts", "steps", "chosen, %", "95%", "keys a step")
    title = "tokens of full attention's texts that a method would have chosen"
    console.print(table(title, columns, map(_cells, rows), left=names[:3]))
    return Done({"rows": rows})


def _acceptances(study: Study, limit: int | None) -> Iterator[dict[str, Any]]:
    """A row for each model, data set and backend; `limit` counts problems of each data set."""
    sparse = (c for c in study.plan.configurations if c.backend["name"] != "full")
    if not (cells := [cell for cell in sparse if cell.role != "null"]):
        raise InvalidValue("store", str(study.folder), "one with a sparse method")
    backends = distinct(map(study.backend, cells))
    texts = []
    for cell in study.plan.configurations:
        if cell.is_full and not cell.sampling["temperature"] and not cell.penalties:
            records = filter(None, map(study.usable, study.plan.runs(cell)))
            if traces := [record.trace() for record in records][:limit]:
                texts.append((cell, traces))
    if not texts:
        allowed = "one with greedy texts of full attention"
        raise InvalidValue("store", str(study.folder), allowed)
    bootstrap, engine = Bootstrap(0), study.config.engine
    shelf: dict[str, models.LoadedModel] = {}
    models.quiet_transformers()
    models.use_threads(study.config.threads)
    with bar("reading", sum(len(traces) for _, traces in texts) * len(backends)) as advance:
        for cell, traces in texts:
            model = model_of(study.config, cell, shelf).model
            for backend in backends:
                read = lil.acceptance(model, traces, backend, engine=engine, on_texts=advance)
                share = bootstrap.ratio([(float(x.accepted), float(x.steps)) for x in read])
                accepted, steps = (sum(getattr(x, n) for x in read) for n in ("accepted", "steps"))
                yield {
                    "dataset": cell.dataset,
                    "model": cell.model,
                    "backend": backend.name,
                    "budget": getattr(backend, "budget", None),
                    "params": backend.params(),
                    "texts": len(read),
                    "steps": steps,
                    "accepted": accepted,
                    "wholly": sum(x.accepted == x.steps for x in read),
                    "agreed_median": median(x.agreed for x in read),
                    "keys_per_step": sum(x.keys_read for x in read) / steps if steps else None,
                    "share": share.estimate,
                    "low": share.low,
                    "high": share.high,
                }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    interval = share = keys = "—"
    if row["low"] is not None and row["high"] is not None:
        interval = f"{100 * row['low']:.2f}, {100 * row['high']:.2f}"
    if row["share"] is not None:
        share, keys = f"{100 * row['share']:.2f}", f"{row['keys_per_step']:,.0f}"
    budget = "—" if row["budget"] is None else f"{row['budget']:,}"
    counts = (f"{row['texts']:,}", f"{row['steps']:,}")
    return (row["dataset"], row["model"], row["backend"], budget, *counts, share, interval, keys)
