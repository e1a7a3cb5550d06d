"""`lil board`: every way of stopping over stored traces, at the same loss of answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path

from attention.errors import InvalidValue, check_number
from attention.spec import Spec
from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser
from experiments.cli.reporting import complete_samples
from experiments.cli.stores import (
    DEFAULT_STORE,
    add_load_flag,
    add_scorer_flag,
    open_stores,
    require_notes,
    to_load,
)
from experiments.grid.detectors import detectors_like, steps_of, typed_detectors
from experiments.grid.plan import distinct
from experiments.report import figures
from experiments.report.board import Ladder, Watched, make_board
from experiments.report.exports import check_file
from experiments.report.tables import rich_table
from experiments.report.tables.detectors import BOARD_NOTE, board_grids
from experiments.store import manifest
from experiments.store.study import Study
from lil.detectors import DETECTORS

EXAMPLES = """\
examples:
  lil board lil-out/greedy lil-out/sampled     every detector, a block for each temperature
  lil board --detector budget,recurrence --rate 0.05 --out board.png

Each detector's settings are tried on one half of the problems, the most cautious first; the last
that is proved to lose fewer right answers than the rate is shown on the other half. Stopping is
replayed. Another action, as budget(tokens=300):answer, has a row where a store's sweep decoded it.
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil board`."""
    stores = f"folders of sweeps ({DEFAULT_STORE})"
    parser.add_argument("store", nargs="*", default=[DEFAULT_STORE], help=stores)
    every = "these alone (default: all whose settings are known and whose signals are stored)"
    parser.add_argument("--detector", metavar="NAME,...", help=every)
    add_load_flag(parser)
    add_scorer_flag(parser)
    rate = "of right answers lost, which is to stay below it with 95%% confidence (0.01)"
    parser.add_argument("--rate", type=float, default=0.01, help=rate)
    out = "the figure, .png or .svg; both are written (figures/board.png in the first store)"
    parser.add_argument("--out", metavar="FILE", help=out)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Bring every detector to the same loss, print the tables and draw the figure."""
    check_number("rate", args.rate, "a number above 0 and below 1", above=0, below=1)
    if args.out is not None:
        check_file("out", args.out, (".png", ".svg"))
    specs = typed_detectors(args.detector)
    stores, left_out = [], []
    studies = open_stores([*map(Path, args.store)], None, to_load(args.load, specs), args.scorer)
    for _, study in studies:
        ladders, reasons = _ladders(study, specs)
        left_out += reasons
        samples = complete_samples(study, [step for ladder in ladders for step in ladder.steps])
        if all(sample.correct is None for sample in samples):
            raise InvalidValue("store", str(study.folder), "one whose answers can be judged")
        stores.append(Watched(study.config.temperature, samples, ladders))
    board = make_board(stores, args.rate, seed := studies[0][1].config.seed)
    for grid in board_grids(board):
        console.print(rich_table(grid, console.width))
    console.print(BOARD_NOTE, markup=False, highlight=False)
    for reason in dict.fromkeys(left_out):
        console.plain(f"left out: {reason}")
    stem = Path(args.out or studies[0][1].folder / "figures" / "board.png").with_suffix("")
    stem.parent.mkdir(exist_ok=True)
    paths = [str(path) for path in figures.draw_board(board, args.rate, stem)]
    console.plain("\n".join(f"figure: {path}" for path in paths))
    about = {"rate": args.rate, "seed": seed, "left_out": left_out, "figures": paths}
    about["manifests"] = [manifest.public(study.manifest) for _, study in studies]
    about["groups"] = [
        {**group._asdict(), "rows": [asdict(row) | {"reason": row.reason} for row in rows]}
        for group, rows in board.items()
    ]
    return Done(about)


def _ladders(study: Study, specs: Sequence[Spec]) -> tuple[list[Ladder], list[str]]:
    """Each detector's, and those of its other actions in the store; who is left out, and why."""
    ladders, left_out = [], []
    for spec in specs or map(Spec, DETECTORS.names()):
        try:
            kind = DETECTORS.find(spec.name)
            parameter, values = kind.steps()
            if not (parameter or specs):
                continue
            # A sweep's own detector may have parameters of its own.
            own = [detector for detector in study.detectors if detector.name == kind.name]
            alike = [replace(d, **{parameter: values[0]}) for d in own if parameter]
            bases = [] if specs else distinct([replace(d, on_stop="stop") for d in alike])
            every = [[replace(base, **{parameter: v}) for v in values] for base in bases]
            for steps in every or [detectors_like(study.config, steps_of(spec, {}))]:
                require_notes(steps[0], study)
                ladders.append(Ladder(parameter, steps))
        except InvalidValue as error:
            if specs:
                raise
            left_out.append(f"{spec.name}: {error.allowed.partition(';')[0]}")
            continue
        for first in distinct(base for base in alike if not base.action.ends):
            acting = [d for d, base in zip(own, alike, strict=True) if base == first]
            acting.sort(key=attrgetter(parameter), reverse=values[0] > values[-1])
            ladders.append(Ladder(parameter, acting))
    return ladders, left_out
