"""What a report's tables say, in at most two sentences, by the claims of `claims.py`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from experiments.report.names import capital, counted, short_named
from experiments.report.row import ReportRow

_NAMED = 3  # configurations that are named one by one; more are counted by method
_WORDS = {"loses": "loses answers", "gains": "gains answers"}


def headline(rows: Sequence[ReportRow]) -> str:
    """Lengths and costs of sparse methods without a penalty and a detector."""
    rows = short_named(rows)
    methods = [row for row in rows if row.is_sparse and row.role == "method"]
    plain = [row for row in methods if row.penalty == row.detector == "none"]
    sentences = [_length(plain), _cost(plain)]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def _length(plain: list[ReportRow]) -> str:
    known = [row for row in plain if row.length_ratio.estimate is not None]
    if not known:
        if not plain:
            return ""
        return (
            "Nothing can be said about output length: no sparse configuration has a full-attention "
            "run of the same problems that ended by itself"
        )
    claimed = _claimed(known, "longer", "shorter")
    text = f"No difference in output length is clear in {_count(known)}"
    if claimed:
        text = f"Outputs are clearly {claimed} of {_count(known)}"
    largest = max(known, key=lambda row: abs(math.log(row.length_ratio.estimate or 1.0)))
    ratio = largest.length_ratio
    if not ratio.differs:
        return text + "; every output is as long as full attention's"
    is_clear = not {"longer", "shorter"}.isdisjoint(largest.claims)
    text += f"; the largest difference{'' if is_clear else ', not clear,'} is "
    text += f"{ratio.estimate:.2f} times full attention's length"
    if ratio.low is not None and ratio.high is not None:
        text += f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    cut = f", {largest.capped} of {largest.samples} cut at the cap" if largest.capped else ""
    return f"{text} ({_name(largest, plain)}{cut})"


def _cost(plain: list[ReportRow]) -> str:
    """What a solved problem takes, and where answers are lost or gained."""
    parts = []
    costed = [row for row in plain if row.keys_read_per_solved_ratio.estimate is not None]
    if costed:
        claimed = _claimed(costed, "fewer keys", "more keys")
        claimed = claimed or "neither clearly fewer nor clearly more keys in any"
        parts.append(f"a solved problem takes {claimed} of {_count(costed)}")
    unsolved = [row for row in plain if row.accuracy.estimate == 0 and row.accuracy_change.lost]
    if unsolved:
        parts.append(f"nothing is solved in {_names(unsolved, plain)}")
    judged = [row for row in plain if row.accuracy_change.estimate is not None]
    if judged:
        claimed = _claimed(judged, "loses", "gains")
        claimed = claimed or "neither clearly loses nor clearly gains answers in any"
        parts.append(f"sparse attention {claimed} of {_count(judged)}")
    return capital("; ".join(parts))


def _claimed(rows: Sequence[ReportRow], *claims: str) -> str:
    """Each claim that holds anywhere, in how many, and their names."""
    there = {claim: [row for row in rows if claim in row.claims] for claim in claims}
    return " and ".join(
        f"{_WORDS.get(claim, claim)} in {len(part)} ({_names(part, rows)})"
        for claim, part in there.items()
        if part
    )


def _names(rows: Sequence[ReportRow], among: Sequence[ReportRow]) -> str:
    if len(rows) <= _NAMED:
        return ", ".join(_name(row, among) for row in rows)
    counts = Counter(row.backend for row in rows)
    return ", ".join(f"{count} of {name}" for name, count in counts.items())


def _name(row: ReportRow, among: Iterable[ReportRow]) -> str:
    rows = list(among)
    text = row.backend if row.budget is None else f"{row.backend} {row.budget}"
    text += f" on {row.dataset}" if len({other.dataset for other in rows}) > 1 else ""
    return text + (f" with {row.model}" if len({other.model for other in rows}) > 1 else "")


def _count(rows: Sequence[object]) -> str:
    return counted(len(rows), "configuration")
