"""Methods beside each other at the same budget, problem by problem: what choosing keys changes.

    python scripts/measuring/real/paired_readings.py lil-out/real/table --json

Each method beside `oracle` and `random`, each one that keeps the prompt beside itself without. Of
each pair: problems solved by one and not by the other with the exact p of McNemar's test, and
tokens of the first over the second's where both solve, geometric mean with a 95% interval and the
p of sign flips over problems. Nothing is decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import row_command

from experiments.report.aggregate import length_ratio, pair_up, solved_by_both
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import change_p
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

Row = dict[str, Any]
#: A method, whether it keeps the prompt, and its budget.
Place = tuple[str, bool, int]


def placed(study: Study) -> dict[Place, list[Sample]]:
    """Usable samples of every sparse method, by what it is."""
    found: dict[Place, list[Sample]] = defaultdict(list)
    for sample in study.samples([], texts=False).samples:
        if sample.budget is not None and is_usable(sample):
            keeps = bool(dict(sample.backend_params).get("keep_prompt"))
            found[sample.backend, keeps, sample.budget].append(sample)
    return dict(found)


def beside(ones: list[Sample], others: list[Sample], bootstrap: Bootstrap) -> Row:
    """The first ones compared to the others, by problem."""
    pairs = pair_up(ones, {other.pair: other for other in others})
    moved = [(m.item_id, int(bool(m.correct)) - int(bool(t.correct))) for m, t in pairs]
    both = solved_by_both(pairs)
    ratio = asdict(length_ratio(both, bootstrap, None))
    return {
        "problems": len(pairs),
        "solved": sum(bool(m.correct) for m, _ in pairs),
        "solved_beside": sum(bool(t.correct) for _, t in pairs),
        "lost": sum(one < 0 for _, one in moved),
        "gained": sum(one > 0 for _, one in moved),
        "p": change_p(moved, bootstrap.seed) if moved else None,
        "both": len(both),
        "ratio": ratio["estimate"], "ratio_low": ratio["low"], "ratio_high": ratio["high"],
        "ratio_p": ratio["p"],
    }  # fmt: skip


def readings(study: Study) -> Iterator[Row]:
    """A row for each pair."""
    found, bootstrap = placed(study), Bootstrap(study.config.seed)
    for (method, keeps, budget), ones in found.items():
        partners = [(one, False) for one in ("oracle", "random") if method not in (one, "oracle")]
        if keeps:
            partners.append((method, False))
        for partner in partners:
            others = found.get((*partner, budget))
            if others is not None:
                what = {"method": method, "keep_prompt": keeps, "budget": budget}
                yield {**what, "beside": partner[0], **beside(ones, others, bootstrap)}


def main(argv: Sequence[str] | None = None) -> int:
    """The rows; 2 where the store cannot be read so."""
    return row_command.run("paired_readings", __doc__ or "", readings, argv)


if __name__ == "__main__":
    raise SystemExit(main())
