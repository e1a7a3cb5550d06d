"""`lil replay`: detectors over stored traces, and over texts from elsewhere."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from attention.spec import values
from experiments.cli.console import Console, table
from experiments.cli.parser import Done, Parser
from experiments.cli.plain_text import COLUMNS, over_texts
from experiments.cli.progress import bar
from experiments.cli.reporting import document_of, report_of
from experiments.cli.stores import (
    add_load_flag,
    add_scorer_flag,
    add_store,
    open_store,
    require_notes,
    to_load,
    typed_detectors,
)
from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.data.sets import is_file
from experiments.grid.detectors import build_detectors, choices_of, combined
from experiments.report import tables
from experiments.report.row import DetectorEffect, ReportRow, by_penalty
from experiments.store import manifest
from experiments.store.labels import labels, short
from experiments.store.study import Study
from experiments.sweep import replay_check
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
    add_store(parser, also=", or a JSONL or CSV file of texts")
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
        help="values to try, such as budget.tokens=200,400; every combination is replayed; "
        "detector_params., as lil sweep has it, may stand before",
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
    typed, settings = typed_detectors(args.detector), _settings(args)
    if is_file(args.store):
        for name in ("check_live", "decode", "scorer", "load"):
            if flag := getattr(args, name):
                allowed = f"a store for --{name.replace('_', '-')}: {args.store} is a file of texts"
                raise InvalidValue(name, flag, allowed)
        config = Config()
        detectors = _detectors(typed, settings, config, build_detectors(config))
        models.quiet_transformers()
        file = Path(args.store)
        return Done(over_texts(file, args.tokenizer, args.column, detectors, console))
    for name in ("tokenizer", "column"):
        if (flag := getattr(args, name)) is not None:
            allowed = f"nothing for a store: {args.store} is no file of texts"
            raise InvalidValue(name, flag, allowed)
    study = open_store(Path(args.store), to_load(args, typed, settings), args.scorer)
    with study.config.following():
        detectors = _detectors(typed, settings, study.config, study.detectors)
    for detector in detectors:
        require_notes(detector, study)
    report = report_of(study, detectors)
    names = ("detector", "over", "stopped", "tokens saved", "solved", "lost", "gained")
    rows = list(_rows(report.rows, detectors))
    console.print(table("detectors over stored traces", names, rows, left=names[:2]))
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
        about["live"] = list(_check_live(study, detectors, args.decode, console))
        code = 1 if any(agreement["differ"] for agreement in about["live"]) else 0
    return Done(document_of(report, about), code)


def _settings(args: argparse.Namespace) -> list[str]:
    """All values to try, the short flags spelled out.

    Raises:
        InvalidValue: a short flag as well as --set, two names of one parameter, or no value.
    """
    settings = list(args.set)
    typed = [name for name in _SHORT if getattr(args, name) is not None]
    for name in typed:
        value, key = getattr(args, name), f"{_SHORT_FOR}.{name}="
        if any(text.strip().removeprefix("detector_params.").startswith(key) for text in args.set):
            raise InvalidValue(name, value, f"--{name} or --set, not both")
        if not values(value):
            raise InvalidValue(name, value, "one or more values, separated by commas")
        settings.append(key + value)
    for name, choices in choices_of(settings).items():
        for group in DETECTORS.find(name).aliases:
            both = [
                (parameter, f"--{parameter}" if short else f"--set {name}.{parameter}")
                for parameter in group
                for short in [name == _SHORT_FOR and parameter in typed]
                if parameter in choices
            ]
            if len(both) > 1:
                (_, first), (parameter, second), *_ = both
                allowed = f"{second} or {first}, not both"
                raise InvalidValue(parameter, choices[parameter], allowed)
    return settings


def _detectors(
    typed: Sequence[str], settings: Sequence[str], config: Config, own: Sequence[Detector]
) -> list[Detector]:
    """Every combination of the values to try, on top of the sweep's own parameters."""
    specs = [DETECTORS.spec(text) for text in typed]
    detectors = combined(config, specs, choices_of(settings))
    if not detectors:
        # What follows a verdict cannot be replayed; that the sweep's detectors fire can.
        for detector in own:
            plain = dataclasses.replace(detector, on_stop="stop")
            if plain not in detectors:
                detectors.append(plain)
    for detector in detectors:
        require_stop(detector, "what follows was not decoded")
    return detectors


def _rows(rows: Sequence[ReportRow], detectors: Sequence[Detector]) -> Iterator[tuple[str, ...]]:
    """A line for each detector: full attention, sparse methods, controls, nulls; by penalty."""
    for label, detector in zip(labels(detectors), detectors, strict=True):
        if len(detectors) == 1:
            params = {k: v for k, v in detector.params().items() if k != "on_stop"}  # always stop
            if params["region"] is None:
                del params["region"]
            label = f"{detector.name}({', '.join(f'{k}={short(v)}' for k, v in params.items())})"
            mine = [row for row in rows if row.detector != "none"]
        else:
            mine = [row for row in rows if row.detector == label]
        for penalty, part in by_penalty(mine).items():
            added = "" if penalty == "none" else f" + {penalty}"
            groups: dict[str, list[ReportRow]] = {"full": [], "sparse": []}
            for row in part:
                kind = _KINDS[row.role] if row.backend != "full" or row.role == "null" else "full"
                groups.setdefault(kind, []).append(row)
            for kind, group in groups.items():
                yield label, kind + added, *_cells(group)
                label = ""


_KINDS = {"method": "sparse", "control": "controls", "null": "null"}


def _cells(rows: Sequence[ReportRow]) -> list[str]:
    effect = DetectorEffect.total(filter(None, (row.detector_effect for row in rows)))
    lost, gained = effect.change.lost, effect.change.gained
    solved, saved = effect.solved - (lost or 0) + (gained or 0), effect.tokens.estimate
    return [
        str(sum(row.stopped for row in rows)),
        "—" if saved is None else f"{100 * saved:.1f}%",
        *("—" if lost is None else str(count) for count in (solved, lost, gained)),
    ]


def _check_live(
    study: Study, detectors: Sequence[Detector], decode: int, console: Console
) -> Iterator[dict[str, Any]]:
    """Compare replayed verdicts with fed and with decoded traces; prints and yields each."""
    for label, detector in zip(labels(detectors), detectors, strict=True):
        with bar("feeding", len(study.plan)) as advance:
            checks = {"fed token by token": replay_check.check_fed(study, detector, advance)}
        if decode:
            models.quiet_transformers()
            models.use_threads(study.config.threads)
            with bar("decoding", min(decode, len(study.plan))) as advance:
                agreement = replay_check.check_decoded(study, detector, decode, advance)
            checks["decoded live"] = agreement
        for how, agreement in checks.items():
            same = agreement.traces - len(agreement.differ)
            console.line(
                f"{label}, {how}: live and replayed agree on {same} of {agreement.traces} traces "
                f"({agreement.verdicts} verdicts)"
            )
            for line in agreement.differ[:10]:
                console.line(line)
            yield {"detector": label, "how": how, **dataclasses.asdict(agreement)}
