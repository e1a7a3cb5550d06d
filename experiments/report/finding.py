"""What a sweep found, in short sentences said from the numbers alone.

Each kind of claim has one rule, at 95%: longer, shorter and cheaper mean an interval clear of 1;
"keeps accuracy" means that losing `MARGIN` or more is ruled out, which few problems cannot do.
Intervals are not corrected for their number, so it is always said of how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.report.row import Key, ReportRow, by_penalty, pairs
from experiments.report.statistics import tango

#: The loss of accuracy that "keeps accuracy" must rule out.
MARGIN = 0.05


def finding(rows: Sequence[ReportRow]) -> str:
    """How long outputs got, what a solved problem costs, and what stopping and penalties change.

    Lengths and costs are those of sparse configurations without penalty and detector. What a
    penalty changes is said last, against the same configurations without it.
    """
    sparse = [row for row in rows if row.backend != "full" and row.penalty == "none"]
    plain = [row for row in sparse if row.detector == "none"]
    sentences = [_length(plain), _cost(plain)]
    watched = pairs([row for row in sparse if row.detector_pairs])
    names = [name for name, _ in watched]
    for (name, action), chosen in watched.items():
        told = name if names.count(name) == 1 else f"{name} ({action})"
        sentences.append(_detector(told, chosen))
    sentences += [_penalty(name, part) for name, part in by_penalty(rows).items() if name != "none"]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def keeps_accuracy(row: ReportRow) -> bool | None:
    """Whether a loss of `MARGIN` is ruled out; None where no such number of problems could tell."""
    if row.accuracy_change_low is None:
        return None
    nothing_lost = tango(0, 0, row.problems).low
    if nothing_lost is None or nothing_lost <= -MARGIN:
        return None
    return row.accuracy_change_low > -MARGIN


def is_longer(row: ReportRow) -> bool:
    """Whether outputs are longer than under full attention, the interval clear of 1."""
    return row.length_ratio_low is not None and row.length_ratio_low > 1


def is_shorter(row: ReportRow) -> bool:
    """Whether outputs are shorter than under full attention, the interval clear of 1."""
    return row.length_ratio_high is not None and row.length_ratio_high < 1


def is_cheaper(row: ReportRow) -> bool:
    """Whether a solved problem takes fewer keys than under full attention, clear of 1."""
    high = row.keys_read_per_solved_ratio_high
    return high is not None and high < 1


def _length(plain: list[ReportRow]) -> str:
    known = [row for row in plain if row.length_ratio is not None]
    censored = sum(row.pairs_censored for row in plain)
    left_out = ""
    if censored:
        left_out = f" ({censored:,} pairs left out: full attention was cut at its cap)"
    if not known:
        return (
            "Nothing can be said about output length: no sparse configuration has a full-attention "
            f"run of the same problems that ended beside it{left_out}"
        )
    longer, shorter = ([row for row in known if rule(row)] for rule in (is_longer, is_shorter))
    head = max(longer or shorter or known, key=_size)
    if not longer and not shorter:
        return (
            f"Sparse attention changed output length clearly in none of {_count(known)}; the "
            f"largest difference is {_where(head, known)}{left_out}"
        )
    text = "Sparse attention made outputs "
    if longer:
        text += f"longer in {len(longer)} of {_count(known)}, up to {_where(head, known)}"
        text += f", and shorter in {len(shorter)}" if shorter else ""
    else:
        text += f"shorter in {len(shorter)} of {_count(known)}, down to {_where(head, known)}"
    solved = [row for row in known if (row.length_ratio_solved_low or 0) > 1]
    of = [row for row in known if row.length_ratio_solved_low is not None]
    if of:
        text += f"; over problems that both solve, longer in {len(solved)} of {len(of)}"
    return text + left_out


def _where(head: ReportRow, among: list[ReportRow]) -> str:
    several = len({row.model for row in among}) > 1
    text = f"{head.length_ratio:.2f} times"
    if head.length_ratio_low is None or head.length_ratio_high is None:
        text += " (one problem, no interval)"
    else:
        text += f" [{head.length_ratio_low:.2f}, {head.length_ratio_high:.2f}]"
    text += f" ({head.backend} {head.budget}, {head.dataset}" + (
        f", {head.model}" if several else ""
    )
    return text + (f"; {head.capped} of {head.samples} cut at the cap)" if head.capped else ")")


def _size(row: ReportRow) -> float:
    """How far a length ratio is from 1, a half as far as a double."""
    ratio = row.length_ratio or 0.0
    return max(ratio, 1 / ratio) if ratio else 0.0


def _cost(plain: list[ReportRow]) -> str:
    """How many are cheaper, and how many of those keep accuracy."""
    known = [
        row
        for row in plain
        if row.keys_read_per_solved_ratio is not None or (row.accuracy == 0 and row.solved_lost)
    ]
    if not known:
        return ""
    cheaper = [row for row in known if is_cheaper(row)]
    text = f"A solved problem takes clearly fewer keys in {len(cheaper)} of {len(known)}"
    told = [keeps_accuracy(row) for row in plain]
    if all(one is None for one in told):
        return text + "; whether any keeps accuracy, too few problems say"
    few = told.count(None)
    kept = sum(bool(keeps_accuracy(row)) for row in cheaper)
    text += f", {kept} of which keep accuracy (a loss of {MARGIN:.0%} points ruled out)".replace(
        "% points", " points"
    )
    return text + (f"; {few} have too few problems to say" if few else "")


def _detector(name: str, of_detector: Mapping[Key, ReportRow]) -> str:
    """What a detector saves and costs over all sparse configurations."""
    rows = list(of_detector.values())
    without = sum(row.detector_tokens_without or 0 for row in rows)
    saved = 1 - sum(row.detector_tokens or 0 for row in rows) / without if without else 0.0
    lost = sum(row.detector_solved_lost or 0 for row in rows)
    gained = sum(row.detector_solved_gained or 0 for row in rows)
    pairs = sum(row.detector_pairs or 0 for row in rows)
    return (
        f"{name.capitalize()} {_saves(saved)} of their tokens, losing {lost} and gaining {gained} "
        f"of {pairs} answers"
    )


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
        f"With penalty {name} outputs are longer in {longer} and shorter in {shorter} of "
        f"{_count(known)} than without it, losing {lost} and gaining {gained} of {pairs} answers"
    )


def _saves(share: float) -> str:
    return f"saves {100 * share:.1f}%" if share >= 0 else f"adds {-100 * share:.1f}%"


def _count(rows: list[ReportRow]) -> str:
    return f"{len(rows)} configuration" + ("" if len(rows) == 1 else "s")
