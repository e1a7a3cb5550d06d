"""What a sweep found: one row per configuration, beside full attention on the same problems.

A sample's partner is the full-attention sample of the same model, data set, item and sample index,
without penalty and without detector. A detector's row is compared with the same traces left alone
as well, and a penalty's with the same backend, budget and detector without it. A pair with an
error, without a partner or without the number in question is left out of that comparison;
`pairs_missing`, `detector_pairs_missing` and `penalty_pairs_missing` count the pairs nothing is
known of. A configuration of which a sample failed or is not there yet has no measures but its
counts, and one whose partners are not complete is compared with nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from math import isfinite, log
from typing import Any

from experiments.report.aggregate import (
    Key,
    Pairs,
    by_problem,
    keys_read_of,
    maximum,
    mean,
    mean_curve,
    paid_of,
    pair_up,
    per_solved,
    per_solved_ratio,
    ratio_of_sums,
    sec_of,
    tokens_of,
    uncensored,
)
from experiments.report.attempts import attempts
from experiments.report.bootstrap import Bootstrap
from experiments.report.cheaper import with_cheaper
from experiments.report.claims import with_claims
from experiments.report.finding import finding
from experiments.report.lengths import length_ratio, lengths, long_pairs, solved_by_both
from experiments.report.row import POOLED, AtCap, ReportRow, order
from experiments.report.statistics import change_p, effective, tango, wilson
from experiments.report.timing import comparable
from experiments.store.samples.sample import Sample, is_usable

__all__ = ["ReportRow", "finding", "pooled_rows", "rows"]

_FLOATS = (
    "prefill_sec",
    "decode_sec",
    "keys_read",
    "keys_read_mean",
    "dense_layer_keys_read_mean",
    "cache_byte_sec",
)


def rows(
    samples: Sequence[Sample],
    seed: int,
    factor: int | None = 2,
    pool: Executor | None = None,
) -> list[ReportRow]:
    """One row per configuration, the same whatever the order of the samples.

    Args:
        samples: of a study.
        seed: of the bootstrap.
        factor: the cap as times full attention's length, at which logs of ratios are clipped; None
            where the cap is a number of tokens, which both sides share.
        pool: processes that share the work, for many samples.

    Raises:
        ValueError: a problem occurs twice in one configuration.
    """
    apart: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        apart[sample.model, sample.dataset].append(sample)
    spread = map if pool is None else pool.map
    found = spread(_rows, apart.values(), itertools.repeat(seed), itertools.repeat(factor))
    every = sorted(itertools.chain.from_iterable(found), key=order)
    return with_claims(with_cheaper(every))


def pooled_rows(samples: Sequence[Sample], seed: int, factor: int | None = 2) -> list[ReportRow]:
    """One row per configuration over all data sets of a model together, under the name `POOLED`.

    A level alone often has too few problems to say anything. Without detectors, and only of
    configurations that every data set has; none where there is one data set.

    Args:
        samples, seed, factor: as `rows` takes them.
    """
    datasets: dict[str, set[str]] = defaultdict(set)
    groups: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for one in samples:
        datasets[one.model].add(one.dataset)
        if one.detector == "none":
            groups[_run(replace(one, dataset=POOLED))].append(one)
    chosen = [
        replace(one, dataset=POOLED, item_id=f"{one.dataset}/{one.item_id}")
        for group in groups.values()
        if len(datasets[group[0].model]) > 1
        and {one.dataset for one in group} == datasets[group[0].model]
        for one in group
    ]
    apart: dict[str, list[Sample]] = defaultdict(list)
    for one in chosen:
        apart[one.model].append(one)
    found = [row for group in apart.values() for row in _rows(group, seed, factor)]
    return with_claims(sorted(found, key=order))


def _rows(samples: Sequence[Sample], seed: int, factor: int | None) -> list[ReportRow]:
    """The rows of one model and data set."""
    groups: dict[tuple[tuple[object, ...], str, str], dict[Key, Sample]] = defaultdict(dict)
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
    for (run, detector, action), group in groups.items():
        alone = {} if detector == "none" else groups.get((run, "none", "none"), {})
        free = (*run[:-1], "none")
        without = {} if run == free else groups.get((free, detector, action), {})
        ordered = [group[key] for key in sorted(group)]
        found.append(_row(ordered, full, alone, without, bootstrap, factor))
    return found


def _run(sample: Sample) -> tuple[object, ...]:
    """What a detector's samples share with the traces they were cut from; the penalty is last."""
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
    without: Mapping[Key, Sample],
    bootstrap: Bootstrap,
    factor: int | None,
) -> ReportRow:
    one = samples[0]
    # The longest outputs end last, or run out of memory: what is left says little of the whole.
    usable = samples if all(map(is_usable, samples)) else []
    pairs, missing = _pairs(usable, samples, full)
    ended = uncensored(pairs)
    most = None if factor is None else log(factor)
    return ReportRow(
        role=one.role,
        model=one.model,
        dataset=one.dataset,
        backend=one.backend,
        budget=one.budget,
        backend_params=dict(one.backend_params),
        penalty=one.penalty,
        detector=one.detector,
        action=one.action,
        pairs=len(pairs),
        pairs_missing=missing,
        pairs_censored=len(pairs) - len(ended),
        pairs_same=sum(mine.output == theirs.output for mine, theirs in pairs),
        **_counts(samples),
        **_accuracy(usable),
        **_change("", pairs, bootstrap.seed),
        **attempts(samples, bool(usable), bootstrap),
        **lengths(usable, ended, bootstrap, most),
        caps=_smaller_caps(usable, pairs, bootstrap) if one.detector == "none" else (),
        **_waste(usable),
        **_detector(one, *_pairs(usable, samples, alone), full, bootstrap),
        **_penalty(one, *_pairs(usable, samples, without), bootstrap, most),
        **comparable(_costs(usable, ended, bootstrap), [*usable, *(full for _, full in pairs)]),
        **_keys(usable),
        **_compression(usable, bootstrap),
    )


def _pairs(
    usable: list[Sample], samples: list[Sample], partners: Mapping[Key, Sample]
) -> tuple[Pairs, int]:
    """Every sample beside its partner and 0, or no pair at all and how many there are not."""
    pairs = pair_up(usable, partners)
    missing = len(samples) - len(pairs)
    return ([] if missing else pairs), missing


def _counts(samples: list[Sample]) -> dict[str, Any]:
    ended = [sample.status for sample in samples]
    return {
        "samples": len(samples),
        "problems": len({sample.item_id for sample in samples}),
        "finished": ended.count("ok"),
        "capped": ended.count("capped"),
        "stopped": ended.count("stopped"),
        "fired": sum(sample.stopped_at is not None for sample in samples),
        "errors": ended.count("error") + ended.count("out_of_memory"),
        "out_of_memory": ended.count("out_of_memory"),
        "missing": ended.count("missing"),
        "at_positions": sum(sample.at_positions for sample in samples),
        "reused_tokens": sum(sample.reused_tokens for sample in samples if is_usable(sample)),
    }


def _accuracy(usable: list[Sample]) -> dict[str, Any]:
    scored = [sample for sample in usable if sample.correct is not None]
    solved = [float(bool(sample.correct)) for sample in scored]
    n = effective(solved, [sample.item_id for sample in scored])
    share = wilson(sum(solved) / len(solved) * n if solved else 0, n)
    return {
        "n": len(scored),
        "accuracy": share.estimate,
        "accuracy_low": share.low,
        "accuracy_high": share.high,
    }


def _change(prefix: str, pairs: Pairs, seed: int) -> dict[str, Any]:
    """What the first of each pair changes of the second's accuracy, samples of a problem as one."""
    scored = [(m, t) for m, t in pairs if None not in (m.correct, t.correct)]
    moved = [float(bool(m.correct)) - float(bool(t.correct)) for m, t in scored]
    problems = [m.item_id for m, _ in scored]
    lost, gained = moved.count(-1), moved.count(1)
    n = effective(moved, problems)
    share = n / len(moved) if moved else 0
    change = tango(lost * share, gained * share, n)
    p = change_p([(problem, int(one)) for problem, one in zip(problems, moved, strict=True)], seed)
    return {
        f"{prefix}accuracy_change": change.estimate,
        f"{prefix}accuracy_change_low": change.low,
        f"{prefix}accuracy_change_high": change.high,
        f"{prefix}accuracy_change_p": p if moved else None,
        f"{prefix}solved_lost": lost if moved else None,
        f"{prefix}solved_gained": gained if moved else None,
    }


def _smaller_caps(usable: list[Sample], pairs: Pairs, bootstrap: Bootstrap) -> tuple[AtCap, ...]:
    """What the row would be at each smaller cap."""
    factors = [one.factor for one in usable[0].shorter] if usable else []
    found = []
    for at, factor in enumerate(factors):
        mine = [_at_cap(one, at) for one in usable]
        both = [(_at_cap(m, at), _at_cap(t, at)) for m, t in pairs]
        ended, most = uncensored(both), log(factor)
        long = long_pairs(ended)
        accuracy, change = _accuracy(mine), _change("", both, bootstrap.seed)
        fields = {
            **length_ratio("length_ratio", long, bootstrap, most),
            "length_ratio_of_sums": ratio_of_sums(long, tokens_of),
            **solved_by_both(long, bootstrap, most),
            **per_solved_keys(ended, bootstrap),
            **change,
        }
        capped = sum(one.status == "capped" for one in mine)
        found.append(
            AtCap(
                factor,
                capped=capped,
                accuracy=accuracy["accuracy"],
                accuracy_low=accuracy["accuracy_low"],
                accuracy_high=accuracy["accuracy_high"],
                **fields,
            )
        )
    return tuple(found)


def _at_cap(one: Sample, at: int) -> Sample:
    less = one.shorter[at]
    return replace(
        one,
        status=less.status,
        tokens=less.tokens,
        correct=less.correct,
        keys_read=less.keys_read,
    )


def _detector(
    one: Sample,
    pairs: Pairs,
    missing: int,
    full: Mapping[Key, Sample],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """What the detector changes: pairs of a sample with it and the same trace left alone."""
    # What was dropped was decoded and counts.
    pairs = [(m, t) for m, t in pairs if m.tokens is not None and t.tokens is not None]
    there = one.detector != "none"
    solved = [theirs for _, theirs in pairs if theirs.correct]
    partners = ((theirs, full.get(theirs.pair)) for theirs in solved)
    apart = sum(other is None or other.output != theirs.output for theirs, other in partners)
    kept = bootstrap.ratio(by_problem((m.item_id, paid_of(m), paid_of(t)) for m, t in pairs))
    return {
        "token_savings": _savings(pairs),
        "token_savings_low": None if kept.high is None else 1 - kept.high,
        "token_savings_high": None if kept.low is None else 1 - kept.low,
        "token_savings_correct": _savings([pair for pair in pairs if pair[1].correct is True]),
        "token_savings_incorrect": _savings([pair for pair in pairs if pair[1].correct is False]),
        "detector_pairs": len(pairs) if there else None,
        "detector_pairs_missing": missing if there else None,
        "detector_tokens": sum(paid_of(mine) for mine, _ in pairs) if there else None,
        "detector_tokens_without": sum(paid_of(theirs) for _, theirs in pairs) if there else None,
        "detector_solved": len(solved) if there else None,
        "detector_solved_differing": apart if there else None,
        **_change("detector_", pairs, bootstrap.seed),
        **_waste_saved(pairs, bootstrap),
    }


def _waste(usable: list[Sample]) -> dict[str, Any]:
    """Tokens wasted by all samples together."""
    wasted = {
        f"wasted_{kind}": [getattr(sample, f"wasted_{kind}") for sample in usable]
        for kind in ("loop", "tail")
    }
    return {k: sum(v) if v and None not in v else None for k, v in wasted.items()}


def _waste_saved(pairs: Pairs, bootstrap: Bootstrap) -> dict[str, Any]:
    """The share of the traces' wasted tokens that the detector spares."""
    found: dict[str, Any] = {}
    for kind in ("loop", "tail"):
        name = f"wasted_{kind}"
        counts = [(m.item_id, getattr(m, name), getattr(t, name)) for m, t in pairs]
        known = [one for one in counts if None not in one]
        left = bootstrap.ratio(by_problem(known))
        found[f"{name}_savings"] = None if left.estimate is None else 1 - left.estimate
        found[f"{name}_savings_low"] = None if left.high is None else 1 - left.high
        found[f"{name}_savings_high"] = None if left.low is None else 1 - left.low
    return found


def _penalty(
    one: Sample, pairs: Pairs, missing: int, bootstrap: Bootstrap, most: float | None
) -> dict[str, Any]:
    """What the penalty changes: pairs of a sample with it and the same decoded without it."""
    there = one.penalty != "none"
    # Both had the same room: a pair that was cut is a comparison under that cap.
    known = [(m.repeated, t.repeated) for m, t in pairs if None not in (m.repeated, t.repeated)]
    return {
        "penalty_pairs": len(pairs) if there else None,
        "penalty_pairs_missing": missing if there else None,
        **length_ratio("penalty_length_ratio", long_pairs(pairs), bootstrap, most),
        **_change("penalty_", pairs, bootstrap.seed),
        "penalty_repetition_change": mean(float(bool(m) - bool(t)) for m, t in known),
    }


def _savings(pairs: Pairs) -> float | None:
    kept = ratio_of_sums(pairs, paid_of)
    return None if kept is None else 1 - kept


def _costs(usable: list[Sample], pairs: Pairs, bootstrap: Bootstrap) -> dict[str, Any]:
    keys = per_solved(usable, keys_read_of, bootstrap)
    return {
        "prefill_sec": mean(sample.prefill_sec for sample in usable),
        "decode_sec": mean(sample.decode_sec for sample in usable),
        "end_to_end_sec": mean(sec_of(sample) for sample in usable),
        "end_to_end_ratio": ratio_of_sums(pairs, sec_of),
        "cache_bytes_peak": maximum(sample.cache_bytes_peak for sample in usable),
        "cache_byte_sec": mean(sample.cache_byte_sec for sample in usable),
        "cache_byte_sec_ratio": ratio_of_sums(pairs, lambda sample: sample.cache_byte_sec),
        "keys_read_per_solved": keys.estimate,
        "keys_read_per_solved_low": keys.low,
        "keys_read_per_solved_high": keys.high,
        **per_solved_keys(pairs, bootstrap),
        "sec_per_solved": per_solved(usable, sec_of, bootstrap).estimate,
        "sec_per_solved_ratio": per_solved_ratio(pairs, sec_of, bootstrap)[0].estimate,
    }


def per_solved_keys(pairs: Pairs, bootstrap: Bootstrap) -> dict[str, Any]:
    """Keys read per solved problem over full attention's, with its test."""
    name = "keys_read_per_solved_ratio"
    found, differs, p = per_solved_ratio(pairs, keys_read_of, bootstrap)
    return {
        name: found.estimate,
        f"{name}_low": found.low,
        f"{name}_high": found.high,
        f"{name}_p": p,
        f"{name}_differs": differs,
    }


def _keys(usable: list[Sample]) -> dict[str, Any]:
    return {
        "keys_kept_max": maximum(sample.keys_kept_max for sample in usable),
        "keys_read": mean(sample.keys_read for sample in usable),
        "keys_read_mean": mean(sample.keys_read_mean for sample in usable),
        "keys_read_max": maximum(sample.keys_read_max for sample in usable),
        "dense_layer_keys_read_mean": mean(s.dense_layer_keys_read_mean for s in usable),
    }


def _compression(usable: list[Sample], bootstrap: Bootstrap) -> dict[str, Any]:
    curves = [(sample.item_id, sample.curve.columns()) for sample in usable]
    curves = [(item, curve[curve[:, 1] > 0]) for item, curve in curves]
    ends = [(item, curve[-1].tolist()) for item, curve in curves if len(curve)]
    ratio = bootstrap.ratio(
        by_problem((item, small / plain, 1) for item, (_, plain, small) in ends)
    )
    return {
        "compression_ratio": ratio.estimate,
        "compression_ratio_low": ratio.low,
        "compression_ratio_high": ratio.high,
        "compression_curve": mean_curve([curve for _, curve in curves]),
        "repetition_rate": mean(sample.repeated for sample in usable),
    }
