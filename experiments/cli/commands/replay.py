"""`lil replay`: detectors over stored traces, and over texts from elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attention.errors import InvalidValue
from experiments.cli.console import Console, table
from experiments.cli.parser import Done, Parser
from experiments.cli.plain_text import over_texts
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
from experiments.grid.data.sets import is_file
from experiments.grid.detectors import build_detectors, detectors_like, typed_detectors
from experiments.grid.plan import distinct
from experiments.report import tables
from experiments.report.row import ReportRow, by_penalty
from experiments.store import manifest
from experiments.store.labels import labels
from experiments.store.study import Study
from lil import Detector
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
