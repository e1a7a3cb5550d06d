"""`lil why`: why a stored sparse text departs from full attention's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.markup import escape

from attention.errors import InvalidValue
from experiments.cli.console import Console, notify, table
from experiments.cli.parser import Done, Parser, comma_list, whole_number
from experiments.cli.runs import find
from experiments.grid import models
from experiments.grid.plan import Run
from experiments.grid.stored import model_of
from experiments.store.study import Study

EXAMPLES = """\
examples:
  lil why lil-out/demo 3fa9                   by the beginning of its id, as lil show names runs
  lil why lil-out/demo medium/study/3 h2o 64 --keys 1,16 --top 20
  lil why lil-out/demo 3fa9 --json
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil why`."""
    parser.add_argument("store", metavar="STORE", help="folder of a sweep")
    parser.add_argument("run", nargs="*", metavar="RUN", help="a sparse run, as lil show names it")
    for flag, default, metavar, line in (
        ("--keys", "1,4,16", "N,...", "keys put back in each layer, and in each KV head's choice"),
        ("--top", "10", "N", "texts that are listed"),
    ):
        text = f"{line} (default: {default})"
        parser.add_argument(flag, default=default, metavar=metavar, help=text)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Replay the step at which a run departs, print what it did not read and what heals it."""
    keys = tuple(whole_number("keys", text, 1) for text in comma_list(args.keys))
    if not keys:
        raise InvalidValue("keys", args.keys, "one number of keys or more")
    top = whole_number("top", args.top, 1)
    study, run = find(Study.each(Path(args.store)), args.run)
    notify(study.warnings)
    document = _why(study, run, keys)
    document["texts"] = document.get("texts", [])[:top]
    _print(document, console)
    return Done(document)


def _why(study: Study, run: Run, keys: tuple[int, ...]) -> dict[str, Any]:
    """Why a run departs from full attention's, as a document."""
    from experiments.why import Texts, explained, parting

    configuration, name = run.configuration, run.configuration.name
    if configuration.is_full or configuration.sampling["temperature"]:
        raise InvalidValue(
            "run", name, "a greedy run of a sparse method; chance parts sampled texts"
        )
    full_id = study.plan.full(run).id
    records = [study.store.get(run.id), study.store.get(full_id)]
    traces = [record.trace() for record in records if record is not None and not record.failed]
    if len(traces) < 2:
        raise InvalidValue("run", name, "a run whose text and full attention's are in the store")
    sparse, full = traces
    if sparse.action is not None or full.action is not None:
        raise InvalidValue("run", name, "a run in which no detector acted")
    about = {
        "id": run.id,
        "full_id": full_id,
        "item_id": run.item_id,
        "backend": configuration.backend["name"],
        "budget": configuration.budget,
        "prompt_tokens": len(sparse.prompt_ids),
    }
    if parting(full.new_ids, sparse.new_ids) is None:
        return about | {"parts": False}
    models.quiet_transformers()
    loaded = model_of(study.config, configuration, {})
    texts = Texts(sparse.prompt_ids, full.new_ids, sparse.new_ids)
    backend, penalties = study.backend(configuration), study.penalties(configuration)
    result = explained(loaded.model, backend, texts, penalties, keys, study.config.engine)
    ids, missed = [*sparse.prompt_ids, *sparse.new_ids], result["by_token"]

    def text(token: int) -> str:
        return loaded.token_bytes[token].decode(errors="replace")

    unread = [
        {
            "position": at,
            "where": "prompt" if at < len(sparse.prompt_ids) else "output",
            "text": text(ids[at]),
            "missed": missed[at],
        }
        for at in sorted(range(len(missed)), key=lambda at: -missed[at])
        if missed[at] > 0
    ]
    chosen = {f"{side}_text": text(result[f"{side}_token"]) for side in ("full", "sparse")}
    return about | {"parts": True} | result | chosen | {"texts": unread}


def _print(document: dict[str, Any], console: Console) -> None:
    backend = document["backend"]
    budget = "" if document["budget"] is None else f" {document['budget']}"
    console.rule(escape(f"{document['item_id']}, {backend}{budget}"), align="left")
    if not document["parts"]:
        console.plain("the text does not part from full attention's")
        return
    console.plain(
        f"parts at token {document['token']:,}: full attention {document['full_text']!r}, "
        f"{backend} {document['sparse_text']!r}\n"
        "margin of full attention's token over the other: "
        f"{document['margin_full']:+.4f} under full attention, "
        f"{document['margin_sparse']:+.4f} under {backend}"
    )
    if not document["reproduced"]:
        console.plain("replayed alone, the step chooses other tokens: a tie, or other numbers")
    share = document["missed_in_prompt"]
    inside = "" if share is None else f", {100 * share:.0f}% of it in the prompt"
    console.plain(f"not read: {100 * document['missed']:.1f}% of full attention's weight{inside}")
    rows = [
        (repr(row["text"]), row["where"], f"{row['position']:,}", f"{row['missed']:.3f}")
        for row in document["texts"]
    ]
    columns = ("text", "where", "position", "weight")
    console.print(table("not read", columns, rows, left=columns[:2]))
    if document["not_put_back"]:
        console.plain(f"nothing is put back: {document['not_put_back']}")
        return
    attempts = [
        (
            str(attempt["keys"]),
            "drawn" if attempt["control"] else "most missed",
            "healed" if attempt["healed"] else "not healed",
            f"{attempt['agreed_tokens']:,} tokens" + (", the end" * attempt["to_the_end"]),
            f"{attempt['margin']:+.4f}",
        )
        for attempt in document["put_back"]
    ]
    names = ("keys", "which", "step", "then", "margin")
    console.print(table("put back", names, attempts, left=names[1:3]))
