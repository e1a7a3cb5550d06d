"""`lil replay`: detectors over stored traces, and over texts from elsewhere."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue
from attention.spec import values
from experiments.cli.commands.report import DEFAULT_STORE
from experiments.cli.console import Console
from experiments.cli.open_store import (
    add_load_flag,
    add_scorer_flag,
    document_of,
    open_store,
    report_of,
    to_load,
)
from experiments.cli.parser import Done, Parser
from experiments.cli.plain_text import COLUMNS, over_texts
from experiments.cli.progress import bar
from experiments.grid import models
from experiments.grid.config import Config, check
from experiments.grid.data.sets import is_file
from experiments.grid.detectors import build_detectors, choices_of, combined
from experiments.report import tables
from experiments.report.row import DetectorEffect, ReportRow, by_penalty
from experiments.store import manifest
from experiments.store.labels import labels, short
from experiments.store.study import Study
from experiments.sweep import replay_check as check_live
from lil import Detector
from lil.detectors import DETECTORS, require_stop

EXAMPLES = """\
examples:
  lil replay                                  the sweep's own detectors again
  lil replay --detector guardian,cycle        these two
  lil replay --set budget.tokens=200,400 --set cycle.repeats=3,4
      any parameter of any detector, every combination
  lil replay --f 50,100,200 --rate 0.04,0.08  the same for Guardian, shorter
  lil replay --f 250 --t 20                   threshold in bytes instead of bytes per token
  lil replay --check-live                     live = replayed, on every trace of the sweep
  lil replay --check-live --decode 50         and with the model really decoding, on 50 of them
  lil replay texts.jsonl --tokenizer ./my-model --detector guardian,cycle
      texts that you have: a line {"text": ...} each (or "output"; "id" and "prompt" if known);
      they are cut into the model's tokens anew
"""

#: Whose parameters have flags of their own, and these: each with its values and what it is.
_SHORT_FOR = "guardian"
_SHORT = {
    "f": ("N,...", "tokens between two checks"),
    "rate": ("X,...", "threshold in bytes per token"),
    "t": ("N,...", "threshold in bytes per f tokens"),
    "codec": ("NAME,...", "compressor"),
}


def add_arguments(parser: Parser) -> None:
    """Flags of `lil replay`."""
    parser.add_argument(
        "store",
        nargs="?",
        default=DEFAULT_STORE,
        help=f"folder of a sweep ({DEFAULT_STORE}), or a JSONL or CSV file of texts",
    )
    group = parser.add_argument_group("texts from elsewhere")
    group.add_argument(
        "--tokenizer", metavar="ID|DIR", help="the model whose tokens detectors count"
    )
    group.add_argument(
        "--column", metavar="NAME", help=f"that holds the texts ({' or '.join(COLUMNS)})"
    )
    add_scorer_flag(parser)
    group = parser.add_argument_group("detectors (default: those given parameters, or the sweep's)")
    group.add_argument(
        "--detector",
        metavar="NAME|FILE,...",
        help="such as guardian,cycle, or what `lil calibrate` wrote",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME.PARAMETER=VALUE,...",
        help="values to try, such as budget.tokens=200,400; every combination is replayed",
    )
    add_load_flag(group)
    group = parser.add_argument_group(f"short for --set {_SHORT_FOR}.PARAMETER=")
    for parameter, (metavar, line) in _SHORT.items():
        group.add_argument(f"--{parameter}", metavar=metavar, help=line)
    group = parser.add_argument_group("proof that live equals replayed")
    group.add_argument(
        "--check-live", action="store_true", help="feed every trace token by token and compare"
    )
    group.add_argument(
        "--decode", type=int, default=0, metavar="N", help="and really decode N of them again"
    )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Replay, print what each detector saves, and compare with live where asked."""
    if args.decode < 0:
        raise InvalidValue("decode", args.decode, "0 or more traces")
    if is_file(args.store):
        return Done(_texts(args, console))
    for name in ("tokenizer", "column"):
        if (given := getattr(args, name)) is not None:
            allowed = f"nothing for a store: {args.store} is no file of texts"
            raise InvalidValue(name, given, allowed)
    notes = Console(stderr=True)
    study = open_store(
        Path(args.store), notes, to_load(args, _asked(args), _settings(args)), args.scorer
    )
    with study.config.following():
        detectors = _detectors(args, study.config, study.detectors)
    for one in detectors:
        require_notes(one, study)
    report = report_of(study, detectors, notes)
    console.print(_table(report.rows, detectors))
    for grid in tables.pool_grids(report.pools):
        console.print(tables.rich_table(grid, console.width))
    about: dict[str, Any] = manifest.public(study.manifest) | {
        "detectors": [
            {"label": label, "name": d.name, **d.params()}
            for label, d in zip(labels(detectors), detectors, strict=True)
        ],
        "runs_missing": report.missing,
    }
    code = 0
    if args.check_live or args.decode:
        agreements = _check_live(study, detectors, args.decode, console)
        about["live"] = agreements
        code = 0 if all(not one["differ"] for one in agreements) else 1
    return Done(document_of(report, about), code)


def _settings(args: argparse.Namespace) -> list[str]:
    """All values to try, the short flags spelled out.

    Raises:
        InvalidValue: a short flag beside --set, or without a value.
    """
    settings = list(args.set)
    for parameter in _SHORT:
        given = getattr(args, parameter)
        if given is None:
            continue
        told = f"{_SHORT_FOR}.{parameter}="
        if any(text.strip().removeprefix("detector_params.").startswith(told) for text in args.set):
            raise InvalidValue(parameter, given, f"--{parameter} or --set, not both")
        if not values(given):
            raise InvalidValue(parameter, given, "one or more values, separated by commas")
        settings.append(told + given)
    return settings


def _asked(args: argparse.Namespace) -> tuple[str, ...]:
    """Detectors as they were typed."""
    asked: tuple[str, ...]
    asked = check({"detectors": args.detector or "none"}, "--detector")["detectors"]
    return asked


def _texts(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The same over a file of texts, with the detectors' own parameters."""
    for name in ("check_live", "decode", "scorer", "load"):
        if given := getattr(args, name):
            allowed = f"a store for --{name.replace('_', '-')}: {args.store} is a file of texts"
            raise InvalidValue(name, given, allowed)
    config = Config()
    detectors = _detectors(args, config, build_detectors(config))
    models.quiet_transformers()
    return over_texts(Path(args.store), args.tokenizer, args.column, detectors, console)


def _detectors(
    args: argparse.Namespace, config: Config, own_detectors: Sequence[Detector]
) -> list[Detector]:
    """Every combination of the parameters given, on top of the sweep's own."""
    choices = choices_of(_settings(args))
    for name, tried in choices.items():
        for group in DETECTORS.find(name).aliases:
            if len(both := [one for one in group if one in tried]) > 1:
                short = [one in _SHORT and getattr(args, one) is not None for one in both]
                said = [
                    f"--{one}" if is_short else f"--set {name}.{one}"
                    for one, is_short in zip(both, short, strict=True)
                ]
                raise InvalidValue(both[1], tried[both[1]], f"{said[1]} or {said[0]}, not both")
    found = combined(config, [DETECTORS.spec(one) for one in _asked(args)], choices)
    if not found:
        # What follows a verdict cannot be replayed; that the sweep's detectors fire can.
        for detector in own_detectors:
            plain = dataclasses.replace(detector, on_stop="stop")
            if plain not in found:  # two that differ in what follows are one here
                found.append(plain)
    for one in found:
        require_stop(one, "what follows was not decoded")
    return found


def require_notes(detector: Detector, study: Study) -> None:
    """Hidden states are not stored: a detector of them can replay what was noted, nothing else.

    Raises:
        InvalidValue: runs of the study lack these notes.
    """
    if lacking := study.without_notes(detector):
        served = sum(study.usable(run) is not None for run in study.runs())
        allowed = (
            f"runs decoded with it at work: {lacking} of {served} in {study.folder} lack its "
            f"notes of hidden states; the sweep's own command with --detector {detector.name} "
            "added decodes them again"
        )
        raise InvalidValue("detector", detector.name, allowed)


def _table(rows: Sequence[ReportRow], detectors: Sequence[Detector]) -> Table:
    """A line a detector over all sparse methods; full, controls, nulls and penalties apart."""
    table = Table(title="detectors over stored traces", title_justify="left", box=None)
    table.add_column("detector")
    for name in ("over", "stopped", "tokens saved", "solved", "lost", "gained"):
        table.add_column(name, justify="right")
    for label, detector in zip(labels(detectors), detectors, strict=True):
        told = {k: v for k, v in detector.params().items() if k != "on_stop"}  # always stop
        if told["region"] is None:
            del told["region"]
        params = ", ".join(f"{k}={short(v)}" for k, v in told.items())
        shown = label if len(detectors) > 1 else f"{detector.name}({params})"
        parts = [
            (kind + ("" if penalty == "none" else f" + {penalty}"), chosen)
            for penalty, part in by_penalty([r for r in rows if r.detector == label]).items()
            for kind, chosen in (
                ("full", [r for r in part if r.backend == "full"]),
                ("sparse", [r for r in part if r.role == "method" and r.backend != "full"]),
                ("controls", [r for r in part if r.role == "control"]),
                ("null", [r for r in part if r.role == "null"]),
            )
            if chosen or kind in ("full", "sparse")
        ]
        for name, chosen in parts:
            effect = DetectorEffect.total(filter(None, (row.detector_effect for row in chosen)))
            lost, gained = effect.change.lost, effect.change.gained
            solved = effect.solved - (lost or 0) + (gained or 0)
            saved = effect.tokens.estimate
            table.add_row(
                escape(shown) if name == parts[0][0] else "",
                escape(name),
                str(sum(row.stopped for row in chosen)),
                "—" if saved is None else f"{100 * saved:.1f}%",
                *("—" if lost is None else str(count) for count in (solved, lost, gained)),
            )
    return table


def _check_live(
    study: Study, detectors: Sequence[Detector], decode: int, console: Console
) -> list[dict[str, Any]]:
    config = study.config
    found = []
    for label, detector in zip(labels(detectors), detectors, strict=True):
        with bar("feeding", len(study.plan)) as advance:
            fed = check_live.check_fed(study, detector, advance)
        found.append(_told(label, "fed token by token", fed, console))
        if decode:
            models.quiet_transformers()
            models.use_threads(config.threads)
            device = models.resolve_device(config.device)
            with bar("decoding", min(decode, len(study.plan))) as advance:
                decoded = check_live.check_decoded(study, detector, device, decode, advance)
            found.append(_told(label, "decoded live", decoded, console))
    return found


def _told(label: str, how: str, found: check_live.Agreement, console: Console) -> dict[str, Any]:
    same = found.traces - len(found.differ)
    console.print(
        f"{label}, {how}: live and replayed agree on {same} of {found.traces} traces "
        f"({found.verdicts} verdicts)",
        markup=False,
        highlight=False,
    )
    for line in found.differ[:10]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return {"detector": label, "how": how, **dataclasses.asdict(found)}
