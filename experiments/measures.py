"""What a sweep found: one row per configuration, beside full attention on the same problems.

A sample's partner is the full-attention sample of the same model, data set, item and sample index,
without penalty and without detector; a detector's row is compared with the same traces left alone
as well. A pair with an error, without a partner or without the number in question is left out of
that comparison; `pairs_missing` and `detector_pairs_missing` count the pairs nothing is known of.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from experiments.finding import finding
from experiments.row import Row, order, series
from experiments.sample import Sample
from experiments.statistics import Bootstrap, mcnemar, wilson

__all__ = ["Row", "finding", "rows"]

Key = tuple[str, str, str, int]
Pairs = list[tuple[Sample, Sample]]
_FLOATS = (
    "prefill_sec",
    "decode_sec",
    "keys_read",
    "keys_read_mean",
    "dense_layer_keys_read_mean",
    "cache_byte_sec",
)
Cost = Callable[[Sample], float | None]


def rows(samples: Sequence[Sample], seed: int) -> list[Row]:
    """One row per configuration, the same whatever the order of the samples.

    Args:
        seed: of the bootstrap.

    Raises:
        ValueError: a problem occurs twice in one configuration.
    """
    groups: dict[tuple[object, ...], dict[Key, Sample]] = defaultdict(dict)
    full: dict[Key, Sample] = {}
    for sample in map(_finite, samples):
        group = groups[_run(sample), sample.detector, sample.action]
        if sample.pair in group:
            raise ValueError(
                f"{sample.pair} occurs twice under {sample.backend}, budget {sample.budget}, "
                f"penalty {sample.penalty}, detector {sample.detector}"
            )
        group[sample.pair] = sample
        if (sample.backend, sample.penalty, sample.detector) == ("full", "none", "none"):
            full[sample.pair] = sample
    bootstrap = Bootstrap(seed)
    found = []
    for (run, detector, _), group in groups.items():
        alone = {} if detector == "none" else groups.get((run, "none", "none"), {})
        found.append(_row([group[key] for key in sorted(group)], full, alone, bootstrap))
    return _with_break_even(sorted(found, key=order))


def _run(sample: Sample) -> tuple[object, ...]:
    """What a detector's samples share with the traces they were cut from."""
    parameters = repr(sorted(sample.backend_params))
    return (
        sample.model,
        sample.dataset,
        sample.backend,
        parameters,
        sample.budget,
        sample.penalty,
    )


def _finite(sample: Sample) -> Sample:
    """NaN and infinity measure nothing: they become missing here, once for every measure."""
    missing: dict[str, Any] = {
        name: None for name in _FLOATS if not isfinite(getattr(sample, name) or 0)
    }
    return replace(sample, **missing) if missing else sample


def _row(
    samples: list[Sample],
    full: Mapping[Key, Sample],
    alone: Mapping[Key, Sample],
    bootstrap: Bootstrap,
) -> Row:
    one = samples[0]
    usable = [sample for sample in samples if _usable(sample)]
    pairs = _pairs(usable, full)
    return Row(
        model=one.model,
        dataset=one.dataset,
        backend=one.backend,
        budget=one.budget,
        backend_params=dict(one.backend_params),
        penalty=one.penalty,
        detector=one.detector,
        action=one.action,
        break_even_budget=None,  # both need the rows of the other budgets
        break_even=None,
        pairs=len(pairs),
        pairs_missing=len(samples) - len(pairs),
        **_counts(samples),
        **_accuracy(usable, pairs),
        **_at_k(samples),
        **_lengths(usable, pairs, bootstrap),
        **_detector(one, samples, _pairs(usable, alone), bootstrap),
        **_costs(usable, pairs),
        **_keys(usable),
        **_compression(usable),
    )


def _usable(sample: Sample) -> bool:
    return sample.status not in ("error", "out_of_memory")


def _pairs(usable: list[Sample], partners: Mapping[Key, Sample]) -> Pairs:
    found = ((sample, partners.get(sample.pair)) for sample in usable)
    return [(mine, theirs) for mine, theirs in found if theirs is not None and _usable(theirs)]


def _counts(samples: list[Sample]) -> dict[str, Any]:
    ended = [sample.status for sample in samples]
    return {
        "samples": len(samples),
        "problems": len({sample.item_id for sample in samples}),
        "finished": ended.count("ok"),
        "capped": ended.count("capped"),
        "stopped": ended.count("stopped"),
        "errors": ended.count("error") + ended.count("out_of_memory"),
        "out_of_memory": ended.count("out_of_memory"),
        "reused_tokens": sum(sample.reused_tokens for sample in samples if _usable(sample)),
    }


def _accuracy(usable: list[Sample], pairs: Pairs) -> dict[str, Any]:
    scored = [sample.correct for sample in usable if sample.correct is not None]
    share = wilson(sum(scored), len(scored))
    lost, gained, change = _changes(pairs)
    return {
        "n": len(scored),
        "accuracy": share.estimate,
        "accuracy_low": share.low,
        "accuracy_high": share.high,
        "accuracy_change": change,
        "accuracy_change_p": _p(lost, gained),
        "solved_lost": lost,
        "solved_gained": gained,
    }


def _changes(pairs: Pairs) -> tuple[int | None, int | None, float | None]:
    """Problems lost and gained by the first of each pair, and the change of accuracy."""
    scored = [(m.correct, t.correct) for m, t in pairs if None not in (m.correct, t.correct)]
    if not scored:
        return None, None, None
    lost, gained = scored.count((False, True)), scored.count((True, False))
    return lost, gained, (gained - lost) / len(scored)


def _p(lost: int | None, gained: int | None) -> float | None:
    return None if lost is None or gained is None else mcnemar(lost, gained)


def _at_k(samples: list[Sample]) -> dict[str, Any]:
    """avg@k and pass@k; a problem with a sample missing or failed would bias both, so it is out."""
    attempts: dict[str, list[bool | None]] = defaultdict(list)
    for sample in samples:
        attempts[sample.item_id].append(sample.correct if _usable(sample) else None)
    k = max(map(len, attempts.values()))
    whole = [got for got in attempts.values() if len(got) == k and None not in got]
    return {
        "samples_per_problem": k,
        "avg_at_k": _mean(sum(map(bool, got)) / k for got in whole) if k > 1 else None,
        "pass_at_k": _mean(any(got) for got in whole) if k > 1 else None,
    }


def _lengths(usable: list[Sample], pairs: Pairs, bootstrap: Bootstrap) -> dict[str, Any]:
    both = [(mine, theirs) for mine, theirs in pairs if mine.tokens and theirs.tokens]
    ratios: dict[str, list[float]] = defaultdict(list)
    for mine, theirs in both:
        ratios[mine.item_id].append(_tokens(mine) / _tokens(theirs))
    ratio = bootstrap.mean([math.fsum(of_one) / len(of_one) for of_one in ratios.values()])
    totals = _by_problem((s.item_id, _tokens(s), 1) for s in usable if s.tokens is not None)
    tokens = bootstrap.ratio(totals)

    def ended(status: str) -> float | None:
        return _mean(
            _tokens(mine) / _tokens(theirs) for mine, theirs in both if mine.status == status
        )

    return {
        "mean_tokens": tokens.estimate,
        "mean_tokens_low": tokens.low,
        "mean_tokens_high": tokens.high,
        "length_ratio": ratio.estimate,
        "length_ratio_low": ratio.low,
        "length_ratio_high": ratio.high,
        "length_ratio_of_sums": _ratio_of_sums(both, _tokens),
        "length_ratio_finished": ended("ok"),
        "length_ratio_capped": ended("capped"),
        "length_ratio_stopped": ended("stopped"),
    }


def _detector(
    one: Sample, samples: list[Sample], pairs: Pairs, bootstrap: Bootstrap
) -> dict[str, Any]:
    """What the detector changes: pairs of a sample with it and the same trace left alone."""
    pairs = [(m, t) for m, t in pairs if m.tokens is not None and t.tokens is not None]
    there = one.detector != "none"
    lost, gained, change = _changes(pairs)
    kept = bootstrap.ratio(_by_problem((m.item_id, _tokens(m), _tokens(t)) for m, t in pairs))
    return {
        "token_savings": _savings(pairs),
        "token_savings_low": None if kept.high is None else 1 - kept.high,
        "token_savings_high": None if kept.low is None else 1 - kept.low,
        "token_savings_correct": _savings([pair for pair in pairs if pair[1].correct is True]),
        "token_savings_incorrect": _savings([pair for pair in pairs if pair[1].correct is False]),
        "detector_pairs": len(pairs) if there else None,
        "detector_pairs_missing": len(samples) - len(pairs) if there else None,
        "detector_tokens": sum(_tokens(mine) for mine, _ in pairs) if there else None,
        "detector_tokens_without": sum(_tokens(theirs) for _, theirs in pairs) if there else None,
        "detector_accuracy_change": change,
        "detector_accuracy_change_p": _p(lost, gained),
        "detector_solved_lost": lost,
        "detector_solved_gained": gained,
    }


def _savings(pairs: Pairs) -> float | None:
    kept = _ratio_of_sums(pairs, _tokens)
    return None if kept is None else 1 - kept


def _costs(usable: list[Sample], pairs: Pairs) -> dict[str, Any]:
    return {
        "prefill_sec": _mean(sample.prefill_sec for sample in usable),
        "decode_sec": _mean(sample.decode_sec for sample in usable),
        "end_to_end_sec": _mean(_sec(sample) for sample in usable),
        "end_to_end_ratio": _ratio_of_sums(pairs, _sec),
        "cache_bytes_peak": _max(sample.cache_bytes_peak for sample in usable),
        "cache_byte_sec": _mean(sample.cache_byte_sec for sample in usable),
        "cache_byte_sec_ratio": _ratio_of_sums(pairs, lambda sample: sample.cache_byte_sec),
        "keys_read_per_solved": _per_solved(usable, _keys_read),
        "keys_read_per_solved_ratio": _per_solved_ratio(pairs, _keys_read),
        "sec_per_solved": _per_solved(usable, _sec),
        "sec_per_solved_ratio": _per_solved_ratio(pairs, _sec),
    }


def _tokens(sample: Sample) -> int:
    return sample.tokens or 0


def _keys_read(sample: Sample) -> float | None:
    return sample.keys_read


def _sec(sample: Sample) -> float | None:
    if sample.prefill_sec is None or sample.decode_sec is None:
        return None
    return sample.prefill_sec + sample.decode_sec


def _per_solved(samples: Iterable[Sample], cost: Cost) -> float | None:
    """What all scored samples cost over how many are solved; None when none is."""
    known = [(cost(sample), sample.correct) for sample in samples if sample.correct is not None]
    costs = [(spent, correct) for spent, correct in known if spent is not None]
    solved = sum(correct for _, correct in costs)
    return math.fsum(spent for spent, _ in costs) / solved if solved else None


def _per_solved_ratio(pairs: Pairs, cost: Cost) -> float | None:
    both = [
        (mine, theirs)
        for mine, theirs in pairs
        if None not in (cost(mine), cost(theirs), mine.correct, theirs.correct)
    ]
    ours = _per_solved([mine for mine, _ in both], cost)
    reference = _per_solved([theirs for _, theirs in both], cost)
    return ours / reference if ours is not None and reference else None


def _ratio_of_sums(pairs: Pairs, cost: Cost) -> float | None:
    costs = [(cost(mine), cost(theirs)) for mine, theirs in pairs]
    known = [(mine, theirs) for mine, theirs in costs if mine is not None and theirs is not None]
    below = math.fsum(theirs for _, theirs in known)
    return math.fsum(mine for mine, _ in known) / below if below else None


def _keys(usable: list[Sample]) -> dict[str, Any]:
    return {
        "keys_kept_max": _max(sample.keys_kept_max for sample in usable),
        "keys_read_mean": _mean(sample.keys_read_mean for sample in usable),
        "keys_read_max": _max(sample.keys_read_max for sample in usable),
        "dense_layer_keys_read_mean": _mean(s.dense_layer_keys_read_mean for s in usable),
    }


def _compression(usable: list[Sample]) -> dict[str, Any]:
    curves = [[at for at in sample.curve if at[1]] for sample in usable]
    return {
        "compression_ratio": _mean(c[-1][2] / c[-1][1] for c in curves if c),
        "compression_curve": _mean_curve(curves),
        "repetition_rate": _mean(sample.repeated for sample in usable),
    }


def _mean_curve(
    curves: list[list[tuple[int | None, int, int]]],
) -> tuple[tuple[int, float, int], ...]:
    """Mean ratio by tokens, only where every output that long has a point.

    The last point of an output lies between the common checks; averaging over the few outputs that
    happen to end there would put spikes into the curve.
    """
    points: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for tokens, plain, packed in curve:
            if tokens is not None:
                points[tokens].append(packed / plain)
    ends = [max((at[0] or 0 for at in curve), default=0) for curve in curves]
    return tuple(
        (tokens, math.fsum(ratios) / len(ratios), len(ratios))
        for tokens, ratios in sorted(points.items())
        if len(ratios) == sum(end >= tokens for end in ends)
    )


def _by_problem(items: Iterable[tuple[str, float, float]]) -> list[tuple[float, float]]:
    """Two sums per problem: several samples of one problem are not independent of each other."""
    sums: dict[str, tuple[float, float]] = {}
    for item, first, second in items:
        before = sums.get(item, (0, 0))
        sums[item] = (before[0] + first, before[1] + second)
    return list(sums.values())


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _max(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _with_break_even(found: list[Row]) -> list[Row]:
    """Every row told where its line over the budgets meets full attention's cost."""
    apart: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in found:
        apart[row.model, row.dataset, row.detector, row.action].append(row)
    met: dict[int, tuple[float | None, str | None]] = {}
    for line in itertools.chain.from_iterable(series(part).values() for part in apart.values()):
        at = _break_even(line)
        met.update((id(row), at) for row in line)
    return [
        replace(row, break_even_budget=met[id(row)][0], break_even=met[id(row)][1]) for row in found
    ]


def _break_even(line: list[Row]) -> tuple[float | None, str | None]:
    """Budget and kind of the last crossing of keys per solved problem with full attention's."""
    costs: list[tuple[int, float]] = []
    for row in line:
        ratio = row.keys_read_per_solved_ratio
        if ratio is None and row.accuracy == 0 and row.solved_lost:
            ratio = math.inf  # full attention solves some, this none
        if row.budget is not None and ratio is not None:
            costs.append((row.budget, ratio))
    if not costs:
        return None, None
    cheap = list(itertools.takewhile(lambda at: at[1] <= 1 + 1e-9, reversed(costs)))
    if not cheap:
        return None, "never"
    if len(cheap) == len(costs):
        return float(costs[0][0]), "at most"
    (high, below), (low, above) = cheap[-1], costs[len(costs) - len(cheap) - 1]
    if math.isinf(above) or below == 0:
        return float(high), "at most"
    below = min(below, 1.0)
    share = math.log(above) / (math.log(above) - math.log(below))
    return low * (high / low) ** share, "crossing"
