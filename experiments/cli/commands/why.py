"""`lil why`: why a stored sparse text parted from full attention's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.commands.show import find
from experiments.cli.console import Console
from experiments.cli.open_store import say
from experiments.cli.parser import Done, Parser, comma_list
from experiments.grid import models
from experiments.grid.stored import model_of
from experiments.store.study import Study

if TYPE_CHECKING:
    from experiments.grid.plan import Run

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
    """Replay the step at which a run parted, and print what it did not read and what heals it."""
    keys = tuple(_number("keys", one, 1) for one in comma_list(args.keys))
    if not keys:
        raise InvalidValue("keys", args.keys, "one number of keys or more")
    top, seed = _number("top", args.top, 1), _number("seed", args.seed, 0)
    study, run = find(Study.each(Path(args.store)), args.run)
    say(study.warnings, Console(stderr=True))
    document = why(study, run, keys, seed)
    document["texts"] = document.get("texts", [])[:top]
    _print(document, console)
    return Done(document)


def _number(field: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise InvalidValue(field, text, f"a whole number, at least {least}")
    return int(text)


def why(
    study: Study,
    run: Run,
    keys: tuple[int, ...] = (1, 4, 16),
    seed: int = 0,
    shelf: dict[str, models.LoadedModel] | None = None,
) -> dict[str, Any]:
    """Why a run parted from full attention's, as a document.

    Args:
        study, run: which.
        keys: how many are put back, by turns.
        seed: of the keys drawn as a control.
        shelf: models that are loaded already; one that is loaded here is added.

    Raises:
        InvalidValue: no sparse greedy run with full attention's beside it in the store, or weights
            that are not those it was decoded with.
    """
    from experiments.why.parting import Texts, explained

    cell = run.configuration
    if cell.backend["name"] == "full":
        raise InvalidValue("run", cell.name, "a run of a sparse method")
    if cell.sampling["temperature"]:
        told = f"sampled at temperature {cell.sampling['temperature']}"
        raise InvalidValue("run", told, "a greedy run: sampled texts part by chance")
    mine, full = study.store.get(run.id), study.store.get(study.plan.full(run).id)
    for name, record in (("run", mine), ("full attention's run", full)):
        if record is None or record.failed:
            raise InvalidValue(name, run.item_id, "one that the store has a text of")
    assert mine is not None
    assert full is not None
    sparse, dense = mine.trace(), full.trace()
    if sparse.action is not None or dense.action is not None:
        raise InvalidValue("run", cell.name, "a run in which no detector acted")
    about = {
        "id": run.id,
        "full_id": study.plan.full(run).id,
        "item_id": run.item_id,
        "backend": cell.backend["name"],
        "budget": cell.budget,
        "prompt_tokens": len(sparse.prompt_ids),
    }
    if not any(a != b for a, b in zip(sparse.new_ids, dense.new_ids, strict=False)):
        return about | {"parts": False}
    backend, penalties = study.backend(cell), study.penalties(cell)
    models.quiet_transformers()
    loaded = model_of(study.config, cell, {} if shelf is None else shelf)
    texts = Texts(sparse.prompt_ids, dense.new_ids, sparse.new_ids)
    found = explained(
        loaded.model, backend, texts, penalties, keys=keys, seed=seed, engine=study.config.engine
    )
    assert found is not None
    pieces = loaded.token_bytes
    at, prompt = found["token"], len(sparse.prompt_ids)
    ids = [*sparse.prompt_ids, *sparse.new_ids[:at]]
    order = sorted(range(len(ids)), key=lambda i: -found["by_token"][i])
    named = [
        {
            "position": i,
            "where": "prompt" if i < prompt else "output",
            "text": pieces[ids[i]].decode(errors="replace"),
            "missed": found["by_token"][i],
        }
        for i in order
        if found["by_token"][i] > 0
    ]
    for side in ("full", "sparse"):
        found[f"{side}_text"] = pieces[found[f"{side}_token"]].decode(errors="replace")
    return about | {"parts": True} | found | {"texts": named}


def _print(document: dict[str, Any], console: Console) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    budget = "" if document["budget"] is None else f" {document['budget']}"
    console.rule(escape(f"{document['item_id']}, {document['backend']}{budget}"), align="left")
    if not document["parts"]:
        line("the text does not part from full attention's")
        return
    line(
        f"parts at token {document['token']:,}: full attention {document['full_text']!r}, "
        f"{document['backend']} {document['sparse_text']!r}"
    )
    line(
        f"margin of full attention's token over the other: {document['margin_full']:+.4f} under "
        f"full attention, {document['margin_sparse']:+.4f} under {document['backend']}"
    )
    if not document["reproduced"]:
        line("replayed alone, the step does not choose the stored tokens: a tie, or other numbers")
    share = document["missed_in_prompt"]
    inside = "" if share is None else f", {100 * share:.0f}% of it in the prompt"
    line(f"not read: {100 * document['missed']:.1f}% of full attention's weight{inside}")
    table = Table(title="not read", title_justify="left", box=None, pad_edge=False)
    for name in ("text", "where"):
        table.add_column(name)
    for name in ("position", "weight"):
        table.add_column(name, justify="right")
    for one in document["texts"]:
        cells = (f"{one['position']:,}", f"{one['missed']:.3f}")
        table.add_row(escape(repr(one["text"])), one["where"], *cells)
    console.print(table)
    if document["not_put_back"]:
        line(f"nothing is put back: {document['not_put_back']}")
        return
    table = Table(title="put back", title_justify="left", box=None, pad_edge=False)
    for name in ("keys", "which", "step", "then", "margin"):
        table.add_column(name, justify="left" if name in ("which", "step") else "right")
    for one in document["put_back"]:
        then = f"{one['agreed_tokens']:,} tokens" + (", the end" if one["to_the_end"] else "")
        table.add_row(
            str(one["keys"]),
            "drawn" if one["control"] else "most missed",
            "healed" if one["healed"] else "not healed",
            then if one["healed"] else "—",
            f"{one['margin']:+.4f}",
        )
    console.print(table)
