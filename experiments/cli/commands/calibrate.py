"""`lil calibrate`: a detector's setting for a model and task, with a promise about false stops."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue, check_number
from attention.spec import Spec, merge
from experiments.cli.commands.replay import require_notes
from experiments.cli.commands.report import DEFAULT_STORE
from experiments.cli.console import Console
from experiments.cli.open_store import add_load_flag, open_store, report_of, to_load
from experiments.cli.parser import Done, Parser
from experiments.grid.detectors import choices_of, defaults_of
from experiments.report.calibration import Half, by_problem, chosen, in_halves, needed
from experiments.report.exports import check_file
from experiments.store import manifest
from experiments.store.files.filesystem import write_atomically
from experiments.store.labels import labels
from experiments.store.samples.sample import is_usable
from experiments.store.study import Study
from lil import Detector
from lil.detectors import CALIBRATED, DETECTORS, build, to_spec

EXAMPLES = """\
examples:
  lil calibrate --detector recurrence --rate 0.05        of the last sweep's store
  lil calibrate lil-out/mine --detector guardian --set guardian.rate=0.02,0.04,0.08
      other settings, the most cautious first
  lil sweep --detector recurrence-calibrated.json:answer and then use what was written

A false stop is a verdict on a trace that should end by itself: full attention's, if it did, and a
sparse one with the right answer. The rate is the mean over problems; the promise is chosen on one
half of the problems and looked at on the other.
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil calibrate`."""
    parser.add_argument(
        "store", nargs="?", default=DEFAULT_STORE, help=f"folder of a sweep ({DEFAULT_STORE})"
    )
    parser.add_argument("--detector", required=True, metavar="NAME", help="such as recurrence")
    add_load_flag(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME.PARAMETER=VALUE,...",
        help="settings to try, the most cautious first (default: the detector's own); of other "
        "parameters one value each",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=0.005,
        help="of false stops, which is to stay below it with 95%% confidence (0.005)",
    )
    parser.add_argument("--model", help="whose traces, where the store has several models'")
    parser.add_argument("--seed", type=int, default=0, help="of the halves (0)")
    parser.add_argument(
        "--out", metavar="FILE", help="what is written (default: NAME-calibrated.json, here)"
    )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Try the settings in order, print what each does on both halves, write the last that holds."""
    check_number("rate", args.rate, "a number above 0 and below 1", above=0, below=1)
    if args.out is not None:
        check_file("out", args.out)
    notes = Console(stderr=True)
    study = open_store(Path(args.store), notes, to_load(args, [args.detector], args.set))
    models = sorted({cell.model for cell in study.plan.configurations})
    if args.model not in models and (args.model or len(models) > 1):
        raise InvalidValue("model", args.model, f"one of {', '.join(models)}", models)
    model = args.model or models[0]
    with study.config.following():
        settings = _settings(args, study)
    require_notes(settings[0], study)
    names = labels(settings)
    samples = [one for one in report_of(study, settings, notes).samples if one.model == model]
    plain = (one for one in samples if one.detector == "none" and one.role != "null")
    missing = sum(not is_usable(one) for one in plain)
    if missing:
        allowed = (
            f"one with all runs of its sweep: {missing} failed or are not there, and those are the "
            "longest; the sweep's own command decodes them"
        )
        raise InvalidValue("store", str(args.store), allowed)
    traces = by_problem(samples, names)
    first, second = (Half(half, names) for half in in_halves(traces, args.seed))
    at = chosen(first.clean, len(settings), args.rate)
    console.print(_table(settings, names, first, second, at, args.rate))
    if at is None:
        raise _refused(args.rate, first, names[0])
    path = Path(args.out or f"{settings[0].name}-calibrated.json")
    made = {
        "format": CALIBRATED,
        "detector": _table_of(settings[at]),
        "rate": args.rate,
        "model": model,
        "datasets": sorted({dataset for dataset, _ in traces}),
        "store": str(study.folder),
        "seed": args.seed,
        "tried": names,
        "chosen": names[at],
        "chosen_on": first.told(at),
        "other_half": second.told(at),
    }
    write_atomically(path, json.dumps(made, indent=1) + "\n")
    other = second.false_stops(at)
    console.print(
        f"{names[at]}: below {args.rate:g} false stops with 95% confidence; on the other half "
        f"{other.stopped} of {other.traces} traces, {other.problems_stopped} of {other.problems} "
        f"problems (at most {other.high:.2%}). Written to {path}{_spelt(settings[at])}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    about = manifest.public(study.manifest)
    return Done({"manifest": about, "file": str(path), **made, "settings": _told(first, second)})


def _table_of(detector: Detector) -> dict[str, Any]:
    spec = to_spec(detector)
    return {"name": spec.name, **spec.params}


def _spelt(detector: Detector) -> str:
    """How one that does not ship is given: a file names no import path."""
    spec = to_spec(detector)
    return f", which loads no code: --detector {str(spec)!r}" if ":" in spec.name else ""


def _settings(args: argparse.Namespace, study: Study) -> list[Detector]:
    """The detector with each value of the one parameter that is tried, the most cautious first."""
    spec = DETECTORS.spec(args.detector)
    kind = DETECTORS.find(spec.name)
    if spec.action or spec.is_file:
        raise InvalidValue("detector", args.detector, "a name, or with parameters: NAME(A=1)")
    choices = choices_of(args.set)
    for other in choices.keys() - {spec.name}:
        key = next(iter(choices[other]))
        allowed = f"a parameter of {spec.name}"
        raise InvalidValue("--set", f"{other}.{key}", allowed, [f"{spec.name}.{key}"])
    given = choices.get(spec.name, {})
    several = [key for key, found in given.items() if len(found) > 1]
    if len(several) > 1:
        raise InvalidValue("--set", ", ".join(args.set), "several values of one parameter alone")
    parameter, values = ("", ()) if several else kind.steps()
    same = next((group for group in kind.aliases if parameter in group), (parameter,))
    if own := several or [key for key in same if key in given]:
        parameter = own[0]
        values = given[parameter]
    if not values:
        allowed = f"--set {spec.name}.PARAMETER=VALUE,... with the settings to try: "
        raise InvalidValue("detector", spec.name, f"{allowed}{spec.name} has none")
    fixed = {key: found[0] for key, found in given.items() if key != parameter}
    params = merge(spec.params, fixed, kind.aliases)
    defaults = defaults_of(study.config)
    tried = [
        build(
            Spec(spec.name, merge(params, {parameter: value}, kind.aliases), "stop"),
            defaults=defaults,
        )
        for value in values
    ]
    for one, again in itertools.combinations(tried, 2):
        if one == again:
            raise InvalidValue("--set", str(values), "settings that differ")
    return tried


def _refused(rate: float, half: Half, cautious: str) -> InvalidValue:
    least = needed(rate)
    problems = len(half.clean)
    if problems < least:
        return InvalidValue(
            "rate",
            rate,
            f"more problems, or a higher rate: {least} problems with a clean trace on the half to "
            f"choose on would be needed, none of them stopped, and there are {problems}, which "
            f"can prove no rate below {half.false_stops(0).high:.2%}",
        )
    found = half.false_stops(0)
    return InvalidValue(
        "rate",
        rate,
        f"a more cautious setting, or a higher rate: {cautious}, the most cautious tried, stops "
        f"{found.stopped} of {found.traces} clean traces, which proves no rate below "
        f"{found.high:.2%}",
    )


def _told(first: Half, second: Half) -> list[dict[str, Any]]:
    return [
        {"setting": name, "first_half": first.told(at), "other_half": second.told(at)}
        for at, name in enumerate(first.names)
    ]


def _table(
    settings: Sequence[Detector],
    names: Sequence[str],
    first: Half,
    second: Half,
    at: int | None,
    rate: float,
) -> Table:
    title = f"false stops of {settings[0].name}, wanted below {rate:g}"
    table = Table(title=escape(title), title_justify="left", box=None)
    table.add_column("setting", no_wrap=True)
    for name in ("problems", "rate", "at most", "saved", "loops", "tails", "other half"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, name in enumerate(names):
        here, there = first.false_stops(place), second.false_stops(place)
        saved = first.told(place)["saved"]
        told = name.partition("(")[2].removesuffix(")") or name
        table.add_row(
            escape(told) + (" *" if place == at else ""),
            f"{here.problems_stopped} of {here.problems}",
            _percent(here.rate),
            _percent(here.high),
            *(_percent(saved[kind]) for kind in ("paid_tokens", "wasted_loop", "wasted_tail")),
            f"{there.problems_stopped} of {there.problems}, {_percent(there.rate)}",
        )
    return table


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.3g}%"
