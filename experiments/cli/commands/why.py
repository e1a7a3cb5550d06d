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
    parser.add_argument(
        "--keys",
        default="1,4,16",
        metavar="N,...",
        help="keys put back in each layer, and KV head where each has its own (default: 1,4,16)",
    )
    parser.add_argument(
        "--top", default="10", metavar="N", help="texts that are listed (default: 10)"
    )
    parser.add_argument(
        "--seed", default="0", metavar="N", help="of the keys drawn as a control (default: 0)"
    )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Replay the step at which a run departs, print what it did not read and what heals it."""
    keys = tuple(whole_number("keys", text, 1) for text in comma_list(args.keys))
    if not keys:
        raise InvalidValue("keys", args.keys, "one number of keys or more")
    top, seed = whole_number("top", args.top, 1), whole_number("seed", args.seed, 0)
    study, run = find(Study.each(Path(args.store)), args.run)
    notify(study.warnings)
    document = why(study, run, keys, seed)
    document["texts"] = document.get("texts", [])[:top]
    _print(document, console)
    return Done(document)


def why(study: Study, run: Run, keys: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Why a run departs from full attention's, as a document.

    Raises:
        InvalidValue: no sparse greedy run with full attention's in the store, or weights that are
            not those it was decoded with.
    """
    from experiments.why.parting import Texts, explained, parting

    configuration = run.configuration
    if configuration.is_full:
        raise InvalidValue("run", configuration.name, "a run of a sparse method")
    if configuration.sampling["temperature"]:
        drawn = f"sampled at temperature {configuration.sampling['temperature']}"
        raise InvalidValue("run", drawn, "a greedy run: sampled texts part by chance")
    full_id = study.plan.full(run).id
    traces = []
    for name, id_ in (("run", run.id), ("full attention's run", full_id)):
        record = study.store.get(id_)
        if record is None or record.failed:
            raise InvalidValue(name, run.item_id, "one that the store has a text of")
        traces.append(record.trace())
    sparse, full = traces
    if sparse.action is not None or full.action is not None:
        raise InvalidValue("run", configuration.name, "a run in which no detector acted")
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
    result = explained(loaded.model, backend, texts, penalties, keys, seed, study.config.engine)
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
    words = {f"{side}_text": text(result[f"{side}_token"]) for side in ("full", "sparse")}
    return about | {"parts": True} | result | words | {"texts": unread}


def _print(document: dict[str, Any], console: Console) -> None:
    backend = document["backend"]
    budget = "" if document["budget"] is None else f" {document['budget']}"
    console.rule(escape(f"{document['item_id']}, {backend}{budget}"), align="left")
    if not document["parts"]:
        console.line("the text does not part from full attention's")
        return
    lines = [
        f"parts at token {document['token']:,}: full attention {document['full_text']!r}, "
        f"{backend} {document['sparse_text']!r}",
        f"margin of full attention's token over the other: {document['margin_full']:+.4f} under "
        f"full attention, {document['margin_sparse']:+.4f} under {backend}",
    ]
    if not document["reproduced"]:
        lines.append("replayed alone, the step chooses other tokens: a tie, or other numbers")
    share = document["missed_in_prompt"]
    inside = "" if share is None else f", {100 * share:.0f}% of it in the prompt"
    lines.append(f"not read: {100 * document['missed']:.1f}% of full attention's weight{inside}")
    for line in lines:
        console.line(line)
    rows: list[tuple[str, ...]] = [
        (repr(row["text"]), row["where"], f"{row['position']:,}", f"{row['missed']:.3f}")
        for row in document["texts"]
    ]
    names: tuple[str, ...] = ("text", "where", "position", "weight")
    console.print(table("not read", names, rows, left=names[:2]))
    if document["not_put_back"]:
        console.line(f"nothing is put back: {document['not_put_back']}")
        return
    rows = []
    for attempt in document["put_back"]:
        which = "drawn" if attempt["control"] else "most missed"
        healed, agreed = "not healed", "—"
        if attempt["healed"]:
            end = ", the end" if attempt["to_the_end"] else ""
            healed, agreed = "healed", f"{attempt['agreed_tokens']:,} tokens{end}"
        rows.append((str(attempt["keys"]), which, healed, agreed, f"{attempt['margin']:+.4f}"))
    names = ("keys", "which", "step", "then", "margin")
    console.print(table("put back", names, rows, left=names[1:3]))
