"""`lil acceptance`: how many of full attention's tokens a sparse method would have chosen."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

import lil
from attention.errors import InvalidValue
from attention.spec import parse
from experiments.cli.commands.report import DEFAULT_STORE
from experiments.cli.console import Console
from experiments.cli.open_store import add_load_flag, open_store, to_load
from experiments.cli.parser import Done, Parser, comma_list
from experiments.cli.progress import bar
from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.plan import build_backends
from experiments.grid.stored import StoredConfig, model_of
from experiments.store.study import Study

if TYPE_CHECKING:
    from attention import Backend

EXAMPLES = """\
examples:
  lil acceptance lil-out/demo                       the sparse cells of the store
  lil acceptance lil-out/demo --backend quest,mine:Mine --budget 32,64 --limit 50
      others, over the same texts: nothing is decoded but full attention's texts, once before

Full attention's stored texts are read again, token by token, under each method: the share of tokens
that it would have chosen too, where all before them are the text's. Intervals: problems resampled.
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil acceptance`."""
    parser.add_argument(
        "store", nargs="?", default=DEFAULT_STORE, help=f"folder of a sweep ({DEFAULT_STORE})"
    )
    parser.add_argument("--backend", metavar="NAME,...", help="default: those of the store")
    parser.add_argument("--budget", metavar="N,...", help="of these; default: those of the store")
    parser.add_argument("--limit", metavar="N", help="problems of each data set (default: all)")
    parser.add_argument("--engine", help="as lil sweep takes it (default: the store's)")
    parser.add_argument("--seed", default="0", metavar="N", help="of the intervals (default: 0)")
    add_load_flag(parser)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Read full attention's texts under each method and print how many tokens it shares."""
    limit = None if args.limit is None else _number("limit", args.limit, 1)
    seed, notes = _number("seed", args.seed, 0), Console(stderr=True)
    study = open_store(Path(args.store), notes, to_load(args, [], []))
    rows = acceptances(study, _backends(args, study), limit, args.engine, seed)
    console.print(_table(rows))
    return Done({"rows": rows})


def _number(field: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise InvalidValue(field, text, f"a whole number, at least {least}")
    return int(text)


def _backends(args: argparse.Namespace, study: Study) -> list[Backend]:
    """Those that were typed, or those of the store's sparse cells, each once."""
    if args.backend is None:
        if args.budget is not None:
            raise InvalidValue("budget", args.budget, "none without --backend")
        found: list[Backend] = []
        for cell in study.plan.configurations:
            if cell.backend["name"] != "full" and cell.role != "null":
                backend = study.backend(cell)
                if backend not in found:
                    found.append(backend)
        if not found:
            raise InvalidValue("store", str(study.folder), "one with a sparse method, or --backend")
        return found
    asked = tuple(comma_list(args.backend))
    # The store's parameters count for what is typed; classes that it names are not followed.
    load = to_load(args).union(*(parse(one, "method", "NAME").paths for one in asked))
    own = {one.name: getattr(study.config, one.name) for one in fields(Config)}
    tables = study.config.backend_params.items()
    params = {name: table for name, table in tables if ":" not in name or name in load}
    own |= {"backends": asked, "backend_params": params, "null": "none"}
    config = StoredConfig(**own, load=load)
    if args.budget is not None:
        budgets = (_number("budget", one, 1) for one in comma_list(args.budget))
        config = replace(config, budgets=tuple(budgets))
    _full, *typed = build_backends(config)
    if not typed:
        raise InvalidValue("backend", args.backend, "a sparse method")
    return typed


def acceptances(
    study: Study,
    backends: Sequence[Backend],
    limit: int | None = None,
    engine: str | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A row for each data set and backend, and model where the store has several.

    Args:
        study: a store with full attention's greedy texts.
        backends: whose tokens are compared with them.
        limit: problems of each data set.
        engine: the store's by default.
        seed: of the intervals.

    Raises:
        InvalidValue: no such texts, or weights that are not those they were decoded with.
    """
    from experiments.report.bootstrap import Bootstrap
    from experiments.why import fidelity

    found = fidelity.texts(study, limit)
    if not found:
        allowed = "one with greedy texts of full attention"
        raise InvalidValue("store", str(study.folder), allowed)
    bootstrap, rows = Bootstrap(seed), []
    shelf: dict[str, models.LoadedModel] = {}
    models.quiet_transformers()
    models.use_threads(study.config.threads)
    several = len({cell.model_digest for cell, _ in found}) > 1
    total = sum(len(traces) for _, traces in found) * len(backends)
    with bar("reading", total) as advance:
        for cell, traces in found:
            model = model_of(study.config, cell, shelf).model
            names = {"dataset": cell.dataset} | ({"model": cell.model} if several else {})
            for backend in backends:
                read = lil.acceptance(
                    model,
                    [*traces.values()],
                    backend,
                    engine=engine or study.config.engine,
                    on_texts=advance,
                )
                share = bootstrap.ratio([(float(one.accepted), float(one.steps)) for one in read])
                budget = getattr(backend, "budget", None)
                rows.append(
                    names
                    | {"backend": backend.name, "budget": budget}
                    | {"params": backend.params(), **fidelity.counted(read)}
                    | {"share": share.estimate, "low": share.low, "high": share.high}
                )
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    title = "tokens of full attention's texts that a method would have chosen"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    several = any("model" in row for row in rows)
    for name in ("data set", *(("model",) if several else ()), "backend"):
        table.add_column(name)
    for name in ("budget", "texts", "steps", "chosen, %", "95%", "keys a step"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        inside = share = keys = "—"
        if row["low"] is not None and row["high"] is not None:
            inside = f"{100 * row['low']:.2f}, {100 * row['high']:.2f}"
        if row["share"] is not None:
            share, keys = f"{100 * row['share']:.2f}", f"{row['keys_per_step']:,.0f}"
        budget = "—" if row["budget"] is None else f"{row['budget']:,}"
        model = (escape(row["model"]),) if several else ()
        names = (escape(row["dataset"]), *model, escape(row["backend"]), budget)
        counts = (f"{row['texts']:,}", f"{row['steps']:,}")
        table.add_row(*names, *counts, share, inside, keys)
    return table
