"""Long texts on a terminal, and where detectors would have stopped texts from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from attention.errors import InvalidValue
from experiments.cli.console import Console, table
from experiments.grid import models
from experiments.grid.data import rows as data_rows
from experiments.store.labels import labels
from lil import Detector, Verdict

#: Characters of a text that are shown by default.
SHOWN = 2000

#: Columns that may hold the text, the first that is there.
COLUMNS = ("text", "output")

_IDS = ("id", "item_id", "unique_id")
_LINES = 40  # of a table


def beginning_and_end(text: str, whole: bool, flag: str) -> str:
    """A text, of a long text its two ends and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters more: {flag}]\n{text[-half:]}"


def ending(text: str, whole: bool, flag: str) -> str:
    """A text, of a long text its end and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    return f"[{len(text) - SHOWN:,} characters before: {flag}]\n{text[-SHOWN:]}"


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
        InvalidValue: a detector reads hidden states, or its action writes on.
    """
    from lil.detectors import require_stop

    for detector in detectors:
        if detector.signals:
            allowed = "one that reads texts: hidden states of a text from elsewhere are not known"
            raise InvalidValue("detector", detector.name, allowed)
        require_stop(detector, "what would follow in a text from elsewhere nobody knows")


def stops_of(
    pieces: Sequence[bytes], detectors: Sequence[Detector], prompt: bytes = b""
) -> list[TextStop]:
    """Where each detector would have stopped a text, read to its end.

    Args:
        pieces: bytes of its tokens.
        detectors: that read texts alone.
        prompt: the text before it.
    """
    return [
        stop_of(label, pieces, detector.watch(prompt).update(pieces))
        for label, detector in zip(labels(detectors), detectors, strict=True)
    ]


def stop_of(label: str, pieces: Sequence[bytes], verdict: Verdict | None) -> TextStop:
    """A verdict, or none, on a text of these pieces."""
    left = len(pieces) if verdict is None else verdict.token
    return {
        "detector": label,
        "fired_at": None if verdict is None else verdict.step,
        "kept": left,
        "kept_bytes": sum(map(len, pieces[:left])),
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


def over_texts(
    file: Path,
    tokenizer: str | None,
    column: str | None,
    detectors: Sequence[Detector],
    console: Console,
) -> dict[str, Any]:
    """Print where each detector would have stopped each text of a file; returns the document.

    Args:
        file: JSONL or CSV; a column `prompt` is the text before.
        tokenizer: the name of the model whose tokens are counted.
        column: that holds the texts; None for one of `COLUMNS`.
        detectors: that read texts alone.

    Raises:
        InvalidValue: no tokenizer, a line that cannot be used, or a detector that cannot work here.
    """
    if tokenizer is None:
        allowed = "--tokenizer MODEL for texts: detectors count the tokens of a model"
        raise InvalidValue("tokenizer", None, allowed)
    require_texts(detectors)
    rows = data_rows.file_rows(file, None, None, 0).rows
    if not rows:
        raise InvalidValue("file", str(file), "a file with at least one text")
    texts = [_text(row, column) for row in rows]
    model = models.find_tokenizer(tokenizer)
    for detector in detectors:
        detector.require_tokens(model.table)
    stopped: list[dict[str, Any]] = []
    for row, (text, prompt) in zip(rows, texts, strict=True):
        pieces = model.pieces(text)
        about = {"id": data_rows.id_of(row, _IDS), "place": row.place, "tokens": len(pieces)}
        stopped.append(about | {"detectors": stops_of(pieces, detectors, prompt.encode())})
    lines = [(text["id"], stop) for text in stopped for stop in text["detectors"]]
    cells: list[tuple[str, ...]] = [
        (
            id_,
            stop["detector"],
            f"{stop['tokens']:,}",
            "—" if stop["fired_at"] is None else f"{stop['fired_at']:,}",
            f"{stop['kept']:,}",
            f"{100 * stop['kept'] / stop['tokens']:.0f}" if stop["tokens"] else "—",
        )
        for id_, stop in lines[:_LINES]
    ]
    names: tuple[str, ...] = ("text", "detector", "tokens", "fired at", "left", "%")
    console.print(table("texts", names, cells, left=names[:2]))
    if len(lines) > _LINES:
        console.line(f"{len(lines) - _LINES:,} lines more; --json has them all")
    summary = [_summed(label, [stop for _, stop in lines]) for label in labels(detectors)]
    cells = [
        (
            row["label"],
            *(f"{row[key]:,}" for key in ("stopped", "tokens", "kept")),
            "—" if row["token_savings"] is None else f"{100 * row['token_savings']:.1f}%",
        )
        for row in summary
    ]
    names = ("detector", "stopped", "tokens", "left", "tokens saved")
    console.print(table(f"{len(stopped):,} texts", names, cells, left=names[:1]))
    return {
        "file": str(file),
        "tokenizer": tokenizer,
        "detectors": [
            {**row, "name": detector.name, **detector.params()}
            for row, detector in zip(summary, detectors, strict=True)
        ],
        "texts": stopped,
    }


def _text(row: data_rows.Row, column: str | None) -> tuple[str, str]:
    """A line's text and the prompt before it."""
    if column is not None and column not in row.values:
        allowed = f"a column of {row.place} ({', '.join(row.values) or 'there is none'})"
        raise InvalidValue("column", column, allowed, row.values)
    name = column or next((name for name in COLUMNS if name in row.values), None)
    if name is None:
        allowed = f"a column {' or '.join(COLUMNS)}, or one that --column names"
        raise InvalidValue(f"columns of {row.place}", ", ".join(row.values), allowed)
    prompt = row.values.get("prompt") or ""
    if not isinstance(prompt, str):
        raise InvalidValue(f"prompt in {row.place}", str(prompt)[:60], "a text")
    return data_rows.text_of(row, name), prompt


def _summed(label: str, every: Sequence[TextStop]) -> dict[str, Any]:
    stops = [stop for stop in every if stop["detector"] == label]
    tokens, left = sum(stop["tokens"] for stop in stops), sum(stop["kept"] for stop in stops)
    return {
        "label": label,
        "texts": len(stops),
        "stopped": sum(stop["fired_at"] is not None for stop in stops),
        "tokens": tokens,
        "kept": left,
        "token_savings": 1 - left / tokens if tokens else None,
    }
