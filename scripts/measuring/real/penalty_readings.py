"""What each penalty does to a sweep's texts, beside the same problems without a penalty.

    python scripts/measuring/real/penalty_readings.py lil-out/real/penalties-smollm2-0.6 --json

Of each penalty: degenerate texts (a block of tokens that stands twenty times in a row, the rule of
the LZ-penalty and Word Salad Chopper papers), texts that the cap cut, solved problems and tokens;
degenerate texts gone and new, problems lost and gained, by problem. Nothing is decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import row_command

from attention.errors import InvalidValue
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

Row = dict[str, Any]


def readings(study: Study) -> Iterator[Row]:
    """A row for each penalty under full attention, `none` among them.

    Raises:
        InvalidValue: a study without texts under no penalty.
    """
    found: dict[str, dict[tuple[str, int], Sample]] = defaultdict(dict)
    for sample in study.samples([], texts=False).samples:
        if sample.backend == "full" and sample.role != "null" and is_usable(sample):
            found[sample.penalty][sample.item_id, sample.sample_index] = sample
    if "none" not in found:
        raise InvalidValue("penalty", str(sorted(found)), "none among them")
    plain = found["none"]
    for penalty, some in found.items():
        pairs = [(one, plain[at]) for at, one in some.items() if at in plain]
        yield {
            "model": Path(next(iter(some.values())).model).stem,
            "penalty": penalty,
            "n": len(some),
            "degenerate": sum(bool(one.repeated) for one in some.values()),
            "cut": sum(one.status == "capped" for one in some.values()),
            "solved": sum(bool(one.correct) for one in some.values()),
            "tokens": sum(one.tokens or 0 for one in some.values()),
            "pairs": len(pairs),
            "degenerate_gone": sum(bool(of.repeated) and not one.repeated for one, of in pairs),
            "degenerate_new": sum(bool(one.repeated) and not of.repeated for one, of in pairs),
            "lost": sum(bool(of.correct) and not one.correct for one, of in pairs),
            "gained": sum(bool(one.correct) and not of.correct for one, of in pairs),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """The rows; 2 where the store cannot be read so."""
    return row_command.run("penalty_readings", __doc__ or "", readings, argv)


if __name__ == "__main__":
    raise SystemExit(main())
