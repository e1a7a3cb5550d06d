"""What a sweep found, in short sentences said from the numbers alone.

Each kind of claim has one rule, at 95%: longer, shorter, cheaper and saving mean an interval clear
of no change, over `LEAST` problems or more; shorter also that no output was cut at the cap, for
then its length is a lower bound. "Keeps accuracy" means that losing `MARGIN` or more is ruled out,
which few problems cannot do. Intervals are not corrected for their number, so it is always said of
how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.report.names import shortly_named
from experiments.report.row import Key, ReportRow, by_penalty, pairs, shown_detector
from experiments.report.statistics import tango

#: The loss of accuracy that "keeps accuracy" must rule out.
MARGIN = 0.05

#: Problems below which nothing is called clear: five that all point one way are chance at p = 0.06.
LEAST = 6

_MOST = 3  # detectors with a sentence of their own


def finding(rows: Sequence[ReportRow]) -> str:
    """How long outputs got, what a solved problem costs, and what stopping and penalties change.

    Lengths and costs are those of sparse configurations without penalty and detector. What a
    penalty changes is said last, against the same configurations without it.
    """
    rows = shortly_named(rows)
    sparse = [row for row in rows if row.backend != "full" and row.penalty == "none"]
    plain = [row for row in sparse if row.detector == "none"]
    sentences = [_length(plain), _cost(plain), *_detectors(sparse)]
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
    low = row.length_ratio_low
    return low is not None and low > 1 and _compared(row) >= LEAST


def is_longer_solved(row: ReportRow) -> bool:
    """Whether outputs are longer than under full attention where both solve the problem."""
    low = row.length_ratio_solved_low
    return low is not None and low > 1 and row.solved_by_both / row.samples_per_problem >= LEAST


def is_shorter(row: ReportRow) -> bool:
    """Whether outputs are shorter than under full attention, clear of 1, and none was cut."""
    high = row.length_ratio_high
    uncut = row.length_ratio_capped is None  # of those that are in the ratio
    return high is not None and high < 1 and uncut and _compared(row) >= LEAST


def is_cheaper(row: ReportRow) -> bool:
    """Whether a solved problem takes fewer keys than under full attention, clear of 1."""
    high = row.keys_read_per_solved_ratio_high
    return high is not None and high < 1 and _compared(row) >= LEAST


def saves(row: ReportRow) -> bool:
    """Whether its detector saves tokens of the same traces, the interval clear of 0."""
    low = row.token_savings_low
    return low is not None and low > 0 and row.problems >= LEAST


def adds(row: ReportRow) -> bool:
    """Whether what its detector does takes more tokens than it saves, clear of 0."""
    high = row.token_savings_high
    return high is not None and high < 0 and row.problems >= LEAST


def _compared(row: ReportRow) -> float:
    """Problems that are in the ratios against full attention."""
    return (row.pairs - row.pairs_censored) / row.samples_per_problem


def _length(plain: list[ReportRow]) -> str:
    known = [row for row in plain if row.length_ratio is not None]
    censored = sum(row.pairs_censored for row in plain)
    left_out = ""
    if censored:
        several = "pairs" if censored > 1 else "pair"
        left_out = f" ({censored:,} {several} left out: full attention was cut at its cap)"
    if not known:
        return (
            "Nothing can be said about output length: no sparse configuration has a full-attention "
            f"run of the same problems that ended beside it{left_out}"
        )
    longer, shorter = ([row for row in known if rule(row)] for rule in (is_longer, is_shorter))
    head = max(longer or shorter or known, key=_size)
    if longer:
        text = f"Sparse attention made outputs longer in {len(longer)} of {_count(known)}, "
        text += f"up to {_where(head, known)}"
        text += f", and shorter in {len(shorter)}" if shorter else ""
    elif shorter:
        text = f"Sparse attention made outputs shorter in {len(shorter)} of {_count(known)}, "
        text += f"down to {_where(head, known)}"
    else:
        text = f"Sparse attention changed output length clearly in none of {_count(known)}; the "
        text += f"largest difference is {_where(head, known)}"
    of = [row for row in known if row.length_ratio_solved_low is not None]
    if of:
        solved = sum(map(is_longer_solved, of))
        text += f"; over problems that both solve, longer in {solved} of {len(of)}"
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
    told = [keeps_accuracy(row) for row in cheaper]
    if not told:
        return text
    if all(one is None for one in told):
        return text + "; whether accuracy is kept there, too few problems say"
    text += f", {told.count(True)} of which keep accuracy (a loss of {100 * MARGIN:.0f} points "
    text += "ruled out)"
    few = told.count(None)
    return text + (f"; {few} have too few problems to say" if few else "")


def _detectors(sparse: list[ReportRow]) -> list[str]:
    """A sentence for each, the one that figures show first; of very many the first alone."""
    watched = pairs([row for row in sparse if row.detector_pairs])
    shown = shown_detector([row for row in sparse if row.detector_pairs])
    names = [name for name, _ in watched]
    order = sorted(watched, key=lambda one: one != shown)
    told = [
        _detector(name if names.count(name) == 1 else f"{name} ({action})", watched[name, action])
        for name, action in order[:_MOST]
    ]
    left = len(order) - len(told)
    several = "detectors and actions are" if left > 1 else "detector or action is"
    return [*told, f"{left} more {several} in Table 1 and Figure 5"] if left > 0 else told


def _detector(name: str, of_detector: Mapping[Key, ReportRow]) -> str:
    """What a detector saves and costs over all sparse configurations."""
    rows = list(of_detector.values())
    without = sum(row.detector_tokens_without or 0 for row in rows)
    saved = 1 - sum(row.detector_tokens or 0 for row in rows) / without if without else 0.0
    lost = sum(row.detector_solved_lost or 0 for row in rows)
    gained = sum(row.detector_solved_gained or 0 for row in rows)
    judged = sum(row.n for row in rows if row.detector_solved_lost is not None)
    less, more = sum(map(saves, rows)), sum(map(adds, rows))
    text = name[:1].upper() + name[1:]
    if less:
        text += f" saves tokens in {less} of {_count(rows)}"
        text += f" and adds some in {more}" if more else ""
    elif more:
        text += f" adds tokens in {more} of {_count(rows)}"
    else:
        text += f" changes tokens clearly in none of {_count(rows)}"
    sign = "fewer" if saved >= 0 else "more"
    return f"{text}, {100 * abs(saved):.1f}% {sign} over all{_answers(lost, gained, judged)}"


def _answers(lost: int, gained: int, judged: int) -> str:
    """What it does to answers; nothing where none was judged."""
    return f", losing {lost} and gaining {gained} of {judged:,} answers" if judged else ""


def _penalty(name: str, rows: list[ReportRow]) -> str:
    """How a penalty moves lengths and answers over all configurations, full attention's too."""
    known = [r for r in rows if r.detector == "none" and r.penalty_length_ratio is not None]
    if not known:
        return ""
    many = [row for row in known if row.problems >= LEAST]
    longer = sum((row.penalty_length_ratio_low or 0) > 1 for row in many)
    shorter = sum(0 < (row.penalty_length_ratio_high or 0) < 1 for row in many)
    lost = sum(row.penalty_solved_lost or 0 for row in known)
    gained = sum(row.penalty_solved_gained or 0 for row in known)
    judged = sum(row.n for row in known if row.penalty_solved_lost is not None)
    return (
        f"With penalty {name} outputs are longer in {longer} and shorter in {shorter} of "
        f"{_count(known)} than without it{_answers(lost, gained, judged)}"
    )


def _count(rows: list[ReportRow]) -> str:
    return f"{len(rows)} configuration" + ("" if len(rows) == 1 else "s")
