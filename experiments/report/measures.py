"""A row per configuration, against full attention on the same problems.

A sample's partner is the full-attention sample of the same problem and sample index, without
penalty and detector. A configuration with a failed or missing sample has counts alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, log
from typing import Any

from experiments.grid.config import Config
from experiments.report.claims import with_claims
from experiments.report.pairs import (
    PairKey,
    Pairs,
    accuracy,
    accuracy_change,
    compression_ratio,
    cost_per_solved,
    cost_ratio,
    detector_effect,
    length_ratio,
    mean,
    mean_tokens,
    paired,
    pass_at,
    penalty_effect,
    recall_by_depth,
    uncensored,
    with_lengths,
)
from experiments.report.row import POOLED, AtCap, ReportRow, order
from experiments.report.statistics import Bootstrap
from experiments.store.samples.sample import Key, Sample, is_usable, setting

_OF_SAMPLE = "model dataset backend budget role penalty detector action".split()
_FLOATS = (
    *("prefill_sec", "decode_sec", "keys_read", "keys_read_mean"),
    *("dense_layer_keys_read_mean", "cache_byte_sec"),
)


def summarise(samples: Sequence[Sample], seed: int, factor: int | None = 2) -> list[ReportRow]:
    """One row per configuration; logs of ratios are clipped at `factor` unless it is None."""
    parts: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        parts[sample.model, sample.dataset].append(sample)
    rows = [row for part in parts.values() for row in _rows(part, seed, factor)]
    return with_claims(sorted(rows, key=order))


def summarise_pooled(
    samples: Sequence[Sample], seed: int, factor: int | None = 2
) -> list[ReportRow]:
    """One row per configuration that all of a model's several data sets have."""
    datasets: dict[str, set[str]] = defaultdict(set)
    groups: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        datasets[sample.model].add(sample.dataset)
        if sample.detector == "none":
            groups[sample.model, *sample.key[2:]].append(sample)
    together = [
        replace(sample, dataset=POOLED, item_id=f"{sample.dataset}/{sample.item_id}")
        for group in groups.values()
        if len(datasets[group[0].model]) > 1
        and {sample.dataset for sample in group} == datasets[group[0].model]
        for sample in group
    ]
    return summarise(together, seed, factor)


def against_random(
    samples: Sequence[Sample], rows: Sequence[ReportRow], config: Config
) -> list[ReportRow]:
    """The complete sparse rows measured against `random` in place of full attention.

    Both sides of a pair have one cap, so pairs that it cuts count in lengths and costs as well.
    """
    groups: dict[Key, list[Sample]] = defaultdict(list)
    for sample in sorted(map(_finite, samples), key=lambda sample: sample.pair):
        groups[sample.key].append(sample)
    control = next((row.key for row in rows if row.backend == "random"), None)
    partners = {} if control is None else {sample.pair: sample for sample in groups[control]}
    most, bootstrap = log(config.cap_factor or inf), Bootstrap(config.seed)
    nulls = [replace(row, caps=()) for row in rows if row.role == "null"]
    measured = [
        replace(row, caps=(), **_against(pairs, pairs, bootstrap, most))
        for row in rows
        if row.is_sparse and row.key != control and (pairs := paired(groups[row.key], partners))
    ]
    return with_claims([*nulls, *measured])[len(nulls) :]


def _rows(samples: Sequence[Sample], seed: int, factor: int | None) -> list[ReportRow]:
    """The rows of one model and data set."""
    groups: dict[tuple[Key, str, str], dict[PairKey, Sample]] = defaultdict(dict)
    for sample in map(_finite, samples):
        group = groups[sample.key, sample.detector, sample.action]
        if sample.pair in group:
            raise ValueError(
                f"{sample.pair} occurs twice under {sample.backend}, budget {sample.budget}, "
                f"penalty {sample.penalty}, detector {sample.detector}"
            )
        group[sample.pair] = sample
    full = {
        pair: sample
        for group in groups.values()
        for pair, sample in group.items()
        if (sample.backend, sample.penalty, sample.detector) == ("full", "none", "none")
    }
    bootstrap = Bootstrap(seed)
    rows = []
    for (key, detector, action), group in groups.items():
        unwatched = groups.get((key, "none", "none"), {})
        unpenalised = groups.get(((*key[:2], "none", *key[3:]), detector, action), {})
        ordered = [group[pair] for pair in sorted(group)]
        rows.append(_row(ordered, full, unwatched, unpenalised, bootstrap, factor))
    return rows


def _finite(sample: Sample) -> Sample:
    """NaN and infinity measure nothing: they become missing here, once for every measure."""
    missing: dict[str, Any] = {
        name: None for name in _FLOATS if not isfinite(getattr(sample, name) or 0)
    }
    return replace(sample, **missing) if missing else sample


def _row(
    samples: list[Sample],
    full: Mapping[PairKey, Sample],
    unwatched: Mapping[PairKey, Sample],
    unpenalised: Mapping[PairKey, Sample],
    bootstrap: Bootstrap,
    factor: int | None,
) -> ReportRow:
    first = samples[0]
    usable = samples if all(map(is_usable, samples)) else []
    pairs = paired(samples, full)
    most = None if factor is None else log(factor)
    status = [sample.status for sample in samples]
    n, solved = accuracy(usable)
    # Seconds are comparable within one sweep of one worker, in batches of one size.
    settings = {setting(sample) for sample in (*usable, *(partner for _, partner in pairs))}
    is_timed = len(settings) == 1 and None not in settings
    known_keys = [s.keys_kept_max for s in usable if s.keys_kept_max is not None]
    has_detector, has_penalty = first.detector != "none", first.penalty != "none"
    return ReportRow(
        **{name: getattr(first, name) for name in _OF_SAMPLE},
        backend_params=dict(first.backend_params),
        samples=len(samples),
        problems=len({sample.item_id for sample in samples}),
        n=n,
        accuracy=solved,
        finished=status.count("ok"),
        capped=status.count("capped"),
        stopped=status.count("stopped"),
        errors=status.count("error") + status.count("out_of_memory"),
        missing=status.count("missing"),
        pairs=len(pairs),
        pairs_censored=len(pairs) - len(uncensored(pairs)),
        mean_tokens=mean_tokens(usable, bootstrap),
        **_against(pairs, uncensored(pairs), bootstrap, most),
        keys_read_per_solved=cost_per_solved(usable),
        keys_kept_max=max(known_keys, default=None),
        keys_read_mean=mean(sample.keys_read_mean for sample in usable),
        compression_ratio=compression_ratio(usable, bootstrap),
        repetition_rate=mean(sample.repeated for sample in usable),
        looping_rate=mean(sample.looping for sample in usable),
        decode_sec=mean(sample.decode_sec for sample in usable) if is_timed else None,
        claims=(),
        caps=() if has_detector else tuple(_smaller_caps(usable, pairs, bootstrap)),
        pass_at=pass_at(usable, bootstrap),
        recall_by_depth=recall_by_depth(usable),
        detector_effect=detector_effect(paired(samples, unwatched), bootstrap)
        if has_detector
        else None,
        penalty_effect=penalty_effect(paired(samples, unpenalised), bootstrap, most)
        if has_penalty
        else None,
    )


def _against(
    pairs: Pairs, ended: Pairs, bootstrap: Bootstrap, most: float | None
) -> dict[str, Any]:
    """The measures of pairs at whatever cap: lengths and costs of those that `ended`."""
    long = with_lengths(ended)
    both = [(left, right) for left, right in long if left.correct and right.correct]
    return {
        "accuracy_change": accuracy_change(pairs, bootstrap.seed),
        "length_ratio": length_ratio(long, bootstrap, most),
        "length_ratio_solved": length_ratio(both, bootstrap, most),
        "solved_by_both": len(both),
        "keys_read_per_solved_ratio": cost_ratio(ended, bootstrap),
    }


def _smaller_caps(usable: list[Sample], pairs: Pairs, bootstrap: Bootstrap) -> Iterator[AtCap]:
    """What the row would be at each smaller cap."""
    for at, factor in enumerate([cut.factor for cut in usable[0].shorter] if usable else []):
        samples = [_at_cap(sample, at) for sample in usable]
        both = [(_at_cap(left, at), _at_cap(right, at)) for left, right in pairs]
        yield AtCap(
            factor,
            capped=sum(sample.status == "capped" for sample in samples),
            accuracy=accuracy(samples)[1],
            **_against(both, uncensored(both), bootstrap, log(factor)),
        )


def _at_cap(sample: Sample, at: int) -> Sample:
    cut = sample.shorter[at]
    return replace(
        sample, status=cut.status, tokens=cut.tokens, correct=cut.correct, keys_read=cut.keys_read
    )
