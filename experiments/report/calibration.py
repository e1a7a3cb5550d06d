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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from experiments.report.pairs import saved
from experiments.report.statistics import LEVEL
from experiments.store.samples.sample import Sample

#: The chance that a promise is broken.
RISK = 1 - LEVEL

#: Data set and item: a problem.
Problem = tuple[str, str]
#: Of one problem: each trace as decoded, and under each setting.
Traces = Mapping[Problem, Sequence[tuple[Sample, Sequence[Sample]]]]


class Loss(NamedTuple):
    """What a promise bounds: the traces that count, and what is not to happen to one of them."""

    counts: Callable[[Sample], bool]
    happens: Callable[[Sample], bool]


@dataclass(frozen=True)
class Clean:
    """The traces of one problem that count, and to how many the loss happens at each setting."""

    problem: str
    traces: int
    stopped: tuple[int, ...]


@dataclass(frozen=True)
class FalseStops:
    """What one setting does to the clean traces of some problems.

    Attributes:
        rate: mean over problems of the share of traces stopped; None without problems.
        high: 95% upper bound of the rate; 1 without problems.
    """

    problems: int
    traces: int
    stopped: int
    problems_stopped: int
    rate: float | None
    high: float


def min_problems(rate: float) -> int:
    """Clean independent traces, none of them stopped, that prove a rate below this one."""
    return math.ceil(math.log(RISK) / math.log1p(-rate))


def choose_setting(clean: Sequence[Clean], settings: int, rate: float) -> int | None:
    """The most eager of `settings` that proves a rate below `rate`; None if none does."""
    for setting in range(settings):
        if p_value(clean, setting, rate) > RISK:
            return setting - 1 if setting else None
    return settings - 1


def p_value(clean: Sequence[Clean], setting: int, rate: float) -> float:
    """The chance, at most, of so few false stops if their rate is `rate` or higher.

    Exact for one trace a problem; else the smaller of Hoeffding's and Bentkus's bounds.
    """
    n = len(clean)
    if not n:
        return 1.0
    from scipy.stats import binom

    total = math.fsum(problem.stopped[setting] / problem.traces for problem in clean)
    if all(problem.traces == 1 for problem in clean):
        return float(binom.cdf(round(total), n, rate))
    if total >= n * rate:
        return 1.0
    share = total / n
    divergence = share * math.log(share / rate) if share else 0.0
    divergence += (1 - share) * math.log((1 - share) / (1 - rate))
    # A sum that is whole but for rounding must not count as the next number.
    bentkus = math.e * float(binom.cdf(math.ceil(total - 1e-9), n, rate))
    return min(1.0, math.exp(-n * divergence), bentkus)


def false_stops(clean: Sequence[Clean], setting: int) -> FalseStops:
    """What a setting does to these traces, with the bound that `p_value` gives."""
    from scipy.optimize import bisect

    counts = [problem.stopped[setting] for problem in clean]
    rate, high, most = None, 1.0, 1 - 1e-12
    if clean:
        shares = (count / p.traces for count, p in zip(counts, clean, strict=True))
        rate = math.fsum(shares) / len(clean)
        if p_value(clean, setting, most) <= RISK:
            low = max(rate, 1e-12)
            high = float(bisect(lambda r: p_value(clean, setting, r) - RISK, low, most, xtol=1e-10))
    return FalseStops(
        problems=len(clean),
        traces=sum(problem.traces for problem in clean),
        stopped=sum(counts),
        problems_stopped=sum(count > 0 for count in counts),
        rate=rate,
        high=high,
    )


class Split:
    """The traces of some of the problems, under settings of these names."""

    def __init__(self, traces: Traces, names: Sequence[str], loss: Loss) -> None:
        self.names = names
        self.all = [pair for pairs in traces.values() for pair in pairs]
        self.clean = []
        for key, pairs in traces.items():
            if clean := [stopped for plain, stopped in pairs if loss.counts(plain)]:
                happened = [[loss.happens(sample) for sample in part] for part in clean]
                counts = tuple(map(sum, zip(*happened, strict=True)))
                self.clean.append(Clean("/".join(key), len(clean), counts))

    def false_stops(self, at: int) -> FalseStops:
        """What a setting does to the traces that it should leave alone."""
        return false_stops(self.clean, at)

    def to_dict(self, at: int) -> dict[str, Any]:
        """That, and what the setting saves of all traces: tokens, and of wasted ones."""
        pairs = [(stopped[at], plain) for plain, stopped in self.all]
        gone = {name: saved(pairs, name) for name in ("paid_tokens", "wasted_loop", "wasted_tail")}
        return dataclasses.asdict(self.false_stops(at)) | {"saved": gone}


def traces_by_problem(samples: Sequence[Sample], names: Sequence[str]) -> Traces:
    """Each problem's traces under all settings; no detector watches those of nulls."""
    plain: dict[tuple[object, ...], Sample] = {}
    under: dict[tuple[object, ...], dict[str, Sample]] = defaultdict(dict)
    for sample in samples:
        if sample.role == "null":
            continue
        if sample.detector == "none":
            plain[sample.run] = sample
        else:
            under[sample.run][sample.detector] = sample
    traces: dict[Problem, list[tuple[Sample, list[Sample]]]] = defaultdict(list)
    for run, sample in plain.items():
        # A method may not be able to do what follows a verdict.
        if sample.tokens is not None and under[run].keys() >= {*names}:
            stopped = [under[run][name] for name in names]
            traces[sample.dataset, sample.item_id].append((sample, stopped))
    return traces


def split(traces: Traces, names: Sequence[str], seed: int, loss: Loss) -> tuple[Split, Split]:
    """Two halves of every data set's problems; those with a trace that counts separately."""
    kinds: dict[str, list[Problem]] = defaultdict(list)
    for key, pairs in traces.items():
        kinds[f"{key[0]}/{any(loss.counts(plain) for plain, _ in pairs)}"].append(key)
    first: set[Problem] = set()
    for kind, keys in kinds.items():
        drawn = {key: hashlib.sha256(f"{seed}/{kind}/{key[1]}".encode()).digest() for key in keys}
        first |= set(sorted(keys, key=drawn.__getitem__)[::2])
    one, other = ({k: v for k, v in traces.items() if (k in first) is x} for x in (True, False))
    return Split(one, names, loss), Split(other, names, loss)


def _is_clean(sample: Sample) -> bool:
    full = sample.backend == "full" and sample.penalty == "none"
    return sample.status == "ok" and (full or sample.correct is True)


#: A trace that should end by itself is stopped.
FALSE_STOPS = Loss(_is_clean, lambda sample: sample.stopped_at is not None)

#: The right answer of a trace is no longer there.
LOST_ANSWERS = Loss(lambda sample: sample.correct is True, lambda sample: not sample.correct)
