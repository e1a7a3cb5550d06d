"""A report's row from samples, each field by its definition; a bound is where it may lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recomputing.intervals import Floats, interval, mcnemar, tango, wilson
from recomputing.samples import Line, Sample

#: Some words, whichever.
WORDS = "words"

_ONE_TWO_FIVE = tuple(digit * 10**power for power in range(4) for digit in (1, 2, 5))

Pair = tuple[Sample, Sample]
Band = tuple[float, float]

#: Every field that is recomputed here; `cheaper` in its own module.
FIELDS = frozenset(
    """
    n samples problems samples_per_problem finished capped stopped errors out_of_memory missing
    fired at_positions pairs pairs_missing pairs_censored
    accuracy accuracy_low accuracy_high avg_at_k pass_at_k pass_at pass_at_low pass_at_high
    accuracy_change accuracy_change_low accuracy_change_high accuracy_change_p
    solved_lost solved_gained solved_by_both
    mean_tokens mean_tokens_low mean_tokens_high mean_paid_tokens reused_tokens
    length_ratio length_ratio_low length_ratio_high length_ratio_of_sums
    length_ratio_finished length_ratio_capped length_ratio_stopped
    length_ratio_solved length_ratio_solved_low length_ratio_solved_high
    token_savings token_savings_low token_savings_high token_savings_correct
    token_savings_incorrect
    detector_pairs detector_pairs_missing detector_tokens detector_tokens_without
    detector_accuracy_change detector_accuracy_change_low detector_accuracy_change_high
    detector_accuracy_change_p detector_solved_lost detector_solved_gained
    wasted_loop wasted_tail wasted_loop_savings wasted_loop_savings_low wasted_loop_savings_high
    wasted_tail_savings wasted_tail_savings_low wasted_tail_savings_high
    penalty_pairs penalty_pairs_missing penalty_length_ratio penalty_length_ratio_low
    penalty_length_ratio_high penalty_accuracy_change penalty_accuracy_change_low
    penalty_accuracy_change_high penalty_accuracy_change_p penalty_solved_lost
    penalty_solved_gained penalty_repetition_change
    keys_kept_max keys_read_mean keys_read_max dense_layer_keys_read_mean keys_read
    keys_read_per_solved keys_read_per_solved_low keys_read_per_solved_high
    keys_read_per_solved_ratio keys_read_per_solved_ratio_low keys_read_per_solved_ratio_high
    seconds_null_why prefill_sec decode_sec end_to_end_sec end_to_end_ratio sec_per_solved
    sec_per_solved_ratio
    cache_bytes_peak cache_byte_sec cache_byte_sec_ratio
    compression_ratio compression_ratio_low compression_ratio_high compression_curve
    repetition_rate cheaper
    """.split()  # noqa: SIM905 - a hundred quoted names are no easier to read
)


SECONDS = (
    *("prefill_sec", "decode_sec", "end_to_end_sec", "end_to_end_ratio", "sec_per_solved"),
    *("sec_per_solved_ratio", "cache_byte_sec", "cache_byte_sec_ratio"),
)


def row(line: Line, full: Line, without: Line | None, unpenalised: Line | None) -> dict[str, Any]:
    """Every field of a row but `cheaper`, which needs its neighbours.

    Args:
        line: the configuration.
        full: full attention on the same problems, no detector.
        without: the same configuration without its detector.
        unpenalised: the same backend, budget and detector without its penalty.
    """
    samples = list(line.samples.values())
    found = counts(samples)
    if found["errors"] or found["missing"]:
        return found
    pairs = both(line, full)
    lengths = [pair for pair in pairs if not pair[0].censored]
    found |= {
        "pairs": len(pairs),
        "pairs_missing": len(samples) - len(pairs),
        "pairs_censored": len(pairs) - len(lengths),
    }
    found |= accuracy(samples) | change("accuracy_change", "solved", pairs)
    found |= length(samples) | ratios(lengths) | costs(samples, lengths) | text(samples)
    settings = {one.setting for one in samples} | {its.setting for _, its in pairs}
    if None in settings or len(settings) > 1:
        # Decoded in several sweeps or in batches of different size, or nobody knows.
        found |= {field: None for field in found if field in SECONDS}
        found["seconds_null_why"] = WORDS
    if without is not None:
        found |= savings(both(line, without), len(samples))
    if unpenalised is not None:
        found |= penalty(both(line, unpenalised), len(samples))
    return found


def both(line: Line, other: Line) -> list[Pair]:
    """The samples that both have, and that were decoded in both."""
    pairs = ((one, other.samples.get(at)) for at, one in line.samples.items())
    return [(one, its) for one, its in pairs if its is not None and one.usable and its.usable]


def counts(samples: Sequence[Sample]) -> dict[str, Any]:
    """How many ended in which way."""
    ended = [one.status for one in samples]
    per_problem = max(one.index for one in samples) + 1
    return {
        "n": sum(one.usable for one in samples),
        "samples": len(samples),
        "problems": len({one.problem for one in samples}),
        "samples_per_problem": per_problem,
        "finished": ended.count("finished"),
        "capped": ended.count("capped"),
        "stopped": ended.count("stopped"),
        "errors": ended.count("error") + ended.count("out_of_memory"),
        "out_of_memory": ended.count("out_of_memory"),
        "missing": ended.count("missing"),
        **{field: {} for field in ("pass_at", "pass_at_low", "pass_at_high")},
        "fired": sum(one.fired for one in samples),
        "at_positions": sum(one.at_end for one in samples),
    }


def accuracy(samples: Sequence[Sample]) -> dict[str, Any]:
    """Share solved, with Wilson's interval; several samples a problem: avg@k and pass@k."""
    solved = sum(one.solved for one in samples)
    by_problem = grouped(samples, lambda one: one.problem)
    k = max(map(len, by_problem))
    found: dict[str, Any] = {"accuracy": solved / len(samples), "avg_at_k": None, "pass_at_k": None}
    if k == 1:
        found["accuracy_low"], found["accuracy_high"] = wilson(solved, len(samples))
    else:
        found["avg_at_k"] = mean(mean(one.solved for one in group) for group in by_problem)
        found["pass_at_k"] = mean(any(one.solved for one in group) for group in by_problem)
        found |= pass_at(k, [sum(one.solved for one in group) for group in by_problem])
    return found


def pass_at(drawn: int, solved: Sequence[int]) -> dict[str, Any]:
    """The chance that k of the samples drawn hold a correct one, mean over problems."""
    steps = sorted({k for k in (*_ONE_TWO_FIVE, drawn) if k <= drawn})
    found: dict[str, dict[str, Any]] = {"pass_at": {}, "pass_at_low": {}, "pass_at_high": {}}
    for k in steps:
        chances = [1 - math.comb(drawn - right, k) / math.comb(drawn, k) for right in solved]
        low, high = mean_interval(list(enumerate(chances)), lambda at: at[1], lambda at: at[0])
        found["pass_at"][str(k)] = mean(chances)
        found["pass_at_low"][str(k)], found["pass_at_high"][str(k)] = low, high
    return found


def change(field: str, solved: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accuracy against that of the same problems elsewhere."""
    if not pairs:
        return {}
    lost = sum(b.solved and not a.solved for a, b in pairs)
    gained = sum(a.solved and not b.solved for a, b in pairs)
    found: dict[str, Any] = {
        field: (gained - lost) / len(pairs),
        f"{solved}_lost": lost,
        f"{solved}_gained": gained,
    }
    if len({a.problem for a, _ in pairs}) == len(pairs):
        found[f"{field}_low"], found[f"{field}_high"] = tango(lost, gained, len(pairs))
        found[f"{field}_p"] = mcnemar(lost, gained)
    return found


def length(samples: Sequence[Sample]) -> dict[str, Any]:
    """Tokens that came out, and that were paid for."""
    low, high = mean_interval(samples, lambda one: one.tokens)
    return {
        "mean_tokens": mean(one.tokens for one in samples),
        "mean_tokens_low": low,
        "mean_tokens_high": high,
        "mean_paid_tokens": mean(one.paid for one in samples),
        "reused_tokens": sum(one.reused for one in samples),
    }


def ratios(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Tokens over tokens under full attention."""
    found: dict[str, Any] = {"solved_by_both": sum(a.solved and b.solved for a, b in pairs)}
    if not pairs:
        return found
    found["length_ratio_of_sums"] = sum(a.tokens for a, _ in pairs) / sum(
        b.tokens for _, b in pairs
    )
    parts = {"length_ratio": pairs}
    for way in ("finished", "capped", "stopped"):
        parts[f"length_ratio_{way}"] = [pair for pair in pairs if pair[0].status == way]
    parts["length_ratio_solved"] = [(a, b) for a, b in pairs if a.solved and b.solved]
    for field, part in parts.items():
        if part:
            found[field] = mean_by_problem(part)
    for field in ("length_ratio", "length_ratio_solved"):
        if parts[field]:
            low, high = mean_interval(parts[field], _ratio, problem=lambda pair: pair[0].problem)
            found |= {f"{field}_low": low, f"{field}_high": high}
    return found


def _ratio(pair: Pair) -> float:
    return pair[0].tokens / pair[1].tokens


def mean_by_problem(pairs: Sequence[Pair]) -> float:
    """Mean over problems of the mean ratio of its samples."""
    return mean(mean(map(_ratio, one)) for one in grouped(pairs, lambda pair: pair[0].problem))


def costs(samples: Sequence[Sample], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Keys, bytes and seconds; per problem solved and over full attention's."""
    solved = sum(one.solved for one in samples)
    seconds = [spent(one) for one in samples]
    found: dict[str, Any] = {
        "keys_read": mean(one.keys for one in samples),
        "keys_read_mean": mean_known(one.read_mean for one in samples),
        "dense_layer_keys_read_mean": mean_known(one.dense_mean for one in samples),
        "keys_kept_max": most(one.kept_max for one in samples),
        "keys_read_max": most(one.read_max for one in samples),
        "cache_bytes_peak": max(one.bytes_peak for one in samples),
        "prefill_sec": mean_known(one.prefill for one in samples),
        "decode_sec": mean_known(one.decode for one in samples),
        "end_to_end_sec": mean_known(seconds),
        "cache_byte_sec": mean_known(one.byte_sec for one in samples),
    }
    if solved:
        found["keys_read_per_solved"] = sum(one.keys for one in samples) / solved
        low, high = sums_interval(samples, lambda one: (one.keys, one.solved))
        found |= {"keys_read_per_solved_low": low, "keys_read_per_solved_high": high}
    # A row that took all its tokens from full attention has no seconds of its own.
    timed = [
        (sec, one.solved) for sec, one in zip(seconds, samples, strict=True) if sec is not None
    ]
    if any(solved for _, solved in timed):
        found["sec_per_solved"] = sum(sec for sec, _ in timed) / sum(solved for _, solved in timed)
    return found | (over_full(pairs) if pairs else {})


def over_full(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Ratios of costs over those under full attention, paired."""
    found: dict[str, Any] = {}
    for field, number in (("end_to_end_ratio", spent), ("cache_byte_sec_ratio", held)):
        both_known = [
            (ours, its)
            for a, b in pairs
            if (ours := number(a)) is not None and (its := number(b)) is not None
        ]
        if both_known:
            found[field] = sum(a for a, _ in both_known) / sum(b for _, b in both_known)
    solved, solved_full = (sum(pair[i].solved for pair in pairs) for i in (0, 1))
    found["full_solves"] = solved_full > 0
    if not solved or not solved_full:
        return found

    def of(sums: Floats) -> Floats:
        keys, n, keys_full, n_full = sums
        return (keys / n) / (keys_full / n_full)

    def values(pair: Pair) -> tuple[float, ...]:
        return pair[0].keys, pair[0].solved, pair[1].keys, pair[1].solved

    total = np.array([values(pair) for pair in pairs], float).sum(axis=0)
    found["keys_read_per_solved_ratio"] = float(of(total))
    low, high = sums_interval(pairs, values, of, problem=lambda pair: pair[0].problem)
    found |= {"keys_read_per_solved_ratio_low": low, "keys_read_per_solved_ratio_high": high}
    timed = [(a, b) for a, b in pairs if spent(a) is not None and spent(b) is not None]
    solved, solved_full = (sum(pair[i].solved for pair in timed) for i in (0, 1))
    if solved and solved_full:
        found["sec_per_solved_ratio"] = found["end_to_end_ratio"] * solved_full / solved
    return found


def spent(sample: Sample) -> float | None:
    """Seconds of a sample from its prompt on."""
    known = sample.prefill is not None and sample.decode is not None
    return (sample.prefill or 0.0) + (sample.decode or 0.0) if known else None


def held(sample: Sample) -> float | None:
    """Bytes held times seconds held."""
    return sample.byte_sec


def text(samples: Sequence[Sample]) -> dict[str, Any]:
    """Compressed over original bytes of the outputs, and who repeats a block 20 times."""
    whole = [(s.problem, s.curve[-1][2] / s.curve[-1][1]) for s in samples if s.curve[-1][1]]
    low, high = mean_interval(whole, lambda one: one[1], lambda one: one[0])
    points = sorted({at for one in samples for at, raw, _ in one.curve if raw})
    curve = []
    for at in points:
        there = [one for one in samples if one.tokens >= at]
        measured = [small / raw for s in there for n, raw, small in s.curve if n == at and raw]
        if len(measured) == len(there):
            curve.append((at, mean(measured), len(there)))
    return {
        "compression_ratio": mean_known(ratio for _, ratio in whole),
        "compression_ratio_low": low,
        "compression_ratio_high": high,
        "repetition_rate": mean(one.repeated for one in samples),
        "wasted_loop": sum(one.loop for one in samples),
        "wasted_tail": sum(one.tail for one in samples),
        "compression_curve": curve,
    }


def always_some(clusters: Sequence[tuple[int, ...]]) -> bool:
    """Whether the second numbers add up to something in each of the report's own resamples.

    Where they do not in one of them there are no bounds. Only the report's generator knows: the
    seed is the presets'.
    """
    n = len(clusters)
    second = np.array([one[1] for one in sorted(clusters)])
    drawn = np.random.default_rng(0).integers(0, n, (10_000, n))
    return bool((second[drawn].sum(axis=1) > 0).all())


def savings(pairs: Sequence[Pair], n: int) -> dict[str, Any]:
    """What a detector saves and changes, against the same configuration without it."""
    found: dict[str, Any] = {
        "detector_pairs": len(pairs),
        "detector_pairs_missing": n - len(pairs),
        "detector_tokens": sum(a.paid for a, _ in pairs),
        "detector_tokens_without": sum(b.paid for _, b in pairs),
    }
    for field, part in (
        ("token_savings", list(pairs)),
        ("token_savings_correct", [(a, b) for a, b in pairs if b.solved]),
        ("token_savings_incorrect", [(a, b) for a, b in pairs if not b.solved]),
    ):
        if part:
            found[field] = 1 - sum(a.paid for a, _ in part) / sum(b.paid for _, b in part)

    def of(sums: Floats) -> Floats:
        return 1 - sums[0] / sums[1]

    low, high = sums_interval(
        pairs,
        lambda pair: (pair[0].paid, pair[1].paid),
        of,
        problem=lambda pair: pair[0].problem,
    )
    found |= {"token_savings_low": low, "token_savings_high": high}
    for kind in ("loop", "tail"):
        field = f"wasted_{kind}_savings"
        wasted = sum(getattr(b, kind) for _, b in pairs)
        if wasted:
            found[field] = 1 - sum(getattr(a, kind) for a, _ in pairs) / wasted
            clusters = [
                tuple(sum(getattr(pair[at], kind) for pair in one) for at in (0, 1))
                for one in grouped(pairs, lambda pair: pair[0].problem)
            ]
            if always_some(clusters):
                found[f"{field}_low"], found[f"{field}_high"] = sums_interval(
                    pairs,
                    lambda pair, kind=kind: (getattr(pair[0], kind), getattr(pair[1], kind)),
                    of,
                    problem=lambda pair: pair[0].problem,
                )
    return found | change("detector_accuracy_change", "detector_solved", pairs)


def penalty(pairs: Sequence[Pair], n: int) -> dict[str, Any]:
    """What a penalty changes."""
    low, high = mean_interval(pairs, _ratio, problem=lambda pair: pair[0].problem)
    repeats = mean(a.repeated for a, _ in pairs) - mean(b.repeated for _, b in pairs)
    return {
        "penalty_pairs": len(pairs),
        "penalty_pairs_missing": n - len(pairs),
        "penalty_length_ratio": mean_by_problem(pairs),
        "penalty_length_ratio_low": low,
        "penalty_length_ratio_high": high,
        "penalty_repetition_change": repeats,
    } | change("penalty_accuracy_change", "penalty_solved", pairs)


# ---------------------------------------------------------------- means and their intervals


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean, of sums without rounding."""
    taken = list(values)
    return math.fsum(taken) / len(taken)


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def most(values: Iterable[int | None]) -> int | None:
    """The largest of those that are known."""
    return max((value for value in values if value is not None), default=None)


def grouped(values: Iterable[Any], key: Callable[[Any], object]) -> list[list[Any]]:
    """Those of one key together, in the order of their first."""
    found: dict[object, list[Any]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return list(found.values())


def mean_interval(
    values: Sequence[Any],
    number: Callable[[Any], float],
    problem: Callable[[Any], object] = lambda sample: sample.problem,
) -> tuple[Band | None, Band | None]:
    """Bands of the bootstrap interval of a mean over problems."""
    means = np.array([mean(map(number, one)) for one in grouped(values, problem)])

    def statistic(drawn: NDArray[np.int64]) -> Floats:
        found: Floats = means[drawn].mean(axis=1)
        return found

    return interval(len(means), statistic)


def sums_interval(
    values: Sequence[Any],
    numbers: Callable[[Any], tuple[float, ...]],
    of: Callable[[Floats], Floats] = lambda sums: sums[0] / sums[1],
    problem: Callable[[Any], object] = lambda sample: sample.problem,
) -> tuple[Band | None, Band | None]:
    """Bands of the bootstrap interval of what sums over the samples of resampled problems make."""
    sums = np.array(
        [np.sum([numbers(one) for one in group], axis=0) for group in grouped(values, problem)],
        dtype=np.float64,
    )

    def statistic(drawn: NDArray[np.int64]) -> Floats:
        return of(np.stack([column[drawn].sum(axis=1) for column in sums.T]))

    return interval(len(sums), statistic)
