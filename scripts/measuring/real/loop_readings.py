"""How the outputs in a store end: by themselves or in a loop of which kind; what detectors see.

    python scripts/measuring/real/loop_readings.py lil-out/real/smollm2-greedy          # counts
    python scripts/measuring/real/loop_readings.py STORE --detector guardian,cycle --json

A text that its cap cut is in a loop where at least 100 tokens of its end only say again what stood
there: *exact* where they repeat token by token, *counting* where they do once every number is
written alike, *reworded* where 95% of them end a passage of 16 tokens that was seen before. The
first kind that fits counts; onset is where its first round has ended. Other cut texts are *long*.

Nothing is decoded. The store is only read, but for its cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.detectors import build_detectors
from experiments.store.samples.repetition import SHORTEST, exact, tolerant
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

Row = dict[str, Any]
KINDS = ("exact", "counting", "reworded")


@dataclass(frozen=True)
class Ending:
    """How one output ends.

    Args:
        sample: the output as decoded.
        kind: "ended", one of `KINDS`, or "long".
        onset: tokens before the loop says again what stood there; None without a loop.
    """

    sample: Sample
    kind: str
    onset: int | None

    @property
    def loops(self) -> bool:
        """Whether it is in a loop."""
        return self.kind in KINDS


def numbers_alike(pieces: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Pieces with every number written alike, and the place at which each of them began.

    A number that is cut into several pieces is one.
    """
    symbols: list[bytes] = []
    starts: list[int] = []
    for at, piece in enumerate(pieces):
        if not any(48 <= byte <= 57 for byte in piece):
            symbols.append(piece)
            starts.append(at)
        elif not (symbols and symbols[-1] == b"#" and piece.isdigit()):
            symbols.append(b"#")
            starts.append(at)
    return symbols, starts


def ending(pieces: Sequence[bytes], ids: Sequence[int], cut: bool) -> tuple[str, int | None]:
    """The kind of an output's end and the onset of its loop.

    Args:
        pieces: bytes of its tokens.
        ids: its tokens.
        cut: whether its cap ended it.
    """
    if not cut:
        return "ended", None
    again = exact(ids)
    if again >= SHORTEST:
        return "exact", len(ids) - again
    symbols, starts = numbers_alike(pieces)
    known = {symbol: at for at, symbol in enumerate(dict.fromkeys(symbols))}
    alike = exact([known[symbol] for symbol in symbols])
    if alike:
        onset = starts[len(symbols) - alike]
        if len(ids) - onset >= SHORTEST:
            return "counting", onset
    again = tolerant(ids)
    return ("reworded", len(ids) - again) if again >= SHORTEST else ("long", None)


def endings(study: Study, samples: Sequence[Sample]) -> dict[tuple[object, ...], Ending]:
    """How each run that was decoded ends, by what it is known by.

    Args:
        study: whose traces are read.
        samples: of it, those without a detector among them.
    """
    found: dict[tuple[object, ...], Ending] = {}
    for sample in samples:
        if sample.detector == "none" and is_usable(sample):
            record = study.store.get(sample.record or "")
            assert record is not None
            trace = record.trace()
            told = ending(trace.pieces, trace.new_ids, trace.finish == "length")
            found[sample.run] = Ending(sample, *told)
    return found


def counted(study: Study) -> list[Row]:
    """A row for each configuration, with one for each detector in it."""
    samples = study.samples(build_detectors(study.config), texts=False).samples
    plain = endings(study, samples)
    watched: dict[tuple[object, ...], dict[tuple[str, str], list[Sample]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples:
        if sample.detector != "none" and sample.run in plain:
            watched[sample.key][sample.detector, sample.action].append(sample)
    cells: dict[tuple[object, ...], list[Ending]] = defaultdict(list)
    for one in plain.values():
        cells[one.sample.key].append(one)
    full = {
        one.sample.pair: one
        for one in plain.values()
        if one.sample.backend == "full" and one.sample.penalty == "none"
    }
    return [
        {
            **_cell(group),
            **_beside(group, full),
            "detectors": [seen(of, plain) for of in watched[key].values()],
        }
        for key, group in cells.items()
    ]


def _beside(group: Sequence[Ending], full: Mapping[tuple[object, ...], Ending]) -> Row:
    """Texts that loop here and not under full attention, and the other way about."""
    pairs = [(one, full[one.sample.pair]) for one in group if one.sample.pair in full]
    return {
        "loops_here": sum(one.loops and not of.loops for one, of in pairs),
        "loops_full": sum(of.loops and not one.loops for one, of in pairs),
    }


def _cell(group: Sequence[Ending]) -> Row:
    first, kinds = group[0].sample, Counter(one.kind for one in group)
    onsets = [one.onset for one in group if one.onset is not None]
    return {
        "model": first.model,
        "backend": first.backend,
        "backend_params": dict(first.backend_params),
        "budget": first.budget,
        "role": first.role,
        "penalty": first.penalty,
        "n": len(group),
        "solved": sum(bool(one.sample.correct) for one in group),
        "ended": kinds["ended"],
        **{kind: kinds[kind] for kind in KINDS},
        "long": kinds["long"],
        "degenerate": sum(bool(one.sample.repeated) for one in group),
        "onset": statistics.median(onsets) if onsets else None,
        "tokens": sum(one.sample.tokens or 0 for one in group),
        "tokens_in_loops": sum(
            (one.sample.tokens or 0) - one.onset for one in group if one.onset is not None
        ),
    }


def seen(samples: Iterable[Sample], plain: Mapping[tuple[object, ...], Ending]) -> Row:
    """What one detector does.

    Args:
        samples: under it, one at least.
        plain: how the same runs end by themselves.
    """
    pairs = [(one, plain[one.run]) for one in samples]
    looping = [(one, of) for one, of in pairs if of.loops]
    fired = [(one, of) for one, of in looping if one.stopped_at is not None]
    late = [(one.stopped_at or 0) - (of.onset or 0) for one, of in fired]
    wrong = [of for one, of in pairs if of.kind == "ended" and one.stopped_at is not None]
    first = pairs[0][0]
    return {
        "detector": first.detector,
        "action": first.action,
        "loops": len(looping),
        "caught": len(fired),
        "before_onset": sum(one <= 0 for one in late),
        "late": statistics.median(late) if late else None,
        "ended": sum(of.kind == "ended" for _, of in pairs),
        "stopped_ended": len(wrong),
        "stopped_solved": sum(bool(of.sample.correct) for of in wrong),
        "stopped_long": sum(of.kind == "long" and one.stopped_at is not None for one, of in pairs),
        "tokens_saved": sum(
            (of.sample.tokens or 0) - (one.stopped_at or 0)
            for one, of in pairs
            if one.stopped_at is not None
        ),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The counts; 2 where the store cannot be read so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="folder of a sweep")
    parser.add_argument("--detector", help="these instead of the sweep's, as guardian,cycle")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        study = Study.open(args.store)
        if args.detector is not None:
            names = tuple(args.detector.split(","))
            study = replace(study, config=replace(study.config, detectors=names))
        rows = counted(study)
    except InvalidValue as error:
        print(f"loop_readings: {error}", file=sys.stderr)
        return 2
    for notice in dict.fromkeys(study.said):
        print(f"loop_readings: {notice}", file=sys.stderr)
    if args.json:
        print(json.dumps({"store": study.folder.name, "rows": rows}))
        return 0
    for row in rows:
        name = f"{row['backend']} {row['budget'] or ''} {row['penalty']}"
        kinds = ", ".join(f"{kind} {row[kind]}" for kind in ("ended", *KINDS, "long"))
        print(f"{row['model']}, {name}: {row['n']} outputs, {row['solved']} solved; {kinds}")
        for one in row["detectors"]:
            print(
                f"  {one['detector']}, {one['action']}: {one['caught']} of {one['loops']} loops, "
                f"{one['late']} tokens behind the onset; stopped {one['stopped_ended']} of "
                f"{one['ended']} that ended, {one['stopped_solved']} of them solved"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
