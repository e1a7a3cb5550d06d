"""The one sentence a sweep ends with, said from the numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.report.row import Key, ReportRow, by_penalty, pairs

_UNKNOWN = (
    "Nothing can be said about output length: no sparse configuration has a full-attention run "
    "of the same problems beside it."
)


def finding(rows: Sequence[ReportRow]) -> str:
    """How much longer outputs got, what a solved problem costs then, what stopping gives back.

    What a penalty changes is said last, against the same configurations without it. All else counts
    every sparse configuration without penalty, so that the extreme one, which is named, is
    seen beside how many there were. Longer and shorter mean a 95% interval clear of 1; intervals
    are not corrected for their number.
    """
    sparse = [row for row in rows if row.backend != "full" and row.penalty == "none"]
    plain = [row for row in sparse if row.detector == "none" and row.length_ratio is not None]
    if not plain:
        return _UNKNOWN
    head = _headline(plain)
    clauses = [_length(plain, head) + _price(head)]
    steady = [row for row in plain if (row.accuracy_change_p or 0) >= 0.05]
    if steady:
        longer, shorter = sum(map(_is_longer, steady)), sum(map(_is_shorter, steady))
        clauses.append(
            f"of the {len(steady)} that keep accuracy (McNemar p >= 0.05) {longer} are longer and "
            f"{shorter} shorter"
        )
    known, cheaper = _cheaper(plain)
    if known:
        clauses.append(
            f"a solved problem takes fewer keys than under full attention in {cheaper} of {known} "
            f"{_plural(known)}"
        )
    stopped = [row for row in sparse if row.detector_pairs]
    watched = pairs(stopped)
    names = [name for name, _ in watched]
    for (name, action), chosen in watched.items():
        told = name if names.count(name) == 1 else f"{name} ({action})"
        clauses.append(_detector(told, chosen, head))
    clauses += [_penalty(name, part) for name, part in by_penalty(rows).items() if name != "none"]
    return "; ".join(clause for clause in clauses if clause) + "."


def _headline(plain: list[ReportRow]) -> ReportRow:
    """The largest change in the direction most go clearly, or the largest where none does."""
    longer = [row for row in plain if _is_longer(row)]
    shorter = [row for row in plain if _is_shorter(row)]
    if not longer and not shorter:
        return max(plain, key=_size)
    if len(longer) == len(shorter):
        return max(longer + shorter, key=_size)
    return max(longer if len(longer) > len(shorter) else shorter, key=_size)


def _size(row: ReportRow) -> float:
    """How far a length ratio is from 1, a half as far as a double."""
    ratio = row.length_ratio or 0.0
    return max(ratio, 1 / ratio) if ratio else 0.0


def _is_longer(row: ReportRow) -> bool:
    return row.length_ratio_low is not None and row.length_ratio_low > 1


def _is_shorter(row: ReportRow) -> bool:
    return row.length_ratio_high is not None and row.length_ratio_high < 1


def _length(plain: list[ReportRow], head: ReportRow) -> str:
    n = len(plain)
    longer, shorter = sum(map(_is_longer, plain)), sum(map(_is_shorter, plain))
    several = len({row.model for row in plain}) > 1
    where = f"{head.backend} at budget {head.budget} on {head.dataset}"
    where += f" ({head.model})" if several else ""
    value = f"{head.length_ratio:.2f} times the length under full attention"
    if head.length_ratio_low is None or head.length_ratio_high is None:
        value += " (one problem, no interval)"
    else:
        value += f" (95% interval {head.length_ratio_low:.2f} to {head.length_ratio_high:.2f})"
    if _is_longer(head):
        others = f" and shorter in {shorter}" if shorter else ""
        return (
            f"Sparse attention made outputs longer in {longer} of {n} {_plural(n)}{others}, most "
            f"with {where}: {value}"
        )
    if _is_shorter(head):
        others = f" and longer in {longer}" if longer else ""
        return (
            f"Sparse attention made outputs shorter in {shorter} of {n} {_plural(n)}{others}, most "
            f"with {where}: {value}"
        )
    return (
        f"Sparse attention changed output length clearly in none of {n} {_plural(n)}; the largest "
        f"difference is with {where}: {value}"
    )


def _price(head: ReportRow) -> str:
    """What the named configuration does to accuracy and to the cost of a solved problem."""
    change = f", {head.capped} of {head.samples} outputs cut at the cap" if head.capped else ""
    if head.accuracy_change is not None:
        change += f", accuracy {100 * head.accuracy_change:+.1f} points"
    if head.accuracy == 0:
        return change + ", nothing solved"
    ratio = head.keys_read_per_solved_ratio
    return change if ratio is None else f"{change}, {ratio:.2f} times the keys per solved problem"


def _cheaper(rows: list[ReportRow]) -> tuple[int, int]:
    """How many rows have a cost to compare, and how many of them cost less than full attention.

    A configuration that solves nothing where full attention solves something is not cheaper.
    """
    known = [
        row
        for row in rows
        if row.keys_read_per_solved_ratio is not None or (row.accuracy == 0 and row.solved_lost)
    ]
    return len(known), sum((row.keys_read_per_solved_ratio or 1) < 1 for row in known)


def _detector(name: str, of_detector: Mapping[Key, ReportRow], head: ReportRow) -> str:
    """What a detector saves and costs over all sparse configurations, and at the one named."""
    rows, there = list(of_detector.values()), of_detector.get(head.key)
    without = sum(row.detector_tokens_without or 0 for row in rows)
    saved = 1 - sum(row.detector_tokens or 0 for row in rows) / without if without else 0.0
    lost = sum(row.detector_solved_lost or 0 for row in rows)
    gained = sum(row.detector_solved_gained or 0 for row in rows)
    pairs = sum(row.detector_pairs or 0 for row in rows)
    text = f"{name.capitalize()} {_saves(saved)} of all their tokens"
    if there is not None and there.token_savings is not None:
        text += f" ({100 * there.token_savings:.1f}% there)"
    text += f", losing {lost} and gaining {gained} of {pairs} answers"
    known, cheaper = _cheaper(rows)
    return text + (f", and makes that {cheaper} of {known}" if known else "")


def _penalty(name: str, rows: list[ReportRow]) -> str:
    """How a penalty moves lengths and answers over all configurations, full attention's too."""
    known = [r for r in rows if r.detector == "none" and r.penalty_length_ratio is not None]
    if not known:
        return ""
    longer = sum((row.penalty_length_ratio_low or 0) > 1 for row in known)
    shorter = sum(0 < (row.penalty_length_ratio_high or 0) < 1 for row in known)
    lost = sum(row.penalty_solved_lost or 0 for row in known)
    gained = sum(row.penalty_solved_gained or 0 for row in known)
    pairs = sum(row.penalty_pairs or 0 for row in known)
    return (
        f"with penalty {name} outputs are longer in {longer} and shorter in {shorter} of "
        f"{len(known)} {_plural(len(known))} than without it, full attention among them, losing "
        f"{lost} and gaining {gained} of {pairs} answers"
    )


def _saves(share: float) -> str:
    return f"saves {100 * share:.1f}%" if share >= 0 else f"adds {-100 * share:.1f}%"


def _plural(n: int) -> str:
    return "configuration" if n == 1 else "configurations"
