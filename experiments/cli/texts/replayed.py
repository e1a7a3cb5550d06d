"""Detectors over texts that came from elsewhere: a line of JSON, or of CSV, each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.texts.stops import require_texts, watched
from experiments.grid import tokenizers
from experiments.grid.data import rows as data_rows
from experiments.store.labels import labels
from lil import Detector

#: Columns that may hold the text, the first that is there.
COLUMNS = ("text", "output")

_IDS = ("id", "item_id", "unique_id")
_LINES = 40  # of a table


def over_texts(
    file: Path,
    tokenizer: str | None,
    column: str | None,
    detectors: Sequence[Detector],
    console: Console,
) -> dict[str, Any]:
    """Print where each detector would have stopped each text; the same as a document.

    Args:
        file: JSONL or CSV; a column `prompt` is what stood before the text.
        tokenizer: the name of the model whose tokens are counted.
        column: that holds the texts; None for one of `COLUMNS`.
        detectors: that read texts alone.
        console: where it goes.

    Raises:
        InvalidValue: no tokenizer, a line that cannot be used, or a detector that cannot work here.
    """
    if tokenizer is None:
        allowed = "--tokenizer MODEL for texts: detectors count the tokens of a model"
        raise InvalidValue("tokenizer", None, allowed)
    require_texts(detectors)
    found = data_rows.file_rows(file, None, None, 0).rows
    if not found:
        raise InvalidValue("file", str(file), "a file with at least one text")
    texts = [_text(row, column) for row in found]
    model = tokenizers.load(tokenizer)
    for one in detectors:
        one.require_tokens(model.table)
    told = []
    for row, (text, prompt) in zip(found, texts, strict=True):
        pieces = model.pieces(text)
        stops = watched(pieces, detectors, prompt.encode())
        id_ = data_rows.id_of(row, _IDS)
        told.append({"id": id_, "place": row.place, "tokens": len(pieces), "detectors": stops})
    console.print(_each(told))
    if len(told) * len(detectors) > _LINES:
        more = len(told) * len(detectors) - _LINES
        console.print(f"{more:,} lines more; --json has them all", highlight=False)
    summary = [_summed(label, told) for label in labels(detectors)]
    console.print(_summary(summary, len(told)))
    return {
        "file": str(file),
        "tokenizer": tokenizer,
        "detectors": [
            {**one, "name": detector.name, **detector.params()}
            for one, detector in zip(summary, detectors, strict=True)
        ],
        "texts": told,
    }


def _text(row: data_rows.Row, column: str | None) -> tuple[str, str]:
    """A line's text and what stood before it."""
    if column is not None and column not in row.values:
        allowed = f"a column of {row.place} ({', '.join(row.values) or 'there is none'})"
        raise InvalidValue("column", column, allowed, row.values)
    name = column or next((one for one in COLUMNS if one in row.values), None)
    if name is None:
        allowed = f"a column {' or '.join(COLUMNS)}, or one that --column names"
        raise InvalidValue(f"columns of {row.place}", ", ".join(row.values), allowed)
    prompt = row.values.get("prompt") or ""
    if not isinstance(prompt, str):
        raise InvalidValue(f"prompt in {row.place}", str(prompt)[:60], "a text")
    return data_rows.text_of(row, name), prompt


def _summed(label: str, told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    mine = [one for text in told for one in text["detectors"] if one["detector"] == label]
    tokens, kept = sum(one["tokens"] for one in mine), sum(one["kept"] for one in mine)
    return {
        "label": label,
        "texts": len(mine),
        "stopped": sum(one["fired_at"] is not None for one in mine),
        "tokens": tokens,
        "kept": kept,
        "token_savings": 1 - kept / tokens if tokens else None,
    }


def _each(told: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="texts", title_justify="left", box=None, pad_edge=False)
    for name in ("text", "detector"):
        table.add_column(name)
    for name in ("tokens", "fired at", "left", "%"):
        table.add_column(name, justify="right")
    lines = [(text["id"], one) for text in told for one in text["detectors"]]
    for id_, one in lines[:_LINES]:
        fired = "—" if one["fired_at"] is None else f"{one['fired_at']:,}"
        share = f"{100 * one['kept'] / one['tokens']:.0f}" if one["tokens"] else "—"
        cells = (f"{one['tokens']:,}", fired, f"{one['kept']:,}", share)
        table.add_row(escape(id_), escape(one["detector"]), *cells)
    return table


def _summary(summary: Sequence[dict[str, Any]], texts: int) -> Table:
    table = Table(title=f"{texts:,} texts", title_justify="left", box=None, pad_edge=False)
    table.add_column("detector")
    for name in ("stopped", "tokens", "left", "tokens saved"):
        table.add_column(name, justify="right")
    for one in summary:
        saved = one["token_savings"]
        table.add_row(
            escape(one["label"]),
            f"{one['stopped']:,}",
            f"{one['tokens']:,}",
            f"{one['kept']:,}",
            "—" if saved is None else f"{100 * saved:.1f}%",
        )
    return table
