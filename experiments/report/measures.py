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
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from math import isfinite, log
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from experiments.report.aggregate import (
    PairKey,
    Pairs,
    attempts,
    by_problem,
    keys_read_of,
    length_ratio,
    length_ratio_of,
    long_pairs,
    maximum,
    mean,
    mean_curve,
    mean_tokens,
    paid_of,
    pair_up,
    per_solved,
    per_solved_ratio,
    ratio_of_sums,
    sec_of,
    solved_by_both,
    tokens_of,
    uncensored,
)
from experiments.report.bootstrap import Bootstrap
from experiments.report.claims import with_cheaper, with_claims
from experiments.report.headline import finding
from experiments.report.row import POOLED, AtCap, ReportRow, order
from experiments.report.statistics import Change, Interval, change_p, effective, tango, wilson
from experiments.store.samples.sample import Key, Sample, is_usable, setting

__all__ = ["ReportRow", "finding", "pooled_rows", "rows"]

Curve = tuple[str, npt.NDArray[np.intc]]

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
            groups[one.model, POOLED, *one.key[2:]].append(one)
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
    groups: dict[tuple[Key, str, str], dict[PairKey, Sample]] = defaultdict(dict)
    full: dict[PairKey, Sample] = {}
    for sample in map(_finite, samples):
        group = groups[sample.key, sample.detector, sample.action]
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
        free = (*run[:2], "none", *run[3:])
        without = {} if run == free else groups.get((free, detector, action), {})
        ordered = [group[key] for key in sorted(group)]
        found.append(_row(ordered, full, alone, without, bootstrap, factor))
    return found


def _finite(sample: Sample) -> Sample:
    """NaN and infinity measure nothing: they become missing here, once for every measure."""
    missing: dict[str, Any] = {
        name: None for name in _FLOATS if not isfinite(getattr(sample, name) or 0)
    }
    return replace(sample, **missing) if missing else sample


def _row(
    samples: list[Sample],
    full: Mapping[PairKey, Sample],
    alone: Mapping[PairKey, Sample],
    without: Mapping[PairKey, Sample],
    bootstrap: Bootstrap,
    factor: int | None,
) -> ReportRow:
    one = samples[0]
    # The longest outputs end last, or run out of memory: what is left says little of the whole.
    usable = samples if all(map(is_usable, samples)) else []
    pairs, missing = _pairs(usable, samples, full)
    ended = uncensored(pairs)
    long = long_pairs(ended)
    solved = solved_by_both(long)
    most = None if factor is None else log(factor)
    n, accuracy = _accuracy(usable)
    tries = attempts(samples, bool(usable), bootstrap)
    why_untimed = _why_untimed([*usable, *(full for _, full in pairs)])
    timed, timed_pairs = ([], []) if why_untimed else (usable, ended)
    watched, watched_missing = _pairs(usable, samples, alone)
    # What was dropped was decoded and counts.
    watched = [(m, t) for m, t in watched if m.tokens is not None and t.tokens is not None]
    is_watched = one.detector != "none"
    stood = [theirs for _, theirs in watched if theirs.correct]
    penalised, penalised_missing = _pairs(usable, samples, without)
    is_penalised = one.penalty != "none"
    curves = _curves(usable)
    status = [sample.status for sample in samples]
    return ReportRow(
        model=one.model,
        dataset=one.dataset,
        backend=one.backend,
        budget=one.budget,
        penalty=one.penalty,
        detector=one.detector,
        action=one.action,
        n=n,
        accuracy=accuracy,
        finished=status.count("ok"),
        capped=status.count("capped"),
        stopped=status.count("stopped"),
        errors=status.count("error") + status.count("out_of_memory"),
        keys_kept_max=maximum(sample.keys_kept_max for sample in usable),
        keys_read_mean=mean(sample.keys_read_mean for sample in usable),
        keys_read_max=maximum(sample.keys_read_max for sample in usable),
        dense_layer_keys_read_mean=mean(s.dense_layer_keys_read_mean for s in usable),
        repetition_rate=mean(sample.repeated for sample in usable),
        decode_sec=mean(sample.decode_sec for sample in timed),
        backend_params=dict(one.backend_params),
        samples=len(samples),
        problems=len({sample.item_id for sample in samples}),
        out_of_memory=status.count("out_of_memory"),
        missing=status.count("missing"),
        fired=sum(sample.stopped_at is not None for sample in samples),
        pairs=len(pairs),
        pairs_missing=missing,
        pairs_censored=len(pairs) - len(ended),
        pairs_same=sum(mine.output == theirs.output for mine, theirs in pairs),
        role=one.role,
        accuracy_change=_change(pairs, bootstrap.seed),
        mean_tokens=mean_tokens(usable, bootstrap),
        mean_paid_tokens=mean(sample.paid_tokens for sample in usable),
        length_ratio=length_ratio(long, bootstrap, most),
        length_ratio_of_sums=ratio_of_sums(long, tokens_of),
        length_ratio_finished=length_ratio_of("ok", long, most),
        length_ratio_capped=length_ratio_of("capped", long, most),
        length_ratio_stopped=length_ratio_of("stopped", long, most),
        length_ratio_solved=length_ratio(solved, bootstrap, most),
        solved_by_both=len(solved),
        token_savings=_spared("paid_tokens", watched, bootstrap),
        token_savings_correct=_savings([pair for pair in watched if pair[1].correct is True]),
        token_savings_incorrect=_savings([pair for pair in watched if pair[1].correct is False]),
        detector_pairs=len(watched) if is_watched else None,
        detector_pairs_missing=watched_missing if is_watched else None,
        detector_tokens=sum(paid_of(mine) for mine, _ in watched) if is_watched else None,
        detector_tokens_without=sum(paid_of(its) for _, its in watched) if is_watched else None,
        detector_solved=len(stood) if is_watched else None,
        detector_solved_differing=_differing(stood, full) if is_watched else None,
        detector_accuracy_change=_change(watched, bootstrap.seed),
        wasted_loop=_total(sample.wasted_loop for sample in usable),
        wasted_tail=_total(sample.wasted_tail for sample in usable),
        wasted_loop_savings=_spared("wasted_loop", watched, bootstrap),
        wasted_tail_savings=_spared("wasted_tail", watched, bootstrap),
        penalty_pairs=len(penalised) if is_penalised else None,
        penalty_pairs_missing=penalised_missing if is_penalised else None,
        # Both had the same room: a pair that was cut is a comparison under that cap.
        penalty_length_ratio=length_ratio(long_pairs(penalised), bootstrap, most),
        penalty_accuracy_change=_change(penalised, bootstrap.seed),
        penalty_repetition_change=_repetition_change(penalised),
        keys_read=mean(sample.keys_read for sample in usable),
        prefill_sec=mean(sample.prefill_sec for sample in timed),
        end_to_end_sec=mean(sec_of(sample) for sample in timed),
        end_to_end_ratio=ratio_of_sums(timed_pairs, sec_of),
        cache_bytes_peak=maximum(sample.cache_bytes_peak for sample in usable),
        cache_byte_sec=mean(sample.cache_byte_sec for sample in timed),
        cache_byte_sec_ratio=ratio_of_sums(timed_pairs, lambda sample: sample.cache_byte_sec),
        keys_read_per_solved=per_solved(usable, keys_read_of, bootstrap),
        keys_read_per_solved_ratio=per_solved_ratio(ended, keys_read_of, bootstrap),
        sec_per_solved=per_solved(timed, sec_of, bootstrap).estimate,
        sec_per_solved_ratio=per_solved_ratio(timed_pairs, sec_of, bootstrap).estimate,
        compression_curve=mean_curve([curve for _, curve in curves]),
        samples_per_problem=tries.each,
        avg_at_k=tries.mean,
        pass_at_k=tries.any,
        reused_tokens=sum(sample.reused_tokens for sample in samples if is_usable(sample)),
        caps=() if is_watched else _smaller_caps(usable, pairs, bootstrap),
        claims=(),
        cheaper=None,
        seconds_null_why=why_untimed,
        compression_ratio=_compression_ratio(curves, bootstrap),
        at_positions=sum(sample.at_positions for sample in samples),
        pass_at=tries.pass_at,
    )


def _pairs(
    usable: list[Sample], samples: list[Sample], partners: Mapping[PairKey, Sample]
) -> tuple[Pairs, int]:
    """Every sample beside its partner and 0, or no pair at all and how many there are not."""
    pairs = pair_up(usable, partners)
    missing = len(samples) - len(pairs)
    return ([] if missing else pairs), missing


def _accuracy(usable: list[Sample]) -> tuple[int, Interval]:
    """How many are scored, and the share of them that is solved."""
    scored = [sample for sample in usable if sample.correct is not None]
    solved = [float(bool(sample.correct)) for sample in scored]
    n = effective(solved, [sample.item_id for sample in scored])
    return len(scored), wilson(sum(solved) / len(solved) * n if solved else 0, n)


def _change(pairs: Pairs, seed: int) -> Change:
    """What the first of each pair changes of the second's accuracy, samples of a problem as one."""
    scored = [(m, t) for m, t in pairs if None not in (m.correct, t.correct)]
    if not scored:
        return Change(None, None, None)
    moved = [float(bool(m.correct)) - float(bool(t.correct)) for m, t in scored]
    problems = [m.item_id for m, _ in scored]
    lost, gained = moved.count(-1), moved.count(1)
    n = effective(moved, problems)
    share = n / len(moved)
    change = tango(lost * share, gained * share, n)
    p = change_p([(problem, int(one)) for problem, one in zip(problems, moved, strict=True)], seed)
    return Change(change.estimate, change.low, change.high, p, lost, gained)


def _smaller_caps(usable: list[Sample], pairs: Pairs, bootstrap: Bootstrap) -> tuple[AtCap, ...]:
    """What the row would be at each smaller cap."""
    factors = [one.factor for one in usable[0].shorter] if usable else []
    found = []
    for at, factor in enumerate(factors):
        mine = [_at_cap(one, at) for one in usable]
        both = [(_at_cap(m, at), _at_cap(t, at)) for m, t in pairs]
        ended, most = uncensored(both), log(factor)
        long = long_pairs(ended)
        solved = solved_by_both(long)
        found.append(
            AtCap(
                factor,
                capped=sum(one.status == "capped" for one in mine),
                accuracy=_accuracy(mine)[1],
                accuracy_change=_change(both, bootstrap.seed),
                length_ratio=length_ratio(long, bootstrap, most),
                length_ratio_of_sums=ratio_of_sums(long, tokens_of),
                length_ratio_solved=length_ratio(solved, bootstrap, most),
                solved_by_both=len(solved),
                keys_read_per_solved_ratio=per_solved_ratio(ended, keys_read_of, bootstrap),
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


def _differing(solved: Sequence[Sample], full: Mapping[PairKey, Sample]) -> int:
    """How many of these are not full attention's output."""
    partners = ((sample, full.get(sample.pair)) for sample in solved)
    return sum(other is None or other.output != sample.output for sample, other in partners)


def _spared(
    count: Literal["paid_tokens", "wasted_loop", "wasted_tail"], pairs: Pairs, bootstrap: Bootstrap
) -> Interval:
    """The share of the second side's tokens that the first spares."""
    counts = ((m.item_id, getattr(m, count), getattr(t, count)) for m, t in pairs)
    return bootstrap.ratio(by_problem(one for one in counts if None not in one)).rest


def _savings(pairs: Pairs) -> float | None:
    kept = ratio_of_sums(pairs, paid_of)
    return None if kept is None else 1 - kept


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum, where all are known and there are any."""
    known = list(counts)
    return sum(one or 0 for one in known) if known and None not in known else None


def _repetition_change(pairs: Pairs) -> float | None:
    known = [(m.repeated, t.repeated) for m, t in pairs if None not in (m.repeated, t.repeated)]
    return mean(float(bool(m) - bool(t)) for m, t in known)


def _curves(usable: list[Sample]) -> list[Curve]:
    """Each output's problem and the points of its curve that hold anything."""
    curves = ((sample.item_id, sample.curve.columns()) for sample in usable)
    return [(item, curve[curve[:, 1] > 0]) for item, curve in curves]


def _compression_ratio(curves: Sequence[Curve], bootstrap: Bootstrap) -> Interval:
    ends = ((item, curve[-1].tolist()) for item, curve in curves if len(curve))
    return bootstrap.ratio(by_problem((item, small / raw, 1) for item, (_, raw, small) in ends))


def _why_untimed(samples: Sequence[Sample]) -> str | None:
    """Why the seconds of these samples have no common measure; None where they have."""
    if any(sample.workers > 1 for sample in samples):
        return "runs were decoded by several workers, which slow each other down"
    found = {setting(sample) for sample in samples}
    if len(found) <= 1 and None not in found:
        return None
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return "it is not known in which sweep and batches the runs were decoded"
    sweeps = {sweep for sweep, _ in known}
    if len(sweeps) > 1:
        return f"runs, or those of full attention, were decoded in {len(sweeps)} sweeps"
    sizes = sorted(size for _, size in known)
    return f"runs, or those of full attention, were decoded in batches of {_listed(sizes)} rows"


def _listed(sizes: Sequence[int]) -> str:
    *first, last = map(str, sizes)
    return f"{', '.join(first)} and {last}"
