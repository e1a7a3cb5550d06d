"""Which setting of a detector keeps a promise about false stops, and what the promise rests on.

After Angelopoulos et al., "Learn then Test" (arXiv 2110.01052): settings are tried from the most
cautious to the most eager, in an order fixed before the traces are looked at, and each must reject
the hypothesis that its rate of false stops is the wanted one or higher. The first that does not
ends the search. So the chance that the last one accepted breaks the promise is at most 5%, however
many are tried. Traces of one problem are not independent: the rate is the mean over problems of the
share of a problem's clean traces that are stopped, and the problems are what is counted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.statistics import LEVEL
from experiments.store.samples.sample import Sample

#: The chance that a promise is broken.
RISK = 1 - LEVEL


@dataclass(frozen=True)
class Clean:
    """The traces of one problem that should not be stopped.

    Attributes:
        problem: its name.
        traces: how many there are, at least one.
        stopped: how many of them each setting stops.
    """

    problem: str
    traces: int
    stopped: tuple[int, ...]


@dataclass(frozen=True)
class FalseStops:
    """What one setting does to the clean traces of some problems.

    Attributes:
        problems, traces: how many.
        stopped: traces that it stops.
        problems_stopped: problems with one of these.
        rate: mean over problems of the share of traces stopped; None without problems.
        high: 95% upper bound of the rate; 1 without problems.
    """

    problems: int
    traces: int
    stopped: int
    problems_stopped: int
    rate: float | None
    high: float


def needed(rate: float) -> int:
    """Clean independent traces, none of them stopped, that prove a rate below this one."""
    return math.ceil(math.log(RISK) / math.log1p(-rate))


def chosen(clean: Sequence[Clean], settings: int, rate: float) -> int | None:
    """The most eager setting that keeps the promise; None where the most cautious does not.

    Args:
        clean: of independent problems.
        settings: how many there are, the most cautious first.
        rate: of false stops, which the true one must not reach.
    """
    last = None
    for setting in range(settings):
        if p_value(clean, setting, rate) > RISK:
            break
        last = setting
    return last


def p_value(clean: Sequence[Clean], setting: int, rate: float) -> float:
    """The chance, at most, of so few false stops if their rate is `rate` or higher.

    Exact where each problem has one trace; else the smaller of Hoeffding's bound for means of
    numbers from 0 to 1 and Bentkus's. With no false stop all are the same.
    """
    n = len(clean)
    if not n:
        return 1.0
    from scipy.stats import binom

    shares = [one.stopped[setting] / one.traces for one in clean]
    total = math.fsum(shares)
    if all(one.traces == 1 for one in clean):
        return float(binom.cdf(round(total), n, rate))
    if total >= n * rate:
        return 1.0
    hoeffding = math.exp(-n * _divergence(total / n, rate))
    # A sum that is whole but for rounding must not count as the next number.
    bentkus = math.e * float(binom.cdf(math.ceil(total - 1e-9), n, rate))
    return min(1.0, hoeffding, bentkus)


def _divergence(share: float, rate: float) -> float:
    """Kullback and Leibler's, of a coin of one share from that of another, in nats."""
    first = share * math.log(share / rate) if share else 0.0
    return first + (1 - share) * math.log((1 - share) / (1 - rate))


def false_stops(clean: Sequence[Clean], setting: int) -> FalseStops:
    """What a setting does to these traces, with the bound that `p_value` gives."""
    counts = [one.stopped[setting] for one in clean]
    rate = None
    if clean:
        rate = math.fsum(c / one.traces for c, one in zip(counts, clean, strict=True)) / len(clean)
    low, high = rate or 0.0, 1.0
    if not clean or p_value(clean, setting, 1 - 1e-12) > RISK:
        low = 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if p_value(clean, setting, middle) > RISK:
            low = middle
        else:
            high = middle
    return FalseStops(
        problems=len(clean),
        traces=sum(one.traces for one in clean),
        stopped=sum(counts),
        problems_stopped=sum(count > 0 for count in counts),
        rate=rate,
        high=high,
    )


def halves(problems: Mapping[str, Iterable[str]], seed: int) -> tuple[set[str], set[str]]:
    """Problems to choose on and problems to report on, half of each data set.

    Args:
        problems: by data set.
        seed: another one gives other halves.
    """
    first: set[str] = set()
    second: set[str] = set()
    for dataset, names in problems.items():
        drawn = sorted(
            set(names),
            key=lambda name: hashlib.sha256(f"{seed}/{dataset}/{name}".encode()).digest(),
        )
        for at, name in enumerate(drawn):
            (second if at % 2 else first).add(f"{dataset}/{name}")
    return first, second


# ---------------------------------------------------------------- the traces of a store

#: Data set and item: a problem.
Problem = tuple[str, str]
#: Of one problem: each trace as decoded, and under each setting.
Traces = Mapping[Problem, Sequence[tuple[Sample, Sequence[Sample]]]]


def by_problem(samples: Sequence[Sample], names: Sequence[str]) -> Traces:
    """Every trace there is, by its problem.

    Those of nulls are left out: no detector watches them, see `Study.supports`.

    Args:
        samples: of a study under all settings.
        names: what the settings are called.
    """
    plain: dict[tuple[object, ...], Sample] = {}
    under: dict[tuple[object, ...], dict[str, Sample]] = defaultdict(dict)
    for sample in samples:
        if sample.role == "null":
            continue
        if sample.detector == "none":
            plain[sample.run] = sample
        else:
            under[sample.run][sample.detector] = sample
    found: dict[Problem, list[tuple[Sample, list[Sample]]]] = defaultdict(list)
    for run, sample in plain.items():
        if sample.tokens is not None:
            stopped = [under[run][name] for name in names]
            found[sample.dataset, sample.item_id].append((sample, stopped))
    return found


def in_halves(traces: Traces, seed: int) -> tuple[Traces, Traces]:
    """Problems to choose on and problems to report on, the same in every data set and kind.

    Those with a clean trace are halved by themselves: they alone say something of false stops.
    Which traces are clean does not depend on any detector.

    Args:
        traces: by problem.
        seed: another one gives other halves.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for (dataset, item), pairs in traces.items():
        clean = any(_is_clean(plain) for plain, _ in pairs)
        kinds[f"{dataset}/{clean}"].append(item)
    first, _ = halves(kinds, seed)
    chosen = {
        key for key in traces if any(f"{key[0]}/{c}/{key[1]}" in first for c in (True, False))
    }
    return (
        {key: pairs for key, pairs in traces.items() if key in chosen},
        {key: pairs for key, pairs in traces.items() if key not in chosen},
    )


class Half:
    """The traces of half of the problems.

    Args:
        traces: by problem.
        names: what the settings are called.
    """

    def __init__(self, traces: Traces, names: Sequence[str]) -> None:
        self.names = names
        self.all = [pair for pairs in traces.values() for pair in pairs]
        self.clean = [
            Clean(
                "/".join(key),
                len(clean),
                tuple(
                    sum(stopped[at].stopped_at is not None for _, stopped in clean)
                    for at in range(len(names))
                ),
            )
            for key, pairs in traces.items()
            if (clean := [pair for pair in pairs if _is_clean(pair[0])])
        ]

    def false_stops(self, at: int) -> FalseStops:
        """What a setting does to the traces that it should leave alone."""
        return false_stops(self.clean, at)

    def told(self, at: int) -> dict[str, Any]:
        """That, and what the setting saves of all traces: tokens, and of wasted ones."""
        before = [plain for plain, _ in self.all]
        after = [stopped[at] for _, stopped in self.all]
        saved = {
            name: _share(
                [getattr(one, name) for one in before], [getattr(one, name) for one in after]
            )
            for name in ("paid_tokens", "wasted_loop", "wasted_tail")
        }
        return dataclasses.asdict(self.false_stops(at)) | {"saved": saved}


def _is_clean(sample: Sample) -> bool:
    full = sample.backend == "full" and sample.penalty == "none"
    return sample.status == "ok" and (full or sample.correct is True)


def _share(before: Sequence[int | None], after: Sequence[int | None]) -> float | None:
    """The share of a total that is gone; None where nothing is known, or there was nothing."""
    known = [(b, a) for b, a in zip(before, after, strict=True) if b is not None and a is not None]
    total = sum(b for b, _ in known)
    return 1 - sum(a for _, a in known) / total if total else None
