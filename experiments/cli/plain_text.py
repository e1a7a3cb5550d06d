"""Long texts on a terminal, and where detectors would have stopped texts from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.grid import models
from experiments.grid.data import rows as data_rows
from experiments.store.labels import labels
from lil import Detector, Verdict

#: Characters of a text that are shown where nobody asked for all.
SHOWN = 2000

#: Columns that may hold the text, the first that is there.
COLUMNS = ("text", "output")

_IDS = ("id", "item_id", "unique_id")
_LINES = 40  # of a table


def beginning_and_end(text: str, whole: bool, flag: str) -> str:
    """A text, of a long one its two ends and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters more: {flag}]\n{text[-half:]}"


def ending(text: str, whole: bool, flag: str) -> str:
    """A text, of a long one its end and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    return f"[{len(text) - SHOWN:,} characters before: {flag}]\n{text[-SHOWN:]}"


def dim(text: str, console: Console) -> None:
    """Print a text as it is, behind what is said about it."""
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


# ---------------------------------------------------------------- one text


class TextStop(TypedDict):
    """Where a detector stops a text: `fired_at` tokens were read, `kept` of `tokens` stay.

    `fired_at` and `evidence` are None where it does not.
    """

    detector: str
    fired_at: int | None
    kept: int
    kept_bytes: int
    tokens: int
    bytes: int
    evidence: dict[str, object] | None


def require_texts(detectors: Sequence[Detector]) -> None:
    """Refuse detectors that need more than a text, or go on after a verdict.

    Raises:
        InvalidValue: one reads hidden states, or its action writes on.
    """
    from lil.detectors import require_stop

    for one in detectors:
        if one.signals:
            allowed = "one that reads texts: hidden states of a text from elsewhere are not known"
            raise InvalidValue("detector", one.name, allowed)
        require_stop(one, "what would follow in a text from elsewhere nobody knows")


def stops_of(
    pieces: Sequence[bytes], detectors: Sequence[Detector], prompt: bytes = b""
) -> list[TextStop]:
    """Where each detector would have stopped a text, read to its end.

    Args:
        pieces: bytes of its tokens.
        detectors: that read texts alone.
        prompt: what stood before the text.
    """
    return [
        stop_of(label, pieces, one.watch(prompt).update(pieces))
        for label, one in zip(labels(detectors), detectors, strict=True)
    ]


def stop_of(label: str, pieces: Sequence[bytes], verdict: Verdict | None) -> TextStop:
    """A verdict on a text.

    Args:
        label: what the detector is called.
        pieces: bytes of the text's tokens.
        verdict: None where it was not stopped.
    """
    kept = len(pieces) if verdict is None else verdict.token
    return {
        "detector": label,
        "fired_at": None if verdict is None else verdict.step,
        "kept": kept,
        "kept_bytes": sum(map(len, pieces[:kept])),
        "tokens": len(pieces),
        "bytes": sum(map(len, pieces)),
        "evidence": None if verdict is None else dict(verdict.evidence),
    }


def sentence(stop: TextStop) -> str:
    """A verdict in words."""
    if stop["fired_at"] is None:
        return f"{stop['detector']} does not stop it ({stop['tokens']:,} tokens)"
    left = 100 * stop["kept"] / stop["tokens"]
    return (
        f"{stop['detector']} stops it at token {stop['fired_at']:,} of {stop['tokens']:,}: "
        f"{stop['kept']:,} tokens ({stop['kept_bytes']:,} bytes, {left:.0f}%) are left"
    )


# ---------------------------------------------------------------- texts of a file


class TextStops(TypedDict):
    """A text of a file and where each detector stops it."""

    id: str
    place: str
    tokens: int
    detectors: list[TextStop]


class StopSummary(TypedDict):
    """What a detector leaves of all texts."""

    label: str
    texts: int
    stopped: int
    tokens: int
    kept: int
    token_savings: float | None


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
    model = models.find_tokenizer(tokenizer)
    for one in detectors:
        one.require_tokens(model.table)
    stopped: list[TextStops] = []
    for row, (text, prompt) in zip(found, texts, strict=True):
        pieces = model.pieces(text)
        stops = stops_of(pieces, detectors, prompt.encode())
        id_ = data_rows.id_of(row, _IDS)
        stopped.append({"id": id_, "place": row.place, "tokens": len(pieces), "detectors": stops})
    console.print(_each(stopped))
    if len(stopped) * len(detectors) > _LINES:
        more = len(stopped) * len(detectors) - _LINES
        console.print(f"{more:,} lines more; --json has them all", highlight=False)
    summary = [_summed(label, stopped) for label in labels(detectors)]
    console.print(_summary(summary, len(stopped)))
    return {
        "file": str(file),
        "tokenizer": tokenizer,
        "detectors": [
            {**one, "name": detector.name, **detector.params()}
            for one, detector in zip(summary, detectors, strict=True)
        ],
        "texts": stopped,
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


def _summed(label: str, texts: Sequence[TextStops]) -> StopSummary:
    mine = [one for text in texts for one in text["detectors"] if one["detector"] == label]
    tokens, kept = sum(one["tokens"] for one in mine), sum(one["kept"] for one in mine)
    return {
        "label": label,
        "texts": len(mine),
        "stopped": sum(one["fired_at"] is not None for one in mine),
        "tokens": tokens,
        "kept": kept,
        "token_savings": 1 - kept / tokens if tokens else None,
    }


def _each(texts: Sequence[TextStops]) -> Table:
    table = Table(title="texts", title_justify="left", box=None, pad_edge=False)
    for name in ("text", "detector"):
        table.add_column(name)
    for name in ("tokens", "fired at", "left", "%"):
        table.add_column(name, justify="right")
    lines = [(text["id"], one) for text in texts for one in text["detectors"]]
    for id_, one in lines[:_LINES]:
        fired = "—" if one["fired_at"] is None else f"{one['fired_at']:,}"
        share = f"{100 * one['kept'] / one['tokens']:.0f}" if one["tokens"] else "—"
        cells = (f"{one['tokens']:,}", fired, f"{one['kept']:,}", share)
        table.add_row(escape(id_), escape(one["detector"]), *cells)
    return table


def _summary(summary: Sequence[StopSummary], texts: int) -> Table:
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
