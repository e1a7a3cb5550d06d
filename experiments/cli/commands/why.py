"""`lil why`: why a stored sparse text departs from full attention's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.markup import escape

from attention.errors import InvalidValue
from experiments.cli.console import Console, notify, table
from experiments.cli.parser import Done, Parser, comma_list, whole_number
from experiments.cli.stores import find
from experiments.grid import models
from experiments.grid.plan import Run
from experiments.grid.stored import model_of
from experiments.store.study import Study

EXAMPLES = """\
examples:
  lil why lil-out/demo 3fa9                   by the beginning of its id, as lil show names runs
  lil why lil-out/demo medium/study/3 h2o 64 --keys 1,16 --top 20
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil why`."""
    keys = "keys put back in each layer, and in each KV head's choice (default: 1,4,16)"
    parser.add_argument("store", metavar="STORE", help="folder of a sweep")
    parser.add_argument("run", nargs="*", metavar="RUN", help="a sparse run, as lil show names it")
    parser.add_argument("--keys", default="1,4,16", metavar="N,...", help=keys)
    parser.add_argument("--top", default="10", metavar="N", help="texts listed (default: 10)")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Replay the step at which a run departs, print what it did not read and what heals it."""
    keys = tuple(whole_number("keys", text, 1) for text in comma_list(args.keys))
    if not keys:
        raise InvalidValue("keys", args.keys, "one number of keys or more")
    top = whole_number("top", args.top, 1)
    study, run = find(Study.each(Path(args.store)), args.run)
    notify(study.warnings)
    document = _why(study, run, keys, top)
    _print(document, console)
    return Done(document)


def _why(study: Study, run: Run, keys: tuple[int, ...], top: int) -> dict[str, Any]:
    """Why a run departs from full attention's, as a document."""
    from experiments.why import explained, parting

    configuration, name = run.configuration, run.configuration.name
    if configuration.is_full or configuration.sampling["temperature"]:
        allowed = "a greedy run of a sparse method; chance parts sampled texts"
        raise InvalidValue("run", name, allowed)
    full_id = study.plan.full(run).id
    records = [study.store.get(run.id), study.store.get(full_id)]
    traces = [record.trace() for record in records if record is not None and not record.failed]
    if len(traces) < 2 or any(trace.action is not None for trace in traces):
        allowed = "a run whose text and full attention's are in the store, where no detector acted"
        raise InvalidValue("run", name, allowed)
    sparse, full = traces
    about = {
        "id": run.id,
        "full_id": full_id,
        "item_id": run.item_id,
        "backend": configuration.backend["name"],
        "budget": configuration.budget,
        "prompt_tokens": len(sparse.prompt_ids),
    }
    if parting(full.new_ids, sparse.new_ids) is None:
        return about | {"parts": False, "texts": []}
    models.quiet_transformers()
    loaded = model_of(study.config, configuration, {})
    result = explained(
        loaded.model,
        study.backend(configuration),
        *(sparse.prompt_ids, full.new_ids, sparse.new_ids),
        [p.with_tokens(loaded.token_bytes) for p in study.penalties(configuration)],
        keys,
        study.config.engine,
    )
    ids, missed = [*sparse.prompt_ids, *sparse.new_ids], result["by_token"]

    def text(token: int) -> str:
        return loaded.token_bytes[token].decode(errors="replace")

    def row(at: int) -> dict[str, Any]:
        where = "prompt" if at < len(sparse.prompt_ids) else "output"
        return {"position": at, "where": where, "text": text(ids[at]), "missed": missed[at]}

    order = sorted(range(len(missed)), key=lambda at: -missed[at])[:top]
    for side in ("full", "sparse"):
        result[f"{side}_text"] = text(result[f"{side}_token"])
    return about | {"parts": True} | result | {"texts": [row(at) for at in order if missed[at] > 0]}


def _print(document: dict[str, Any], console: Console) -> None:
    backend = document["backend"]
    title = f"{document['item_id']}, {backend} {document['budget'] or ''}"
    console.rule(escape(title.strip()), align="left")
    if not document["parts"]:
        console.plain("the text does not part from full attention's")
        return
    console.plain(
        f"parts at token {document['token']:,}: full attention {document['full_text']!r}, "
        f"{backend} {document['sparse_text']!r}\nmargin of full attention's token over the other: "
        f"{document['margin_full']:+.4f}, under {backend} {document['margin_sparse']:+.4f}\n"
        f"not read: {100 * document['missed']:.1f}% of full attention's weight"
    )
    if not document["reproduced"]:
        console.plain("replayed alone, the step chooses other tokens: a tie, or other numbers")
    rows = [
        (repr(row["text"]), row["where"], f"{row['position']:,}", f"{row['missed']:.3f}")
        for row in document["texts"]
    ]
    names = ("text", "where", "position", "weight")
    console.print(table("not read", names, rows, left=names[:2]))
    if not document["put_back"]:
        console.plain(f"nothing is put back: {backend} turns its keys to other positions")
        return
    attempts = [
        (
            str(attempt["keys"]),
            "drawn" if attempt["control"] else "most missed",
            "healed" if attempt["healed"] else "not healed",
            f"{attempt['agreed_tokens']:,} tokens",
            f"{attempt['margin']:+.4f}",
        )
        for attempt in document["put_back"]
    ]
    columns = ("keys", "which", "step", "then", "margin")
    console.print(table("put back", columns, attempts, left=columns[1:3]))
