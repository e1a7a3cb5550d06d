"""`lil calibrate`: a detector's setting for a model and task, with a promise about false stops."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from attention.errors import InvalidValue, check_number
from experiments.cli.console import Console, table
from experiments.cli.parser import Done, Parser
from experiments.cli.reporting import complete_samples
from experiments.cli.stores import (
    add_load_flag,
    add_set_flag,
    add_store,
    open_store,
    require_notes,
    to_load,
)
from experiments.grid.detectors import detectors_like, labels, steps_of, typed_choices
from experiments.report.calibration import (
    FALSE_STOPS,
    Split,
    choose_setting,
    min_problems,
    split,
    traces_by_problem,
)
from experiments.report.exports import check_file
from experiments.store import manifest
from experiments.store.files.filesystem import write_atomically
from lil.detectors import CALIBRATED, DETECTORS, to_spec

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
    rate = "of false stops, which is to stay below it with 95%% confidence (0.005)"
    add_store(parser)
    parser.add_argument("--detector", required=True, metavar="NAME", help="such as recurrence")
    add_load_flag(parser)
    add_set_flag(parser, "settings to try, the most cautious first (default: the detector's own)")
    parser.add_argument("--rate", type=float, default=0.005, help=rate)
    parser.add_argument("--model", help="whose traces, where the store has several models'")
    parser.add_argument("--seed", type=int, default=0, help="of the halves (0)")
    parser.add_argument("--out", metavar="FILE", help="what is written (NAME-calibrated.json)")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Try the settings in order, print what each does on both halves, write the last that holds."""
    check_number("rate", args.rate, "a number above 0 and below 1", above=0, below=1)
    if args.out is not None:
        check_file("out", args.out)
    specs = steps_of(DETECTORS.spec(args.detector), typed_choices(args.set))
    study = open_store(Path(args.store), to_load(args.load, specs))
    models = sorted({configuration.model for configuration in study.plan.configurations})
    if args.model not in models and (args.model or len(models) > 1):
        raise InvalidValue("model", args.model, f"one of {', '.join(models)}", models)
    model = args.model or models[0]
    settings = detectors_like(study.config, specs)
    if len(settings) < len(specs):
        raise InvalidValue("--set", ", ".join(args.set), "settings that differ")
    require_notes(settings[0], study)
    names = labels(settings)
    samples = [s for s in complete_samples(study, settings) if s.model == model]
    traces = traces_by_problem(samples, names)
    first, second = split(traces, names, args.seed, FALSE_STOPS)
    at = choose_setting(first.clean, len(settings), args.rate)
    rows = [_cells(place, first, second, at) for place in range(len(names))]
    columns = ("setting", "problems", "rate", "at most", "saved", "loops", "tails", "other half")
    title = f"false stops of {settings[0].name}, wanted below {args.rate:g}"
    console.print(table(title, columns, rows, left=columns[:1]))
    if at is None:
        raise _refused(args.rate, first, names[0])
    path, chosen = Path(args.out or f"{settings[0].name}-calibrated.json"), to_spec(settings[at])
    written = {
        "format": CALIBRATED,
        "detector": {"name": chosen.name, **chosen.params},
        "rate": args.rate,
        "model": model,
        "datasets": sorted({dataset for dataset, _ in traces}),
        "store": str(study.folder),
        "seed": args.seed,
        "tried": names,
        "chosen": names[at],
        "chosen_on": first.to_dict(at),
        "other_half": second.to_dict(at),
    }
    write_atomically(path, json.dumps(written, indent=1) + "\n")
    other = second.false_stops(at)
    # A file names no import path.
    own = f", which loads no code: --detector {str(chosen)!r}" if ":" in chosen.name else ""
    console.plain(
        f"{names[at]}: below {args.rate:g} false stops with 95% confidence; on the other half "
        f"{other.stopped} of {other.traces} traces, {other.problems_stopped} of {other.problems} "
        f"problems (at most {other.high:.2%}). Written to {path}{own}."
    )
    about = {"manifest": manifest.public(study.manifest), "file": str(path), **written}
    every = [
        {"setting": name, "first_half": first.to_dict(place), "other_half": second.to_dict(place)}
        for place, name in enumerate(names)
    ]
    return Done(about | {"settings": every})


def _refused(rate: float, half: Split, cautious: str) -> InvalidValue:
    stops = half.false_stops(0)
    allowed = (
        f"a higher rate, a more cautious setting, or {min_problems(rate)} problems with a clean "
        f"trace on the half to choose on, where there are {len(half.clean)}: {cautious}, the most "
        f"cautious tried, stops {stops.stopped} of {stops.traces} clean traces, which proves no "
        f"rate below {stops.high:.2%}"
    )
    return InvalidValue("rate", rate, allowed)


def _cells(place: int, first: Split, second: Split, at: int | None) -> Sequence[str]:
    here, there, name = first.false_stops(place), second.false_stops(place), first.names[place]
    saved = first.to_dict(place)["saved"]
    return [
        (name.partition("(")[2].removesuffix(")") or name) + (" *" if place == at else ""),
        f"{here.problems_stopped} of {here.problems}",
        *map(_percent, (here.rate, here.high)),
        *(_percent(saved[kind]) for kind in ("paid_tokens", "wasted_loop", "wasted_tail")),
        f"{there.problems_stopped} of {there.problems}, {_percent(there.rate)}",
    ]


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.3g}%"
