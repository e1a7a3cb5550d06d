"""Detectors set anew on half of a store's problems, and what that does on the other half.

    python scripts/measuring/real/recalibrated.py lil-out/real/smollm2-greedy             # lines
    python scripts/measuring/real/recalibrated.py STORE --detector guardian,cycle --json

Halves are problems with odd numbers and with even ones. A detector's settings are those that `lil
calibrate` tries, in its order, and the one taken is the last that keeps its promise: false stops on
the first half below a rate, with 95% confidence. That rate is the lowest of `RATES` that the half
has enough problems for (`--rate` says another). A false stop is a verdict on a text that should end
by itself: full attention's, if it did, and a sparse one with the right answer.

Loops and endings are those of loop_readings.py. Detectors that read hidden states need runs with
their notes, and are left out. `outside=0`: a setting's own threshold also where no thinking is
opened, as none is in texts of models that do not think. Nothing is decoded; the store is only read,
but for its cache.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loop_readings import Ending, endings, seen

from attention.errors import InvalidValue, check_number
from attention.spelling import Spec, over
from experiments.grid.detectors import in_sweep
from experiments.report.promise import Half, by_problem, chosen, needed
from experiments.store.labels import labels
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study
from lil import Detector
from lil.detectors import DETECTORS

WATCHED = (
    *("guardian", "guardian(f=100)", "cycle", "cycle(outside=0)"),
    *("recurrence", "recurrence(outside=0)", "budget"),
)
#: Rates of false stops that may be promised.
RATES = (0.005, 0.01, 0.02, 0.05, 0.1)

Row = dict[str, Any]
Endings = Mapping[tuple[object, ...], Ending]


def settings(study: Study, entry: str) -> tuple[Detector, list[Detector]]:
    """A detector as it is without being set, and its settings, the most cautious first.

    Args:
        study: whose configuration says the rest of its parameters.
        entry: its name, perhaps with parameters.

    Raises:
        InvalidValue: an unknown one, one with nothing to set, or one whose notes are not stored.
    """
    spec = DETECTORS.spec(entry)
    kind = DETECTORS.find(spec.name)
    parameter, values = kind.steps()
    if not values:
        raise InvalidValue("detector", entry, f"one with settings to try: {spec.name} has none")
    with study.config.following():
        default = in_sweep(study.config, Spec(spec.name, spec.params, "stop"))
        tried = [
            in_sweep(
                study.config,
                Spec(spec.name, over(spec.params, {parameter: one}, kind.twins), "stop"),
            )
            for one in values
        ]
    if study.without_notes(default):
        raise InvalidValue("detector", entry, "one whose notes of hidden states the store has")
    return default, tried


def half_of(item: str) -> str:
    """Whether a problem's number is odd or even.

    Raises:
        InvalidValue: its id ends with no number.
    """
    number = re.search(r"\d+$", item)
    if number is None:
        raise InvalidValue("item", item, "an id that ends with a number: halves are odd and even")
    return "odd" if int(number[0]) % 2 else "even"


def rate_for(problems: int) -> float:
    """The lowest of `RATES` that so many problems without a false stop can prove.

    Raises:
        InvalidValue: fewer than any of them takes.
    """
    found = next((rate for rate in RATES if needed(rate) <= problems), None)
    if found is None:
        least = needed(RATES[-1])
        allowed = f"{least} or more with a text that should end by itself, on each half"
        raise InvalidValue("problems", problems, allowed)
    return found


def recalibrated(study: Study, entries: Sequence[str], rate: float | None = None) -> list[Row]:
    """A row for each detector and half: chosen on that half, read on the other.

    Args:
        study: the sweep.
        entries: detectors, as they are typed.
        rate: of false stops; None: see `rate_for`.

    Raises:
        InvalidValue: runs are missing, or as `settings`, `half_of` and `rate_for`.
    """
    asked = {entry: settings(study, entry) for entry in dict.fromkeys(entries)}
    every: list[Detector] = []
    for default, tried in asked.values():
        for one in (default, *tried):
            if one not in every:
                every.append(one)
    names = labels(every)
    samples = study.samples(every, texts=False).samples
    alone = [one for one in samples if one.detector == "none" and one.role != "null"]
    missing = sum(not is_usable(one) for one in alone)
    if missing:
        allowed = (
            f"one with all runs of its sweep: {missing} of {len(alone)} failed or are not there, "
            "and those are the longest"
        )
        raise InvalidValue("store", str(study.folder), allowed)
    plain = endings(study, samples)
    under: dict[str, dict[str, list[Sample]]] = {name: defaultdict(list) for name in names}
    for sample in samples:
        if sample.detector != "none" and sample.run in plain:
            under[sample.detector][half_of(sample.item_id)].append(sample)
    found = []
    for entry, (default, tried) in asked.items():
        mine = [names[every.index(one)] for one in tried]
        traces = by_problem(samples, mine)
        for here, there in (("odd", "even"), ("even", "odd")):
            half = Half({key: one for key, one in traces.items() if half_of(key[1]) == here}, mine)
            promised = rate_for(len(half.clean)) if rate is None else rate
            at = chosen(half.clean, len(mine), promised)
            base = names[every.index(default)]
            found.append(
                {
                    "detector": entry,
                    "chosen_on": here,
                    "rate": promised,
                    "clean_problems": len(half.clean),
                    "parameter": type(default).steps()[0],
                    "default": _read(default, under[base][there], plain),
                    # The most cautious setting may break the promise already.
                    "chosen": None
                    if at is None
                    else _read(tried[at], under[mine[at]][there], plain),
                    "on_its_half": asdict(half.false_stops(0 if at is None else at)),
                    "differs": None if at is None else tried[at] != default,
                }
            )
    return found


def _read(detector: Detector, samples: Sequence[Sample], plain: Endings) -> Row:
    """A setting and what it does to some samples."""
    told = {k: v for k, v in seen(samples, plain).items() if k not in ("detector", "action")}
    tokens = sum(plain[one.run].sample.tokens or 0 for one in samples)
    parameter = type(detector).steps()[0]
    return {"value": getattr(detector, parameter), "tokens": tokens, **told}


def main(argv: Sequence[str] | None = None) -> int:
    """The rows; 2 where the store cannot be read so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="folder of a sweep")
    parser.add_argument("--detector", help=f"instead of {','.join(WATCHED)}")
    parser.add_argument("--rate", type=float, help="of false stops, instead of what can be proved")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        if args.rate is not None:
            check_number("rate", args.rate, "a number above 0 and below 1", above=0, below=1)
        study = Study.open(args.store)
        entries = WATCHED if args.detector is None else _split(args.detector)
        rows = recalibrated(study, entries, args.rate)
    except InvalidValue as error:
        print(f"recalibrated: {error}", file=sys.stderr)
        return 2
    for notice in dict.fromkeys(study.said):
        print(f"recalibrated: {notice}", file=sys.stderr)
    if args.json:
        facts = {
            "model": Path(study.config.models[0]).stem,
            "temperature": study.config.temperature,
        }
        print(json.dumps({"store": study.folder.name, **facts, "rows": rows}))
        return 0
    for row in rows:
        head = f"{row['detector']}, chosen on {row['chosen_on']} problems below {row['rate']:g}"
        print(f"{head} ({row['clean_problems']} that should end):")
        for name in ("default", "chosen"):
            print(f"  {name}: {_line(row[name], row['parameter'])}")
    return 0


def _split(text: str) -> list[str]:
    """Entries at commas that stand outside brackets."""
    return re.split(r",(?![^(]*\))", text)


def _line(told: Row | None, parameter: str) -> str:
    if told is None:
        return "no setting keeps the promise"
    return (
        f"{parameter}={told['value']:g}: {told['caught']} of {told['loops']} loops, "
        f"{told['tokens_saved']} of {told['tokens']} tokens saved, stopped "
        f"{told['stopped_ended']} of {told['ended']} that ended, {told['stopped_solved']} of these "
        "right"
    )


if __name__ == "__main__":
    raise SystemExit(main())
