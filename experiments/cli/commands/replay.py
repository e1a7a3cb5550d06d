"""`lil replay`: detectors over stored traces, and over texts from elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.cli.console import Console, table
from experiments.cli.parser import Done, Parser
from experiments.cli.reporting import document_of, report_of
from experiments.cli.stores import (
    add_load_flag,
    add_scorer_flag,
    add_set_flag,
    add_store,
    open_store,
    require_notes,
    to_load,
)
from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.data import rows as data_rows
from experiments.grid.data.sets import is_file
from experiments.grid.detectors import build_detectors, detectors_like, labels, typed_detectors
from experiments.grid.plan import distinct
from experiments.report import tables
from experiments.report.row import ReportRow, by_penalty
from experiments.store import manifest
from experiments.store.study import Study
from lil import Detector, Verdict, token_bytes
from lil.detectors import require_stop

EXAMPLES = """\
examples:
  lil replay                                  the sweep's own detectors again
  lil replay --detector guardian,cycle        these two
  lil replay --set guardian.f=50,100,200 --set guardian.rate=0.04,0.08
      any parameter of any detector, every combination
  lil replay texts.jsonl --tokenizer ./my-model --detector guardian,cycle
      texts that you have: a line {"text": ...} each (or "output"; "id" and "prompt" if known);
      they are cut into the model's tokens anew
"""

_KINDS = {"method": "sparse", "control": "controls", "null": "null"}


def add_arguments(parser: Parser) -> None:
    """Flags of `lil replay`."""
    add_store(parser, also=", or a JSONL or CSV file of texts")
    group = parser.add_argument_group("texts from elsewhere")
    group.add_argument("--tokenizer", metavar="ID|DIR", help="the model whose tokens they count")
    add_scorer_flag(parser)
    group = parser.add_argument_group("detectors (default: those with values, or the sweep's)")
    group.add_argument("--detector", metavar="NAME|FILE,...", help="such as guardian,cycle")
    add_set_flag(group, "values to try, such as budget.tokens=200,400; all are combined")
    add_load_flag(group)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Replay the traces and print what each detector saves."""
    specs = typed_detectors(args.detector, args.set)
    is_text = is_file(args.store)
    for name in ("scorer", "load") if is_text else ("tokenizer",):
        if (flag := getattr(args, name)) is not None:
            kind = "a file of texts" if is_text else "a store"
            raise InvalidValue(name, flag, f"no --{name}, because {args.store} is {kind}")
    if is_text:
        config = Config()
        detectors = _replayable(detectors_like(config, specs) or build_detectors(config))
        models.quiet_transformers()
        return Done(over_texts(Path(args.store), args.tokenizer, detectors, console))
    study = open_store(Path(args.store), to_load(args.load, specs), args.scorer)
    # What follows a verdict cannot be replayed; that the sweep's detectors fire can.
    plain = distinct(replace(detector, on_stop="stop") for detector in study.detectors)
    detectors = _replayable(detectors_like(study.config, specs) or plain)
    for detector in detectors:
        require_notes(detector, study)
    return _replay(study, detectors, console)


def _replayable(detectors: Sequence[Detector]) -> Sequence[Detector]:
    """The same, if none of them goes on after its verdict."""
    for detector in detectors:
        require_stop(detector, "what follows was not decoded")
    return detectors


def _replay(study: Study, detectors: Sequence[Detector], console: Console) -> Done:
    """Print what each detector saves of stored traces."""
    report = report_of(study, detectors)
    names = ("detector", "over", "stopped", "tokens saved", "solved", "lost", "gained")
    rows = list(_rows(report.rows, detectors))
    console.print(table("detectors over stored traces", names, rows, left=names[:2]))
    for grid in tables.pool_grids(report.pools):
        console.print(tables.rich_table(grid, console.width))
    each = zip(labels(detectors), detectors, strict=True)
    replayed = [{"label": label, "name": d.name, **d.params()} for label, d in each]
    about = {"detectors": replayed, "runs_missing": report.missing}
    return Done(document_of(report, manifest.public(study.manifest) | about))


def _rows(rows: Sequence[ReportRow], detectors: Sequence[Detector]) -> Iterator[tuple[str, ...]]:
    """A line for each detector: full attention, sparse methods, controls, nulls; by penalty."""
    for label in labels(detectors):
        for penalty, part in by_penalty([row for row in rows if row.detector == label]).items():
            added = "" if penalty == "none" else f" + {penalty}"
            groups: dict[str, list[ReportRow]] = {"full": [], "sparse": []}
            for row in part:
                kind = _KINDS[row.role] if row.backend != "full" or row.role == "null" else "full"
                groups.setdefault(kind, []).append(row)
            for kind, group in groups.items():
                yield label, kind + added, *_cells(group)
                label = ""


def _cells(rows: Sequence[ReportRow]) -> list[str]:
    effects = [row.detector_effect for row in rows if row.detector_effect is not None]
    paid, without = sum(e.paid for e in effects), sum(e.paid_without for e in effects)
    judged = [e.change for e in effects if e.change.lost is not None]
    lost, gained = sum(c.lost or 0 for c in judged), sum(c.gained or 0 for c in judged)
    solved = sum(e.solved for e in effects) - lost + gained
    return [
        str(sum(row.stopped for row in rows)),
        f"{100 * (1 - paid / without):.1f}%" if without else "—",
        *(str(count) if judged else "—" for count in (solved, lost, gained)),
    ]


#: Columns that may hold the text, the first that is there.
COLUMNS = ("text", "output")

_IDS = ("id", "item_id", "unique_id")
_LINES = 40  # of a table


def over_texts(
    file: Path, name: str | None, detectors: Sequence[Detector], console: Console
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
