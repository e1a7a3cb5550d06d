"""What a sweep found, in short sentences said from the numbers alone.

What is called longer, shorter, fewer or lost are the claims of `claims.py`; it is always said of
how many configurations, and how many of them differ from full attention at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.report.claims import LOSS, keeps_accuracy
from experiments.report.names import capital, detector_name, shortly_named
from experiments.report.pooled import row_totals
from experiments.report.row import AtCap, ReportRow, by_penalty, pairs, shown_detector
from experiments.report.statistics import LEAST
from experiments.store.samples.sample import Key

_MOST = 3  # detectors with a sentence of their own


def finding(
    rows: Sequence[ReportRow], pooled: Sequence[ReportRow] = (), factor: int | None = None
) -> str:
    """How long outputs got, what a solved problem costs, and what stopping and penalties change.

    Lengths and costs are those of sparse configurations without penalty and detector; controls and
    the null have sentences of their own. What a penalty changes is said last, against the same
    configurations without it.

    Args:
        rows: of a report.
        pooled: the same over all data sets of a model together.
        factor: the cap, times full attention's length; None for a number of tokens.
    """
    rows, pooled = shortly_named(rows), shortly_named(pooled)
    bare = [row for row in rows if row.penalty == "none"]
    sparse = [row for row in bare if row.is_sparse and row.role == "method"]
    plain = [row for row in sparse if row.detector == "none"]
    together = [row for row in pooled if row.penalty == "none"] or [
        row for row in bare if row.detector == "none"
    ]
    sentences = [
        _length(plain, factor),
        _cost(plain),
        _answers(plain, [row for row in together if row.is_sparse and row.role == "method"]),
        _controls([row for row in together if row.role == "control"]),
        _null([row for row in bare if row.role == "null" and row.detector == "none"]),
        *_detectors(sparse),
    ]
    sentences += [_penalty(name, part) for name, part in by_penalty(rows).items() if name != "none"]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def adds(row: ReportRow) -> bool:
    """Whether what its detector does takes more tokens than it saves, clear of 0."""
    high = row.token_savings.high
    return high is not None and high < 0 and row.problems >= LEAST


def _length(plain: list[ReportRow], factor: int | None) -> str:
    known = [row for row in plain if row.length_ratio.estimate is not None]
    censored = sum(row.pairs_censored for row in plain)
    left_out = ""
    if censored:
        several = "pairs" if censored > 1 else "pair"
        left_out = f" ({censored:,} {several} left out: full attention was cut at its cap)"
    if not known:
        if not plain:
            return ""
        return (
            "Nothing can be said about output length: no sparse configuration has a full-attention "
            f"run of the same problems that ended beside it{left_out}"
        )
    text = "Outputs are " + _counts(known)
    differ = [row for row in known if row.length_ratio.differs]
    text += f" of {_count(known)}, {len(differ)} of which differ in length at all"
    told = [row for row in known if "longer" in row.claims]
    if told:
        text += f"; at most {_where(max(told, key=_size), known)}"
    elif differ:
        text += f"; the largest difference, not clear, is {_where(max(differ, key=_size), known)}"
    for at, cap in enumerate(known[0].caps):
        text += f"; read at {cap.factor} times full attention's length instead of {factor}, "
        text += _counts([row.caps[at] for row in known])
    text += f". Where both solve, outputs are {_solved(known)}"
    for at, cap in enumerate(known[0].caps):
        text += f"; read at {cap.factor} times, {_solved([row.caps[at] for row in known])}"
    return text + left_out


def _counts(known: Sequence[ReportRow | AtCap]) -> str:
    longer, shorter = (sum(word in row.claims for row in known) for word in ("longer", "shorter"))
    return f"longer in {longer} and shorter in {shorter}"


def _solved(known: Sequence[ReportRow | AtCap]) -> str:
    of = [row for row in known if row.length_ratio_solved.differs >= LEAST]
    longer, shorter = (
        sum(word in row.claims for row in of) for word in ("longer solved", "shorter solved")
    )
    return f"longer in {longer} and shorter in {shorter} of {len(of)} with {LEAST} that differ"


def _where(head: ReportRow, among: list[ReportRow]) -> str:
    several = len({row.model for row in among}) > 1
    text = f"{head.length_ratio.estimate:.2f} times"
    if head.length_ratio.low is None or head.length_ratio.high is None:
        text += f" ({head.length_ratio.differs} that differ, too few for an interval)"
    else:
        text += f" [{head.length_ratio.low:.2f}, {head.length_ratio.high:.2f}]"
    text += f" ({head.backend} {head.budget}, {head.dataset}" + (
        f", {head.model}" if several else ""
    )
    return text + (f"; {head.capped} of {head.samples} cut at the cap)" if head.capped else ")")


def _size(row: ReportRow) -> float:
    """How far a length ratio is from 1, a half as far as a double."""
    ratio = row.length_ratio.estimate or 0.0
    return max(ratio, 1 / ratio) if ratio else 0.0


def _cost(plain: list[ReportRow]) -> str:
    """How many take fewer keys per solved problem, and how many more."""
    known = [
        row
        for row in plain
        if row.keys_read_per_solved_ratio.estimate is not None
        or (row.accuracy.estimate == 0 and row.accuracy_change.lost)
    ]
    if not known:
        return ""
    fewer, more = (sum(word in row.claims for row in known) for word in ("fewer keys", "more keys"))
    none = sum(row.accuracy.estimate == 0 for row in known)
    text = f"A solved problem takes fewer keys in {fewer} and more in {more} of {len(known)}"
    return text + (f", {none} of which solve none" if none else "")


def _answers(plain: list[ReportRow], together: list[ReportRow]) -> str:
    """Where answers are lost beyond chance, and where accuracy is kept."""
    known = [row for row in plain if row.accuracy_change.estimate is not None]
    if not known:
        return ""
    lost, gained = (sum(word in row.claims for row in known) for word in ("loses", "gains"))
    text = f"Answers are lost in {lost} of {_count(known)}"
    text += f" and gained in {gained}" if gained else ""
    told = [
        (row, keeps_accuracy(row)) for row in together if row.accuracy_change.estimate is not None
    ]
    if all(kept is None for _, kept in told):
        return text + "; that accuracy is kept, too few problems say anywhere"
    kept = [row for row, it in told if it]
    text += f"; accuracy is kept (a loss of {100 * LOSS:.0f} points ruled out) in {len(kept)} of "
    text += f"{len(told)}"
    return text + (" over all data sets together" if together and together != plain else "")


def _controls(controls: list[ReportRow]) -> str:
    """The smallest budget of each control: what choice alone does."""
    told = []
    for name in dict.fromkeys(row.backend for row in controls):
        mine = [
            row for row in controls if row.backend == name and row.accuracy.estimate is not None
        ]
        if not mine:
            continue
        row = min(mine, key=lambda one: one.budget or 0)
        solved = round((row.accuracy.estimate or 0.0) * row.n)
        words = f"{name} {row.budget} solves {solved} of {row.n}"
        if row.length_ratio.estimate is not None:
            words += f", {row.length_ratio.estimate:.2f} times as long"
        told.append(words)
    return f"Controls: {'; '.join(told)}" if told else ""


def _null(nulls: list[ReportRow]) -> str:
    """What chance alone does to full attention."""
    told = []
    for row in nulls:
        if row.length_ratio.estimate is None:
            continue
        words = f"{row.length_ratio.estimate:.2f}"
        if row.length_ratio.low is not None and row.length_ratio.high is not None:
            words += f" [{row.length_ratio.low:.2f}, {row.length_ratio.high:.2f}]"
        told.append(f"{words} on {row.dataset} ({row.pairs_same} of {row.pairs} the same text)")
    name = nulls[0].backend if nulls else ""
    return f"The null, full attention beside itself ({name}): {'; '.join(told)}" if told else ""


def _detectors(sparse: list[ReportRow]) -> list[str]:
    """A sentence for each, the one that figures show first; of very many the first alone."""
    watched = pairs([row for row in sparse if row.detector_pairs])
    shown = shown_detector([row for row in sparse if row.detector_pairs])
    order = sorted(watched, key=lambda one: one != shown)
    told = [_detector(detector_name(*one, list(watched)), watched[one]) for one in order[:_MOST]]
    left = len(order) - len(told)
    several = "detectors and actions are" if left > 1 else "detector or action is"
    return [*told, f"{left} more {several} in Table 1 and Figure 5"] if left > 0 else told


def _detector(name: str, of_detector: Mapping[Key, ReportRow]) -> str:
    """What a detector saves and costs over all sparse configurations."""
    rows = list(of_detector.values())
    of_all = row_totals(rows)
    saved = of_all.saved or 0.0
    fires, more = sum(row.fired > 0 for row in rows), sum(map(adds, rows))
    text = f"{capital(name)} fires in {fires} of {_count(rows)}"
    text += f" and adds tokens in {more}" if more else ""
    text += f", {100 * abs(saved):.1f}% {'fewer' if saved >= 0 else 'more'} tokens over all"
    if not of_all.is_judged:
        return text
    return (
        f"{text}; it gains {of_all.gained} answers and loses {of_all.lost} of {of_all.stood:,}, "
        f"{of_all.apart:,} of which stand in other texts than full attention's"
    )


def _answers_moved(lost: int, gained: int, judged: int) -> str:
    """What it does to answers; nothing where none was judged."""
    return f", losing {lost} and gaining {gained} of {judged:,} answers" if judged else ""


def _penalty(name: str, rows: list[ReportRow]) -> str:
    """How a penalty moves lengths and answers over all configurations, full attention's too."""
    known = [
        r for r in rows if r.detector == "none" and r.penalty_length_ratio.estimate is not None
    ]
    if not known:
        return ""
    longer, shorter = (sum(word in row.claims for row in known) for word in ("longer", "shorter"))
    lost = sum(row.penalty_accuracy_change.lost or 0 for row in known)
    gained = sum(row.penalty_accuracy_change.gained or 0 for row in known)
    judged = sum(row.n for row in known if row.penalty_accuracy_change.lost is not None)
    return (
        f"With penalty {name} outputs are longer in {longer} and shorter in {shorter} of "
        f"{_count(known)} than without it{_answers_moved(lost, gained, judged)}"
    )


def _count(rows: list[ReportRow]) -> str:
    return f"{len(rows)} configuration" + ("" if len(rows) == 1 else "s")
