"""Long texts on a terminal, and where detectors would have stopped texts from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.cli.console import Console, table
from experiments.grid import models
from experiments.grid.data import rows as data_rows
from experiments.store.labels import labels
from lil import Detector, Verdict, token_bytes

#: Characters of a text that are shown by default.
SHOWN = 2000

#: Columns that may hold the text, the first that is there.
COLUMNS = ("text", "output")

_IDS = ("id", "item_id", "unique_id")
_LINES = 40  # of a table


def shortened(text: str, flag: str, whole: bool = False) -> str:
    """A text, of a long text its two ends and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters more: {flag}]\n{text[-half:]}"


def over_texts(
    file: Path,
    name: str | None,
    detectors: Sequence[Detector],
    console: Console,
) -> dict[str, Any]:
    """Print where each detector would have stopped each text of a JSONL or CSV file.

    `name` is that of the model whose tokens are counted. Texts are in one of `COLUMNS`; a column
    `prompt` is the text before. Returns the document.
    """
    if name is None:
        allowed = "--tokenizer MODEL for texts: detectors count the tokens of a model"
        raise InvalidValue("tokenizer", None, allowed)
    for detector in detectors:
        if detector.signals:
            allowed = "one that reads texts: hidden states of a text from elsewhere are not known"
            raise InvalidValue("detector", detector.name, allowed)
    rows = data_rows.file_rows(file).rows
    if not rows:
        raise InvalidValue("file", str(file), "a file with at least one text")
    texts = [_text(row) for row in rows]
    tokenizer = models.find_tokenizer(name)
    table_of_bytes = token_bytes(tokenizer)
    for detector in detectors:
        detector.require_tokens(table_of_bytes)
    names = labels(detectors)
    documents: list[dict[str, Any]] = []
    for row, (text, prompt) in zip(rows, texts, strict=True):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        pieces = [table_of_bytes[i] for i in ids]
        stops = [
            _stop(label, pieces, detector.watch(prompt.encode()).update(pieces))
            for label, detector in zip(names, detectors, strict=True)
        ]
        about = {"id": data_rows.id_of(row, _IDS), "place": row.place, "tokens": len(pieces)}
        documents.append(about | {"detectors": stops})
    lines = [(text["id"], stop) for text in documents for stop in text["detectors"]]
    cells = [(id_, stop["detector"], *_counts(stop)) for id_, stop in lines[:_LINES]]
    columns = ("text", "detector", "tokens", "fired at", "left")
    console.print(table("texts", columns, cells, left=columns[:2]))
    if len(lines) > _LINES:
        console.plain(f"{len(lines) - _LINES:,} lines more; --json has them all")
    summary = [_summed(label, [stop for _, stop in lines]) for label in names]
    for total in summary:
        share = total["token_savings"]
        saved = "" if share is None else f", {100 * share:.1f}% saved"
        console.plain(
            f"{total['label']}: {total['stopped']:,} of {total['texts']:,} texts stopped, "
            f"{total['kept']:,} of {total['tokens']:,} tokens left{saved}"
        )
    params = [{"name": detector.name, **detector.params()} for detector in detectors]
    # A total has precedence over a parameter of the same name, such as `tokens` of `budget`.
    every = [own | row for row, own in zip(summary, params, strict=True)]
    return {"file": str(file), "tokenizer": name, "detectors": every, "texts": documents}


def _stop(label: str, pieces: Sequence[bytes], verdict: Verdict | None) -> dict[str, Any]:
    """Where a detector stops a text: `fired_at` tokens were read, `kept` of `tokens` stay."""
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


def _counts(stop: Mapping[str, Any]) -> tuple[str, str, str]:
    fired = "—" if stop["fired_at"] is None else f"{stop['fired_at']:,}"
    return f"{stop['tokens']:,}", fired, f"{stop['kept']:,}"


def _text(row: data_rows.Row) -> tuple[str, str]:
    """A line's text and the prompt before it."""
    name = next((name for name in COLUMNS if name in row.values), None)
    if name is None:
        allowed = f"a column {' or '.join(COLUMNS)}"
        raise InvalidValue(f"columns of {row.place}", ", ".join(row.values), allowed)
    prompt = row.values.get("prompt") or ""
    if not isinstance(prompt, str):
        raise InvalidValue(f"prompt in {row.place}", str(prompt)[:60], "a text")
    return data_rows.text_of(row, name), prompt


def _summed(label: str, every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
