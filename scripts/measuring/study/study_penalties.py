"""What penalties do to the methods' texts, and to those of full attention."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from comparisons import at_most, interval, shares
from study_claims import with_holm
from study_texts import Cell, Row, Text, cell_of, is_method
from text_readings import TextReading, read_text
from trace_readings import asked_by

from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import change_p
from experiments.store.samples.sample import is_usable
from experiments.store.study import Study

#: A right answer of full attention's lost in no more than this share, by the upper bound.
LOST = 0.01
LOOP = "loop"
FULL: Cell = ("full", None, False)
Side = tuple[str, TextReading, TextReading]  # of which problem; with the penalty, without


def penalised(
    studies: Sequence[Study],
    cells: Mapping[str, Mapping[Cell, Mapping[str, Text]]],
    bootstrap: Bootstrap,
) -> list[Row]:
    """Every penalty's texts beside those without it: the methods' together, and full attention's.

    Args:
        studies: of the stores.
        cells: texts without a penalty, by level, cell and problem; they are cut at the same length.
        bootstrap: of the intervals.
    """
    sides: dict[tuple[str, str], dict[tuple[Cell, str], Side]] = defaultdict(dict)
    called: dict[tuple[str, str], str] = {}
    for study in studies:
        for sample in study.samples([]).samples:
            cell, item = cell_of(sample), sample.item_id
            known = cells[sample.dataset]
            if sample.penalty == "none" or not is_usable(sample) or item not in known.get(cell, {}):
                continue
            record = study.store.get(sample.record or "")
            assert record is not None
            trace = record.trace()
            key = sample.dataset, json.dumps(record.meta["cell"]["penalties"], sort_keys=True)
            called.setdefault(key, sample.penalty)
            if item in known[FULL] and (cell, item) not in sides[key]:
                plain = known[cell][item].top
                most = max(known[cell][item].at) * known[FULL][item].top.tokens
                drawn = asked_by(item, trace.prompt_bytes)
                ended = trace.finish == "eos"
                read = read_text(drawn, trace.pieces, ended=ended, cap=most)
                sides[key][cell, item] = item, read, plain
    rows = []
    for key, some in sides.items():
        level, told = key
        mine = [side for (cell, _), side in some.items() if is_method(cell)]
        whole = [side for (cell, _), side in some.items() if cell == FULL]
        full = beside(whole, bootstrap)
        bound = at_most(full["lost"], full["solved"]) if full["solved"] else 1.0
        rows.append({
            "dataset": level, "penalty": called[key], "parameters": json.loads(told),
            **beside(mine, bootstrap), "full": full | {"lost_high": bound},
            "same_bound": bound <= LOST,
        })  # fmt: skip
    for level in {row["dataset"] for row in rows}:
        some_rows = [row for row in rows if row["dataset"] == level]
        with_holm(some_rows)
        with_holm([row["full"] for row in some_rows])
    return rows


def beside(sides: Sequence[Side], bootstrap: Bootstrap) -> Row:
    """Texts with a penalty beside the same without it."""
    moved = [(item, mine.solved - plain.solved) for item, mine, plain in sides]
    return {
        "n": len(sides),
        "solved": sum(plain.solved for _, _, plain in sides),
        "lost": sum(change < 0 for _, change in moved),
        "gained": sum(change > 0 for _, change in moved),
        "p": change_p(moved, bootstrap.seed) if moved else None,
        "saved": interval(shares(
            [(item, plain.tokens - mine.tokens, plain.tokens) for item, mine, plain in sides],
            bootstrap,
        )) if sides else None,
        "cut": [sum(one.end == "cut" for one in side) for side in both(sides)],
        "loops": [sum(one.classes[LOOP] > 0 for one in side) for side in both(sides)],
    }  # fmt: skip


def both(sides: Sequence[Side]) -> tuple[list[TextReading], list[TextReading]]:
    """All with the penalty, all without."""
    return [mine for _, mine, _ in sides], [plain for _, _, plain in sides]
